"""Autocast and the gradient scaler under torch_npu's own names."""

import functools

import torch

autocast = functools.partial(torch.autocast, "npu")
# Torch 2.3 took the scaler out of torch.cuda.
_TorchsScaler = getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler)


class GradScaler(_TorchsScaler):
    """Torch's, with what is different in the real one.

    It takes no device, keeps ``dynamic`` in its state and insists on it, unscales a fused optimizer
    in its flat gradients, and hands itself to torch's fused ones, which no longer take it.
    """

    def __init__(
        self,
        init_scale=2.0**16,
        growth_factor=2.0,
        backoff_factor=0.5,
        growth_interval=2000,
        dynamic=True,
        enabled=True,
    ):
        options = {
            "init_scale": init_scale,
            "growth_factor": growth_factor,
            "backoff_factor": backoff_factor,
            "growth_interval": growth_interval,
            "enabled": enabled,
        }
        device = {"device": "npu"} if hasattr(torch.amp, "GradScaler") else {}
        super().__init__(**device, **options)
        self._dynamic = dynamic

    def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
        if not hasattr(optimizer, "is_fused_optimizer"):
            return super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        if not optimizer.is_params_grads_combined:
            optimizer._maybe_init_combined_params_and_grads()
        for flat in optimizer.grads_all_group_combined:
            if flat is not None:
                torch._amp_foreach_non_finite_check_and_unscale_([flat], found_inf, inv_scale)
        return {found_inf.device: found_inf}

    def step(self, optimizer, *args, **kwargs):
        if self.is_enabled() and getattr(optimizer, "_step_supports_amp_scaling", False):
            return optimizer.step(*args, grad_scaler=self, **kwargs)
        return super().step(optimizer, *args, **kwargs)

    def state_dict(self):
        state = super().state_dict()
        return {**state, "dynamic": self._dynamic} if state else state

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        self._dynamic = state_dict["dynamic"]

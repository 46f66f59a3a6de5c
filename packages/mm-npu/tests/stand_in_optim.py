"""Stands in for torch_npu.optim: packs parameters and gradients as its optimizers do.

Not a copy of it: one rule (SGD with momentum, and a count of steps) for all nine names, on CPU
tensors, with the flags, the names and the silent failures that mm_npu deals with.
"""

import torch


class Packing(torch.optim.Optimizer):
    is_fused_optimizer = True

    def __init__(self, params, **defaults):
        super().__init__(params, defaults)
        self.is_params_grads_combined = self.is_states_combined = False
        self.num_packs = 0

    def _maybe_init_combined_params_and_grads(self):
        self.num_packs += 1
        self.params_lists_indexed_by_group = [
            [[p for p in group["params"] if p.grad is not None]] for group in self.param_groups
        ]
        params = [p for group in self.params_lists_indexed_by_group for p in group[0]]
        if params:
            for p in params:
                p.data = p.data.clone()
                p.grad.set_(p.grad.clone())  # another memory, as of npu_change_data_ptr
            self.grads = [p.grad for p in params]
            self.is_params_grads_combined = True

    def _pack_states(self):
        self.combined_param_states_indexed_by_group = []
        for (params,) in self.params_lists_indexed_by_group:
            entries = [self.state[p] for p in params]
            for p, entry in zip(params, entries, strict=True):
                entry.setdefault("step", 0)
                entry["momentum_buffer"] = entry.get("momentum_buffer", torch.zeros_like(p)).clone()
            packed = {"buffers": [entry["momentum_buffer"] for entry in entries]}
            packed["step"] = entries[0]["step"] if entries else 0
            self.combined_param_states_indexed_by_group.append([packed])
        self.is_states_combined = True

    @torch.no_grad()
    def step(self):
        if not self.is_params_grads_combined:
            self._maybe_init_combined_params_and_grads()
        if not self.is_states_combined:
            self._pack_states()
        grads = iter(self.grads)
        for group, (params,), (packed,) in zip(
            self.param_groups,
            self.params_lists_indexed_by_group,
            self.combined_param_states_indexed_by_group,
            strict=True,
        ):
            packed["step"] += 1  # as BertAdam, which does not tell the parameters' states
            for p, buffer in zip(params, packed["buffers"], strict=True):
                p.sub_(buffer.mul_(0.5).add_(next(grads)), alpha=group["lr"])

    @torch.no_grad()
    def zero_grad(self, set_to_none=False):  # noqa: FBT002 - torch_npu's signature
        if set_to_none:
            raise ValueError("set_to_none is not supported in fused optimizers")
        if not self.is_params_grads_combined:
            self._maybe_init_combined_params_and_grads()
        for grad in self.grads if self.is_params_grads_combined else ():
            grad.zero_()

    def clip_grad_norm_fused_(self, max_norm, norm_type=2):
        if not self.is_params_grads_combined:
            self._maybe_init_combined_params_and_grads()
        params = [p for group in self.params_lists_indexed_by_group for p in group[0]]
        return torch.nn.utils.clip_grad_norm_(params, max_norm, norm_type)


class NpuFusedAdamW(Packing):
    def __init__(
        self,
        params,
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=1e-2,
        amsgrad=False,  # noqa: FBT002
    ):
        super().__init__(
            params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad
        )


class Plain(Packing):
    def __init__(self, params, lr=1e-3):
        super().__init__(params, lr=lr)


class NpuFusedAdadelta(Plain): ...


class NpuFusedAdam(Plain): ...


class NpuFusedAdamP(Plain): ...


class NpuFusedBertAdam(Plain): ...


class NpuFusedLamb(Plain): ...


class NpuFusedRMSprop(Plain): ...


class NpuFusedRMSpropTF(Plain): ...


class NpuFusedSGD(Plain): ...

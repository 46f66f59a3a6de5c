"""Steps whose gradients are far larger than usual."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from mm_runner.errors import ConfigError
from mm_runner.hooks import Hook
from mm_runner.hooks._arguments import check_integer
from mm_runner.model import unwrap_model
from mm_runner.optim import named_wrappers

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["GradientSpikeHook"]

_NAMES_SHOWN = 2


class GradientSpikeHook(Hook):
    """Names the step and the parameter group whose gradients are far larger than usual.

    A spike is a norm above ``factor`` times its running mean, or one that is not finite. Norms,
    means and limits stay on the device; spikes are logged every ``interval`` steps. The gradients
    are those before clipping. An overflow under a loss scaler, which skips that step by itself, is
    no spike.

    Args:
        policy: ``"warn"`` (the default), or ``"skip"``, which also zeroes all gradients of that
            optimizer's step: only momentum and weight decay act then. All ranks skip the same
            steps.
        factor: Defaults to 10.
        momentum: Weight of a new norm in the running mean. Defaults to 0.02.
        warmup: Steps before the first that can be a spike. Defaults to 100.
        interval: Steps between two log lines. Defaults to 50.

    Raises:
        ConfigError: If an argument is out of its range; when training begins, if an optimizer
            wrapper is not derived from mm-amp's.
    """

    priority = "VERY_HIGH"

    def __init__(
        self,
        policy: str = "warn",
        factor: float = 10.0,
        momentum: float = 0.02,
        warmup: int = 100,
        interval: int = 50,
    ) -> None:
        if policy not in {"warn", "skip"}:
            raise ConfigError(
                f"GradientSpikeHook.policy: 'warn' or 'skip' is needed, got {policy!r}."
            )
        if not factor > 1:
            raise ConfigError(f"GradientSpikeHook.factor: a number above 1, got {factor!r}.")
        if not 0 < momentum <= 1:
            raise ConfigError(f"GradientSpikeHook.momentum: above 0, at most 1, got {momentum!r}.")
        check_integer("GradientSpikeHook.warmup", warmup, least=0)
        check_integer("GradientSpikeHook.interval", interval, least=1)
        self.policy, self.factor, self.momentum = policy, factor, momentum
        self.warmup, self.interval = warmup, interval
        self._watches: dict[str, _Watch] = {}
        self._loaded: dict[str, Any] = {}

    @override
    def before_train(self, runner: RunView) -> None:
        for name, wrapper in named_wrappers(runner.optim_wrapper).items():
            if not hasattr(wrapper, "register_gradient_hook"):
                raise ConfigError(
                    f"GradientSpikeHook: {type(wrapper).__name__} does not give hooks its "
                    "gradients. Derive it from mm_amp.OptimWrapper."
                )
            self._watches[name] = _Watch(self, wrapper)
            if name in self._loaded:
                self._watches[name].load_state_dict(self._loaded[name])
        self._loaded = {}

    @override
    def before_train_iter(self, runner: RunView, batch_idx: int, data_batch: Any = None) -> None:
        for watch in self._watches.values():
            watch.step = runner.iter + 1

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        if self.every_n_train_iters(runner, self.interval):
            self._log(runner)

    @override
    def after_train(self, runner: RunView) -> None:
        self._log(runner)

    @override
    def clean_up(self, runner: RunView) -> None:
        for watch in self._watches.values():
            watch.handle.remove()
        self._watches = {}

    @override
    def state_dict(self) -> dict[str, Any]:
        return {name: watch.state_dict() for name, watch in self._watches.items()}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = state_dict

    def _log(self, runner: RunView) -> None:
        names = {id(one): name for name, one in unwrap_model(runner.model).named_parameters()}
        skipped = "; its gradients were set to zero" if self.policy == "skip" else ""
        for name, watch in self._watches.items():
            of_whom = f"{name}, " if name else ""
            for step, group, norm, mean in watch.read():
                params = watch.optimizer.param_groups[group]["params"]
                shown = ", ".join(names.get(id(one), "?") for one in params[:_NAMES_SHOWN])
                num_more = len(params) - _NAMES_SHOWN
                more = f" and {num_more} more" if num_more > 0 else ""
                times = f"{norm / mean:.3g} times" if mean > 0 else "not"
                runner.logger.warning(
                    f"GradientSpikeHook: step {step}, {of_whom}parameter group {group} "
                    f"({shown}{more}): the gradients' norm was {norm:.4g}, {times} its running "
                    f"mean of {mean:.4g}{skipped}."
                )


class _Watch:
    """Looks at the gradients of one optimizer before each of its steps."""

    def __init__(self, options: GradientSpikeHook, wrapper: Any) -> None:
        self.optimizer: Optimizer = wrapper.optimizer
        self.handle = wrapper.register_gradient_hook(self._look)
        self.step = 0
        self._options = options
        self._skips_overflows = getattr(wrapper, "loss_scaler", None) is not None
        self._seen = 0
        self._means: Tensor | None = None
        self._steps: list[int] = []
        # By step since the last reading, shape (3, groups): whether it is a spike, norm, mean.
        self._notes: list[Tensor] = []

    def read(self) -> list[tuple[int, int, float, float]]:
        """Return step, group, norm and mean of new spikes, with one transfer from the device."""
        if not self._notes:
            return []
        notes = torch.stack(self._notes).tolist()
        spikes = [
            (step, group, norms[group], means[group])
            for step, (flags, norms, means) in zip(self._steps, notes, strict=True)
            for group, flag in enumerate(flags)
            if flag
        ]
        self._steps, self._notes = [], []
        return spikes

    def state_dict(self) -> dict[str, Any]:
        return {"means": self._means, "seen": self._seen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._means, self._seen = state_dict["means"], state_dict["seen"]

    @torch.no_grad()
    def _look(self, optimizer: Optimizer) -> None:
        gradients = [
            [_local(one.grad) for one in group["params"] if one.grad is not None]
            for group in optimizer.param_groups
        ]
        norms = _norms(optimizer, gradients)
        if self._means is None or len(self._means) != len(norms):
            self._means, self._seen = norms, 0
        means = self._means.to(norms.device)
        self._seen += 1
        if self._seen > self._options.warmup:
            # Also true of NaN, which is no number less than the limit.
            flags = ~(norms <= means * self._options.factor) & (means > 0)
        else:
            flags = ~torch.isfinite(norms)
        if self._skips_overflows:
            flags &= torch.isfinite(norms).all()
        # The mean of those so far, until there are enough for a running mean. Spikes are left
        # out, so that one does not hide the next.
        weight = max(self._options.momentum, 1 / self._seen)
        is_usual = ~flags & torch.isfinite(norms)
        moved = torch.where(is_usual, means + weight * (norms - means), means)
        self._means = torch.where(torch.isfinite(means), moved, norms)
        self._steps.append(self.step)
        self._notes.append(torch.stack([flags.float(), norms, means]))
        if self._options.policy == "skip":
            is_spike = flags.any()
            for group in gradients:
                for gradient in group:
                    gradient.masked_fill_(is_spike, 0.0)


def _norms(optimizer: Optimizer, gradients: list[list[Tensor]]) -> Tensor:
    """Return the norm of each group's gradients, shape ``(groups,)``, float32, on the device.

    Of sharded gradients it is the norm of the whole; where parts are replicated too, of all
    replicas together.
    """
    device = next(one.device for group in gradients for one in group)
    squares = [
        _norm(group).to(device, torch.float32).square() if group else torch.zeros((), device=device)
        for group in gradients
    ]
    total = torch.stack(squares)
    if any(hasattr(p, "full_tensor") for group in optimizer.param_groups for p in group["params"]):
        dist.all_reduce(total)
    return total.sqrt()


def _norm(gradients: list[Tensor]) -> Tensor:
    dense = [one.coalesce().values() if one.is_sparse else one for one in gradients]
    total_norm: Any = getattr(nn.utils, "get_total_norm", None)  # torch 2.6; in few kernels
    norm: Tensor
    if total_norm is not None:
        norm = total_norm(dense)
    else:
        norm = torch.stack([one.norm().to(dense[0].device) for one in dense]).norm()
    return norm


def _local(gradient: Any) -> Tensor:
    """Return the part of a sharded gradient on this rank."""
    local: Tensor = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    return local

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
# Weight of a new norm in the running mean.
_MOMENTUM = 0.02


class GradientSpikeHook(Hook):
    """Names the step and the parameter group whose gradients are far larger than usual.

    A spike is a norm above ``factor`` times its running mean, or one that is not finite. Norms and
    means stay on the device; spikes are logged every ``interval`` steps. The gradients are those
    before clipping. An overflow under a loss scaler, which skips that step by itself, is no spike.

    Args:
        policy: ``"warn"`` (the default), or ``"skip"``, which also zeroes all gradients of that
            optimizer's step: only momentum and weight decay act then. All ranks skip the same
            steps.
        factor: Defaults to 10.
        warmup: Steps before the first that can be a spike. Defaults to 100.
        interval: Steps between two log lines. Defaults to 50.

    Raises:
        ConfigError: If an argument is out of its range; when training begins, if an optimizer
            wrapper is not derived from mm-amp's.
    """

    priority = "VERY_HIGH"

    def __init__(
        self, policy: str = "warn", factor: float = 10.0, warmup: int = 100, interval: int = 50
    ) -> None:
        if policy not in {"warn", "skip"}:
            raise ConfigError(
                f"GradientSpikeHook.policy: 'warn' or 'skip' is needed, got {policy!r}."
            )
        if not factor > 1:
            raise ConfigError(f"GradientSpikeHook.factor: a number above 1, got {factor!r}.")
        check_integer("GradientSpikeHook.warmup", warmup, least=0)
        check_integer("GradientSpikeHook.interval", interval, least=1)
        self.policy, self.factor, self.warmup, self.interval = policy, factor, warmup, interval
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
            watch = self._watches[name] = _Watch(self, wrapper)
            saved = self._loaded.get(name, {"means": None, "seen": 0})
            watch.means, watch.seen = saved["means"], saved["seen"]

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
        return {
            name: {"means": watch.means, "seen": watch.seen}
            for name, watch in self._watches.items()
        }

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = state_dict

    def _log(self, runner: RunView) -> None:
        names = {id(one): name for name, one in unwrap_model(runner.model).named_parameters()}
        skipped = "; its gradients were set to zero" if self.policy == "skip" else ""
        for name, watch in self._watches.items():
            prefix = f"{name}, " if name else ""
            for step, group, norm, mean in watch.read():
                params = watch.optimizer.param_groups[group]["params"]
                shown = ", ".join(names.get(id(one), "?") for one in params[:_NAMES_SHOWN])
                num_more = len(params) - _NAMES_SHOWN
                more = f" and {num_more} more" if num_more > 0 else ""
                runner.logger.warning(
                    f"GradientSpikeHook: step {step}, {prefix}parameter group {group} "
                    f"({shown}{more}): the gradients' norm was {norm:.4g}; its running mean is "
                    f"{mean:.4g}{skipped}."
                )


class _Watch:
    """Looks at the gradients of one optimizer before each of its steps."""

    def __init__(self, options: GradientSpikeHook, wrapper: Any) -> None:
        self.optimizer: Optimizer = wrapper.optimizer
        self.handle = wrapper.register_gradient_hook(self._look)
        self.step = self.seen = 0
        self.means: Tensor | None = None
        self._options = options
        self._skips_overflows = getattr(wrapper, "loss_scaler", None) is not None
        # Steps since the last reading, each with a tensor of shape (3, groups): flag, norm, mean.
        self._notes: list[tuple[int, Tensor]] = []

    def read(self) -> list[tuple[int, int, float, float]]:
        """Return step, group, norm and mean of new spikes, with one transfer from the device."""
        notes, self._notes = self._notes, []
        if not notes:
            return []
        values = torch.stack([note for _, note in notes]).tolist()
        return [
            (step, group, norms[group], means[group])
            for (step, _), (flags, norms, means) in zip(notes, values, strict=True)
            for group, flag in enumerate(flags)
            if flag
        ]

    @torch.no_grad()
    def _look(self, optimizer: Optimizer) -> None:
        # Of a sharded gradient the part on this rank.
        grads = [
            [
                one.grad.to_local() if hasattr(one.grad, "to_local") else one.grad
                for one in group["params"]
                if one.grad is not None
            ]
            for group in optimizer.param_groups
        ]
        norms = _norms(optimizer, grads)
        if self.means is None or len(self.means) != len(norms):
            self.means, self.seen = norms, 0
        means = self.means.to(norms.device)
        self.seen += 1
        flags = ~torch.isfinite(norms)
        if self.seen > self._options.warmup:
            flags |= (norms > means * self._options.factor) & (means > 0)
        if self._skips_overflows:
            flags &= torch.isfinite(norms).all()
        # The mean of all norms until there are enough for a running mean. Spikes are left out, so
        # that one does not hide the next.
        weight = max(_MOMENTUM, 1 / self.seen)
        is_usual = ~flags & torch.isfinite(norms)
        moved = torch.where(is_usual, means + weight * (norms - means), means)
        self.means = torch.where(torch.isfinite(means), moved, norms)
        self._notes.append((self.step, torch.stack([flags.float(), norms, means])))
        if self._options.policy == "skip":
            is_spike = flags.any()
            for grad in (one for group in grads for one in group):
                grad.masked_fill_(is_spike, 0.0)


def _norms(optimizer: Optimizer, grads: list[list[Tensor]]) -> Tensor:
    """Return the norm of each group's gradients, shape ``(groups,)``, float32, on the device.

    Of sharded gradients it is the norm of the whole; where shards are replicated too, of all
    replicas together.
    """
    device = next(one.device for group in grads for one in group)
    norm_of: Any = getattr(nn.utils, "get_total_norm", None)  # torch 2.6; in few kernels
    squares = []
    for group in grads:
        dense = [one.coalesce().values() if one.is_sparse else one for one in group]
        if norm_of is not None:
            norm = norm_of(dense)
        else:
            norm = torch.stack([one.norm().to(device) for one in dense] or [torch.zeros(())]).norm()
        squares.append(norm.to(device, torch.float32).square())
    total = torch.stack(squares)
    if any(hasattr(p, "full_tensor") for group in optimizer.param_groups for p in group["params"]):
        dist.all_reduce(total)
    return total.sqrt()

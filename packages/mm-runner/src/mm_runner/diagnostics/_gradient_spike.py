"""Detection of gradient spikes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from mm_runner.errors import ConfigError
from mm_runner.hooks import Hook
from mm_runner.model import unwrap_model
from mm_runner.optim import named_wrappers
from mm_runner.registry import check_integer

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

# Weight of a new norm in the running mean.
_MOMENTUM = 0.02


class GradientSpikeHook(Hook):
    """Log the step and the parameter group whose gradients are far larger than usual.

    A spike is a norm above ``factor`` times its running mean, or one that is not finite. Norms and
    means stay on the device; spikes are logged every ``interval`` steps. The gradients are those
    before clipping. An overflow under a loss scaler, which skips that step by itself, is no spike.
    A resumed run warms up again. Optimizer wrappers of your own derive from mm-amp's.

    Args:
        factor: Ratio of a spike to the running mean. Defaults to 10.
        warmup: Steps without spike detection at the start. Defaults to 100.
        interval: Steps between two log lines. Defaults to 50.

    Raises:
        ConfigError: If an argument is out of its range.
    """

    priority = "VERY_HIGH"

    def __init__(self, factor: float = 10.0, warmup: int = 100, interval: int = 50) -> None:
        if not factor > 1:
            raise ConfigError(f"GradientSpikeHook.factor: a number above 1, got {factor!r}.")
        check_integer("GradientSpikeHook.warmup", warmup, least=0)
        check_integer("GradientSpikeHook.interval", interval, least=1)
        self.factor, self.warmup, self.interval = factor, warmup, interval
        self._watches: list[_Watch] = []

    @override
    def before_train(self, runner: RunView) -> None:
        for wrapper in named_wrappers(runner.optim_wrapper).values():
            self._watches.append(_Watch(self, runner, wrapper))

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        if self.every_n_train_iters(runner, self.interval):
            self.after_train(runner)

    @override
    def after_train(self, runner: RunView) -> None:
        for watch in self._watches:
            watch.log_spikes()

    @override
    def clean_up(self, runner: RunView) -> None:
        for watch in self._watches:
            watch.handle.remove()
        self._watches = []


class _Watch:
    """Running mean of the gradient norms of one optimizer, and the spikes not logged yet."""

    def __init__(self, options: GradientSpikeHook, runner: RunView, wrapper: Any) -> None:
        self.handle = wrapper.register_gradient_hook(self._record)
        self._options, self._runner = options, runner
        self._optimizer: Optimizer = wrapper.optimizer
        self._has_scaler = getattr(wrapper, "loss_scaler", None) is not None
        self._num_seen = 0
        self._means: Tensor | None = None
        # Of each step a tensor of shape (3, groups): whether it is a spike, norm, mean.
        self._records: list[tuple[int, Tensor]] = []

    def log_spikes(self) -> None:
        """Read the records, with one transfer from the device, and log the spikes."""
        records, self._records = self._records, []
        values = torch.stack([record for _, record in records]).tolist() if records else []
        names = {id(one): name for name, one in unwrap_model(self._runner.model).named_parameters()}
        for (step, _), (flags, norms, means) in zip(records, values, strict=True):
            for index, group in enumerate(self._optimizer.param_groups):
                if flags[index]:
                    first, *others = (names.get(id(one), "?") for one in group["params"])
                    more = f" and {len(others)} more" if others else ""
                    self._runner.logger.warning(
                        f"GradientSpikeHook: step {step}, parameter group {index} ({first}{more}): "
                        f"the gradients' norm was {norms[index]:.4g}; its running mean is "
                        f"{means[index]:.4g}."
                    )

    @torch.no_grad()
    def _record(self, optimizer: Optimizer) -> None:
        norms = _norms(optimizer)
        means = norms if self._means is None else self._means
        self._num_seen += 1
        flags = ~torch.isfinite(norms)
        if self._num_seen > self._options.warmup:
            flags |= (norms > means * self._options.factor) & (means > 0)
        if self._has_scaler:
            flags &= torch.isfinite(norms).all()
        # The mean of all norms until there are enough for a running mean. Spikes are left out, so
        # that one does not hide the next.
        weight = max(_MOMENTUM, 1 / self._num_seen)
        is_usual = ~flags & torch.isfinite(norms)
        moved = torch.where(is_usual, means + weight * (norms - means), means)
        self._means = torch.where(torch.isfinite(means), moved, norms)
        self._records.append((self._runner.iter + 1, torch.stack([flags.float(), norms, means])))


def _norms(optimizer: Optimizer) -> Tensor:
    """Return the gradient norm of each group, over all shards: ``(groups,)``, float32."""
    norm_of: Any = getattr(nn.utils, "get_total_norm", None)  # torch 2.6; in few kernels
    squares, device = [], torch.device("cpu")
    for group in optimizer.param_groups:
        grads = [one.grad for one in group["params"] if one.grad is not None]
        grads = [one.to_local() if hasattr(one, "to_local") else one for one in grads]
        dense = [one.coalesce().values() if one.is_sparse else one for one in grads]
        if norm_of is not None:
            norm = norm_of(dense)
        else:
            norm = torch.stack([one.norm() for one in dense] or [torch.zeros(())]).norm()
        squares.append(norm.float().square())
        device = dense[0].device if dense else device
    total = torch.stack([one.to(device) for one in squares])
    if any(hasattr(p, "full_tensor") for group in optimizer.param_groups for p in group["params"]):
        dist.all_reduce(total)
    return total.sqrt()

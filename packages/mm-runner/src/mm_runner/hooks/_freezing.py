"""Hook that freezes a part of the model, for all of a run or for its first epochs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from mm_runner.errors import ConfigError
from mm_runner.model import Supervised, unwrap_model
from mm_runner.registry import check_integer

from ._hook import Hook

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

_MOST_NAMED = 8
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class FreezeHook(Hook):
    """Freeze the parameters that patterns name; for a staged thaw give several of these hooks.

    Patterns of several hooks must not overlap; a thaw makes all that its patterns name train.
    Frozen parameters get no gradients, so that the optimizer leaves them as they are. Frozen batch
    normalizations keep their running statistics.

    Args:
        patterns: Patterns of names of parameters, in which ``*`` matches dots too:
            ``["backbone.*"]``.
        num_epochs: Number of first epochs in which they are frozen, less than the run has. Defaults
            to ``None``: all of the run.

    Raises:
        ConfigError: If a pattern matches nothing, or nothing would thaw; or, for parameters that
            thaw in a run of several processes, without ``find_unused_parameters``.
    """

    def __init__(self, patterns: Sequence[str] | str, num_epochs: int | None = None) -> None:
        self.patterns = [patterns] if isinstance(patterns, str) else list(patterns)
        if num_epochs is not None:
            check_integer("num_epochs", num_epochs, least=1)
        self.num_epochs = num_epochs
        self._norms: list[nn.Module] = []

    def freeze(self, model: nn.Module, *, is_frozen: bool = True) -> None:
        """Freeze the parameters, or let them train.

        Raises:
            ConfigError: If a pattern matches nothing.
        """
        bare = unwrap_model(model)
        root: nn.Module = bare.net if isinstance(bare, Supervised) else bare
        named = {name.replace("_orig_mod.", ""): one for name, one in root.named_parameters()}
        for pattern in self.patterns:
            found = [one for name, one in named.items() if fnmatchcase(name, pattern)]
            if not found:
                some = ", ".join(islice(named, _MOST_NAMED))
                raise ConfigError(
                    f"FreezeHook.patterns: {pattern!r} matches no parameter of "
                    f"{type(root).__name__}; there are {len(named)}: {some}, ..."
                )
            for parameter in found:
                parameter.requires_grad_(is_frozen is False)
        self._norms = list(_frozen_norms(root)) if is_frozen else []

    @override
    def before_train(self, runner: RunView) -> None:
        if self.num_epochs is not None and self.num_epochs >= runner.max_epochs:
            raise ConfigError(
                f"FreezeHook.num_epochs: {self.num_epochs} was given, and the run has "
                f"{runner.max_epochs} (a run by steps has one): nothing would thaw. Leave it out."
            )
        thaws = self.num_epochs is not None and runner.epoch < self.num_epochs
        is_ddp = isinstance(runner.model, DistributedDataParallel)
        if thaws and is_ddp and not runner.model.find_unused_parameters:
            raise ConfigError(
                "FreezeHook.num_epochs: DistributedDataParallel has to expect parameters that thaw "
                "later. Set find_unused_parameters=True."
            )
        if self.num_epochs is not None:
            self.freeze(runner.model, is_frozen=thaws)

    @override
    def before_train_epoch(self, runner: RunView) -> None:
        if runner.epoch == self.num_epochs:
            self.freeze(runner.model, is_frozen=False)
            runner.logger.info(f"FreezeHook: {', '.join(self.patterns)} train from now on.")

    @override
    def before_train_iter(self, runner: RunView, batch_idx: int, data_batch: Any = None) -> None:
        for norm in self._norms:  # the loop has put the whole model into training mode
            norm.training = False


def _frozen_norms(model: nn.Module) -> Iterator[nn.Module]:
    for module in model.modules():
        parameters = list(module.parameters(recurse=False))
        is_frozen = parameters and not any(one.requires_grad for one in parameters)
        if isinstance(module, _BATCH_NORMS) and is_frozen:
            yield module

"""The hook that tells of gradients that are far larger than usual."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer
from typing_extensions import override

from mm_runner.errors import ConfigError, TorchVersionError
from mm_runner.hooks._hook import Hook
from mm_runner.model import unwrap_model
from mm_runner.optim import named_wrappers

from ._watch import Spike, SpikeWatch

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["GradientSpikeHook"]

_NAMES_SHOWN = 2


class GradientSpikeHook(Hook):
    """Names the step and the parameter group whose gradients are far larger than usual.

    A spike is a norm above ``factor`` times its running mean, or one that is not finite. Norms,
    means and limits stay on the device; what was found is logged every ``interval`` steps. The
    gradients are those before clipping. An overflow under a loss scaler, which leaves that step out
    by itself, is no spike.

    Args:
        policy: ``"warn"`` (the default), or ``"skip"``, which also sets all gradients of that
            optimizer's step to zero: only momentum and weight decay act then. All ranks skip the
            same steps.
        factor: Defaults to 10.
        momentum: Weight of a new norm in the running mean. Defaults to 0.02.
        warmup: Steps before the first that can be a spike. Defaults to 100.
        interval: Steps between two looks at what was found. Defaults to 50.

    Raises:
        ConfigError: If an argument is out of its range.
        TorchVersionError: If torch is older than 2.1.
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
        for name, value, least in (("warmup", warmup, 0), ("interval", interval, 1)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(
                    f"GradientSpikeHook.{name}: an integer >= {least} is needed, got {value!r}."
                )
        # torch 2.0 has hooks of a step, but calls those of the first optimizer for all.
        if torch.__version__ < "2.1":
            raise TorchVersionError(
                f"GradientSpikeHook: torch {torch.__version__} is installed, and optimizers tell "
                "of their steps from 2.1 on. Upgrade it, or give clip_grad, which logs the norm of "
                "all gradients."
            )
        self.policy = policy
        self.interval = interval
        self._options: dict[str, Any] = {"factor": factor, "momentum": momentum, "warmup": warmup}
        self._watches: dict[str, SpikeWatch] = {}
        self._loaded: dict[str, Any] = {}

    @override
    def before_train(self, runner: RunView) -> None:
        for name, wrapper in named_wrappers(runner.optim_wrapper).items():
            # Clipping hides a spike from whoever looks after it.
            clips = bool(getattr(wrapper, "clip_grad", None))
            watch = SpikeWatch(
                wrapper.optimizer,
                skips=self.policy == "skip",
                before_clipping=wrapper if clips else None,
                **self._options,
            )
            if name in self._loaded:
                watch.load_state_dict(self._loaded[name])
            self._watches[name] = watch

    @override
    def before_train_iter(self, runner: RunView, batch_idx: int, data_batch: Any = None) -> None:
        for watch in self._watches.values():
            watch.step = runner.iter + 1

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        if self.every_n_train_iters(runner, self.interval):
            self._tell(runner)

    @override
    def after_train(self, runner: RunView) -> None:
        self._tell(runner)
        for watch in self._watches.values():
            watch.remove()
        self._watches = {}

    @override
    def state_dict(self) -> dict[str, Any]:
        return {name: watch.state_dict() for name, watch in self._watches.items()}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = state_dict

    def _tell(self, runner: RunView) -> None:
        for name, watch in self._watches.items():
            for spike in watch.read():
                runner.logger.warning(
                    f"GradientSpikeHook: step {spike.step}, {f'{name}, ' if name else ''}"
                    f"{_describe(runner, watch.optimizer, spike)}"
                    f"{'; its gradients were set to zero' if self.policy == 'skip' else ''}."
                )


def _describe(runner: RunView, optimizer: Optimizer, spike: Spike) -> str:
    names = {id(one): name for name, one in unwrap_model(runner.model).named_parameters()}
    members = [names.get(id(one), "?") for one in optimizer.param_groups[spike.group]["params"]]
    shown = ", ".join(members[:_NAMES_SHOWN])
    more = f" and {len(members) - _NAMES_SHOWN} more" if len(members) > _NAMES_SHOWN else ""
    times = f"{spike.norm / spike.usual:.3g} times" if spike.usual > 0 else "not"
    return (
        f"parameter group {spike.group} ({shown}{more}): the gradients' norm was {spike.norm:.4g}, "
        f"{times} its running mean of {spike.usual:.4g}"
    )

"""A running average of the weights, which validations, tests and checkpoints use.

In a checkpoint it is laid out as in MMEngine's: ``state_dict`` holds the averages,
``ema_state_dict`` the model's own weights under ``module.<name>`` and the number of updates under
``steps``; and an average that is kept in another type than its parameter under ``average.<name>``.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from torch import nn
from typing_extensions import override

from mm_runner.errors import CheckpointError, ConfigError
from mm_runner.optim import named_wrappers
from mm_runner.registry import MODELS, build_from_cfg, check_integer

from ._hook import Hook

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

_KEY = "ema_state_dict"
_OWN, _AVERAGE = "module.", "average."


class EMAHook(Hook):
    """Keeps a running average of the weights, validates and tests with it, and saves it.

    A checkpoint's ``state_dict`` is the average; a resumed run takes its own weights from
    ``ema_state_dict``. The average moves when an optimizer steps: not while micro-batches
    accumulate, and not after an overflow.

    Args:
        ema_type: ``"ExponentialMovingAverage"``, ``"StochasticWeightAverage"``,
            ``"MomentumAnnealingEMA"``, or a subclass of :class:`mm_runner.model.AveragedWeights`.
        strict_load: Raise if a resumed average does not fit. By default it restarts with a warning.
        begin_iter: First iteration, counted from 1, that is averaged. Defaults to 0: all are.
        begin_epoch: First epoch that is averaged, instead of ``begin_iter``.
        **kwargs: Arguments of ``ema_type``, such as ``momentum``, ``interval``, ``update_buffers``.

    Attributes:
        ema_model: The average; ``None`` before training.

    Raises:
        ConfigError: If an argument does not fit.
        ComponentNotFoundError: If ``ema_type`` names nothing.
    """

    only_one = True

    def __init__(
        self,
        ema_type: str | type[Any] = "ExponentialMovingAverage",
        strict_load: bool = False,  # noqa: FBT001, FBT002 - MMEngine's signature
        begin_iter: int = 0,
        begin_epoch: int = 0,
        **kwargs: Any,
    ) -> None:
        check_integer("EMAHook.begin_iter", begin_iter, least=0)
        check_integer("EMAHook.begin_epoch", begin_epoch, least=0)
        if begin_iter and begin_epoch:
            raise ConfigError("EMAHook: begin_iter and begin_epoch were given; give one of them.")
        self.strict_load = strict_load
        self.begin_iter, self.begin_epoch = begin_iter, begin_epoch
        self._cfg = {"type": ema_type, **kwargs}
        # Arguments are checked before the model is built.
        build_from_cfg(self._cfg, MODELS, {"model": nn.Linear(1, 1)}, where="EMAHook")
        self.ema_model: Any = None
        self._loaded: dict[str, Any] = {}
        self._counts: dict[str, int] = {}

    @override
    def before_train(self, runner: RunView) -> None:
        self.ema_model = build_from_cfg(self._cfg, MODELS, {"model": runner.model}, where="EMAHook")
        if self._loaded.get("steps"):  # else averaging had not begun
            try:
                self.ema_model.load(**self._loaded)
            except CheckpointError as error:
                if self.strict_load:
                    raise
                runner.logger.warning(f"EMAHook: {error} The average restarts.")
        self._loaded, self._counts = {}, {}

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        if runner.epoch + 1 < self.begin_epoch or runner.iter + 1 < self.begin_iter:
            return
        stepped = []
        for name, wrapper in named_wrappers(runner.optim_wrapper).items():
            # One of several wrappers that did not run keeps its last result.
            has_run = not name or wrapper.inner_count != self._counts.get(name, 0)
            self._counts[name] = wrapper.inner_count
            if has_run and wrapper.last_result is not None:
                stepped.append(wrapper.last_result.stepped)
        if stepped:
            self.ema_model.update(reduce(or_, stepped))

    @override
    def _before_epoch(self, runner: RunView, mode: str = "train") -> None:
        if mode != "train" and self.ema_model is not None:
            self.ema_model.apply()

    @override
    def _after_epoch(self, runner: RunView, mode: str = "train") -> None:
        if mode != "train":
            self.clean_up(runner)

    @override
    def clean_up(self, runner: RunView) -> None:
        if self.ema_model is not None:  # a validation may have failed
            self.ema_model.restore()

    @override
    def before_save_checkpoint(self, runner: RunView, checkpoint: dict[str, Any]) -> None:
        average = self.ema_model
        if average is None:
            return
        # Of a sharded model empty on other than the first process, or spread over all.
        weights = checkpoint["state_dict"]
        whole = not any(hasattr(one, "full_tensor") for one in weights.values())
        own = average.tensors(own=True, whole=whole) if average.is_applied else dict(weights)
        saved: dict[str, Any] = {"steps": average.steps}
        for name, mean in (average.tensors(whole=whole) if average.averages else {}).items():
            if name in weights:
                saved[f"{_OWN}{name}"] = own[name]
                if mean.dtype != weights[name].dtype:
                    saved[f"{_AVERAGE}{name}"] = mean
                weights[name] = mean.to(weights[name].dtype)
        # Without the optimizer's state nothing can be resumed, so own weights are left out.
        if "optimizer" in checkpoint:
            checkpoint[_KEY] = saved

    @override
    def after_load_checkpoint(self, runner: RunView, checkpoint: dict[str, Any]) -> None:
        if not runner.is_resuming:
            return
        saved = checkpoint.pop(_KEY, None)
        if saved is None:
            runner.logger.warning(
                "EMAHook: the checkpoint has no average; it restarts from the weights."
            )
            return
        weights, averages = checkpoint["state_dict"], {}
        for key, value in saved.items():
            name = key.removeprefix(_OWN)
            if key.startswith(_OWN) and name in weights:
                averages[name] = saved.get(f"{_AVERAGE}{name}", weights[name])
                weights[name] = value
        self._loaded = {"averages": averages, "steps": saved.get("steps", 0)}

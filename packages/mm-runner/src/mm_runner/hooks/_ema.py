"""A running average of the weights, which validations, tests and checkpoints use.

In a checkpoint it is laid out as in MMEngine's: ``state_dict`` holds the averages,
``ema_state_dict`` the model's own weights under ``module.<name>`` and the number of updates under
``steps`` (of several optimizer wrappers ``steps.<wrapper>``); and an average that is kept in
another type than its parameter under ``average.<name>``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn
from typing_extensions import override

from mm_runner.errors import CheckpointError, ConfigError
from mm_runner.model import AveragedWeights, unwrap_model
from mm_runner.optim import named_wrappers
from mm_runner.registry import MODELS, build_from_cfg, check_cfg

from ._hook import Hook, check_integer

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["EMAHook"]

_KEY = "ema_state_dict"
_OWN, _AVERAGE, _STEPS = "module.", "average.", "steps"


class EMAHook(Hook):
    """Keeps a running average of the weights, validates and tests with it, and saves it.

    Validations and tests within the run use the average, and restore the model's own weights
    afterwards. A checkpoint's ``state_dict`` is the average too, which is what a deployment wants;
    a resumed run takes its own weights from ``ema_state_dict``.

    The average moves when the optimizer steps: not while micro-batches accumulate, and not where
    gradients overflowed. Of several optimizer wrappers, the parameters of each are averaged as
    often as it steps. DDP's ranks have the same average, those of a sharded model each its part.

    Args:
        ema_type: ``"ExponentialMovingAverage"`` (the default), ``"StochasticWeightAverage"``,
            ``"MomentumAnnealingEMA"``, or a subclass of :class:`mm_runner.model.AveragedWeights`.
        strict_load: Whether a resumed run needs the average to fit; by default it restarts with
            a warning.
        begin_iter: First iteration, counted from 1, that is averaged. Defaults to 0: all are.
        begin_epoch: First epoch that is averaged, instead of ``begin_iter``.
        **kwargs: Arguments of ``ema_type``, such as ``momentum``, ``interval``, ``update_buffers``.

    Raises:
        ConfigError: If an argument does not fit; and when training begins, if there is another
            such hook.
        ComponentNotFoundError: If ``ema_type`` names nothing.

    Example:
        >>> hook = EMAHook(momentum=0.001, begin_epoch=2)  # or dict(type="EMAHook", momentum=0.001)
    """

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
            raise ConfigError(
                f"EMAHook: begin_iter={begin_iter} and begin_epoch={begin_epoch} were given; give "
                "one of them."
            )
        self.strict_load = strict_load
        self.begin_iter, self.begin_epoch = begin_iter, begin_epoch
        self._cfg = {"type": ema_type, **kwargs}
        component, _ = check_cfg(self._cfg, MODELS, {"model": nn.Identity()}, where="EMAHook")
        if isinstance(component, type) and issubclass(component, AveragedWeights):
            build_from_cfg(self._cfg, MODELS, {"model": nn.Linear(1, 1)}, where="EMAHook")
        self.averages: dict[str, AveragedWeights] = {}
        self._loaded: dict[str, Any] | None = None
        self._counts: dict[str, int] = {}

    @override
    def before_train(self, runner: RunView) -> None:
        if any(isinstance(one, EMAHook) and one is not self for one in runner.hooks):
            raise ConfigError(
                "EMAHook: two of them were given; a model and its checkpoints hold one average. "
                "Leave one out."
            )
        for name, begin, end in (
            ("begin_epoch", self.begin_epoch, runner.max_epochs),
            ("begin_iter", self.begin_iter, runner.max_iters),
        ):
            if begin > end:
                raise ConfigError(
                    f"EMAHook.{name}: {begin} was given, and the run ends at {end}; nothing would "
                    "be averaged."
                )
        self.averages = self._build(runner)
        self._counts = {}
        if self._loaded is not None:
            self._resume(runner, self._loaded)
            self._loaded = None

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        if self.begin_epoch:
            has_begun = runner.epoch + 1 >= self.begin_epoch
        else:
            has_begun = runner.iter + 1 >= self.begin_iter
        if not has_begun:
            return
        wrappers = named_wrappers(runner.optim_wrapper)
        for name, average in self.averages.items():
            wrapper = wrappers[name]
            # One of several wrappers that did not run keeps its last result.
            has_run = not name or wrapper.inner_count != self._counts.get(name, 0)
            self._counts[name] = wrapper.inner_count
            if has_run and wrapper.last_result is not None:
                average.update(wrapper.last_result.stepped)

    @override
    def _before_epoch(self, runner: RunView, mode: str = "train") -> None:
        if mode != "train":
            for average in self.averages.values():
                average.apply()

    @override
    def _after_epoch(self, runner: RunView, mode: str = "train") -> None:
        if mode != "train":
            self.clean_up(runner)

    @override
    def clean_up(self, runner: RunView) -> None:
        for average in self.averages.values():  # a validation may have failed
            average.restore()

    @override
    def before_save_checkpoint(self, runner: RunView, checkpoint: dict[str, Any]) -> None:
        names = _names_in_checkpoint(unwrap_model(runner.model))
        # Of a sharded model empty on other than the first process, or spread over all.
        weights = checkpoint["state_dict"]
        is_whole = not any(hasattr(one, "full_tensor") for one in weights.values())
        saved: dict[str, Any] = {}
        for wrapper, average in self.averages.items():
            saved[f"{_STEPS}.{wrapper}" if wrapper else _STEPS] = average.steps
            if not average.has_begun:
                continue
            tensors = average.full_tensors if is_whole else average.spread_tensors
            own = tensors(own=True) if average.is_applied else dict(weights)
            for first, mean in tensors().items():
                for name in names.get(first, [first]):
                    if name in weights:
                        saved[f"{_OWN}{name}"] = own.get(first)
                        if mean.dtype != weights[name].dtype:
                            saved[f"{_AVERAGE}{name}"] = mean
                        weights[name] = mean.to(weights[name].dtype)
        # Without the optimizer's state nothing can be resumed, so own weights are left out.
        if self.averages and "optimizer" in checkpoint:
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
        weights, averages, steps = checkpoint["state_dict"], {}, {}
        for key, value in saved.items():
            name = key.removeprefix(_OWN)
            if key.startswith(_OWN) and name in weights:
                averages[name] = saved.get(f"{_AVERAGE}{name}", weights[name])
                weights[name] = value
            elif key == _STEPS or key.startswith(f"{_STEPS}."):
                steps[key.removeprefix(_STEPS).removeprefix(".")] = value
        self._loaded = {"averages": averages, "steps": steps}

    def _build(self, runner: RunView) -> dict[str, AveragedWeights]:
        wrappers = named_wrappers(runner.optim_wrapper)
        averages = {}
        for index, (name, wrapper) in enumerate(wrappers.items()):
            arguments: dict[str, Any] = {"model": runner.model}
            if len(wrappers) > 1:
                groups = wrapper.param_groups
                arguments["parameters"] = [one for group in groups for one in group["params"]]
                if index:  # buffers belong to no optimizer; they go with the first
                    arguments["update_buffers"] = False
            averages[name] = build_from_cfg({**self._cfg, **arguments}, MODELS, where="EMAHook")
        return averages

    def _resume(self, runner: RunView, loaded: dict[str, Any]) -> None:
        of_all = loaded["steps"].get("")  # MMEngine counts them once for all optimizers
        for name, average in self.averages.items():
            steps = loaded["steps"].get(name, of_all)
            if not steps:  # averaging had not begun
                continue
            try:
                average.load_full_tensors(loaded["averages"], steps)
            except CheckpointError as error:
                if self.strict_load:
                    raise
                runner.logger.warning(f"EMAHook: {error} The average restarts.")


def _names_in_checkpoint(module: nn.Module) -> dict[str, list[str]]:
    """Return all names of each tensor by its first; a shared parameter has several."""
    names: dict[int, list[str]] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        names.setdefault(id(tensor), []).append(name.replace("_orig_mod.", ""))
    return {one[0]: one for one in names.values()}

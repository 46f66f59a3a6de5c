"""Schedule of one setting of an optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from mm_runner.errors import CheckpointError, ComponentNotFoundError, ConfigError
from mm_runner.registry import PARAM_SCHEDULERS, check_arguments

from ._group_values import GroupValues
from ._names import family_of, schedule_names
from ._plateau import ReduceOnPlateau
from ._shape import Shape, ShapeDriver
from ._torch_driver import TorchDriver
from ._window import RunLength, Window, take_window

if TYPE_CHECKING:
    from torch.optim import Optimizer

__all__ = ["ParamScheduler"]

_Ours = ShapeDriver | ReduceOnPlateau
_Driver = _Ours | TorchDriver


class ParamScheduler:
    """Changes a setting of the optimizer within the window ``begin <= count < end``.

    Each step goes on from the current value, so several schedules may follow one another or act at
    once, one per iteration and another per epoch.

    Args:
        optimizer: Whose parameter groups are scheduled.
        cfg: ``dict(type=..., begin=0, end=..., by_epoch=True, **arguments)``. ``type`` is
            MMEngine's name of a family for the learning rate (``"CosineAnnealingLR"``), the
            momentum (``"CosineAnnealingMomentum"``) or, with ``param_name``, any number of a
            parameter group (``"CosineAnnealingParamScheduler"``): Constant, CosineAnnealing,
            CosineRestart, Exponential, Linear, MultiStep, OneCycle, Poly, ReduceOnPlateau, Step.
            Any other class of ``torch.optim.lr_scheduler``, and one of these with arguments that
            only torch's has, is torch's own. ``convert_to_iter_based=True`` turns a schedule
            written in epochs into one by iteration.
        num_epochs: Epochs of the run, the default ``end`` of a schedule by epoch.
        num_iters: Iterations of the run, the default ``end`` of a schedule by iteration.
        epoch_length: Iterations of an epoch. Defaults to ``num_iters // num_epochs``.
        where: Path of ``cfg`` in the configuration, for messages.

    Attributes:
        optimizer: See above.
        by_epoch: Whether :meth:`step` is to be called after each epoch, else after each iteration.
        begin: See above.
        end: See above.
        where: Path of the config.

    Raises:
        ConfigError: If the window is empty or an argument does not fit.
        ComponentNotFoundError: If ``type`` names nothing.

    Example:
        >>> optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
        >>> cfg = dict(type="LinearLR", start_factor=0.5, end=3)
        >>> warm_up = ParamScheduler(optimizer, cfg, num_epochs=9, num_iters=90)
        >>> warm_up.step()
        >>> optimizer.param_groups[0]["lr"]
        0.75
    """

    def __init__(
        self,
        optimizer: Optimizer,
        cfg: Mapping[str, Any],
        *,
        num_epochs: int,
        num_iters: int,
        epoch_length: int | None = None,
        where: str = "param_scheduler",
    ) -> None:
        self.optimizer = optimizer
        if cfg.get("type") is None:
            raise ConfigError(
                f"{where}: the key 'type' is missing; given: "
                f"{', '.join(map(repr, cfg)) or 'nothing'}. It names a schedule: "
                f"{', '.join(schedule_names())}, or a class of torch.optim.lr_scheduler."
            )
        arguments = dict(cfg)
        run = RunLength(num_epochs, num_iters, epoch_length)
        window = take_window(arguments, run, where)
        self.by_epoch, self.begin, self.end = window.by_epoch, window.begin, window.end
        self.where = where
        self._driver = _build_driver(optimizer, arguments, window, where)
        self._has_own_end = cfg.get("end") is not None
        # A run by iterations is as long as it says, whatever its data.
        counts_epochs = epoch_length is not None and num_iters == num_epochs * epoch_length
        self._epoch_length = epoch_length if counts_epochs else None
        self._last_step = window.last_step
        self._count = max(window.last_step, 0)
        self.start()

    @property
    def need_val_args(self) -> bool:
        """Whether it follows a metric, by :meth:`follow`."""
        return isinstance(self._driver, ReduceOnPlateau)

    @property
    def monitor(self) -> str | None:
        """Name of the metric that it follows."""
        return self._driver.monitor if isinstance(self._driver, ReduceOnPlateau) else None

    @property
    def setting(self) -> str:
        """Name of what it changes, such as ``"lr"``."""
        return self._driver.setting

    def start(self) -> None:
        """Set the first values if the window begins with the run; the constructor does this."""
        if self.begin == 0 and self._last_step < 0:
            self._driver.start()

    def step(self) -> None:
        """Count one epoch or iteration, and change the value if inside the window."""
        self._count += 1
        if self._count == self.begin:
            self._driver.start()
        elif self.begin < self._count < self.end:
            self._driver.advance(self._count - self.begin)

    def follow(self, metrics: Mapping[str, Any]) -> None:
        """Take in the results of a validation; for a schedule that :attr:`need_val_args`.

        Raises:
            ConfigError: If the metric that it follows is not among them, or no number.
        """
        if not isinstance(self._driver, ReduceOnPlateau):
            return
        # Without an end of its own it follows every validation: a run by iterations counts one
        # epoch, when it ends, and may be resumed with more iterations.
        if self.begin <= self._count and (self._count < self.end or not self._has_own_end):
            self._driver.follow(metrics, self._count)

    def rewind(self) -> int:
        """Go back to the beginning, where groups have their initial values.

        :meth:`start` has to follow, once all schedules of the optimizer are there.

        Returns:
            How many steps were taken.
        """
        first = max(self._last_step, 0)
        done, self._count = self._count - first, first
        self._driver.rewind()
        return done

    def repeat(self) -> None:
        """Repeat the changes that metrics made at this count; for other schedules do nothing."""
        if isinstance(self._driver, ReduceOnPlateau):
            self._driver.repeat(self._count)

    def state_dict(self) -> dict[str, Any]:
        """Return the position and the window, in primitives; arguments are not repeated."""
        return {
            "count": self._count,
            "begin": self.begin,
            "end": self.end,
            "epoch_length": self._epoch_length,
            "scheduler": self._driver.state_dict(),
        }

    def has_other_window(self, state_dict: Mapping[str, Any]) -> bool:
        """Return whether a state is of a schedule with another window.

        One that only counts the same epochs in steps of another length is none.
        """
        before, now = state_dict["epoch_length"], self._epoch_length
        if self.by_epoch or not before or not now:
            before = now = 1
        # Each by itself: after a warm-up of so many steps, a schedule may end with the epochs.
        return any(
            own != saved and own * before != saved * now
            for own, saved in ((self.begin, state_dict["begin"]), (self.end, state_dict["end"]))
        )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the position. The values themselves are the optimizer's state."""
        if not {"count", "scheduler"} <= state_dict.keys():
            raise CheckpointError(
                f"{self.where}: the checkpoint's state of this schedule has the keys "
                f"{', '.join(map(str, state_dict)) or 'none'}; one that mm-runner wrote is needed. "
                "Take the weights alone by load_from without resume."
            )
        self._count = state_dict["count"]
        self._driver.load_state_dict(state_dict["scheduler"])


def _build_driver(
    optimizer: Optimizer, arguments: dict[str, Any], window: Window, where: str
) -> _Driver:
    kind = arguments.get("type")
    setting: str | None = "lr"
    if isinstance(kind, str):
        kind, setting = _resolve(kind, arguments, where)
    if isinstance(kind, type) and issubclass(kind, (Shape, ReduceOnPlateau)):
        return _build_ours(optimizer, kind, setting, arguments, window, where)
    if isinstance(kind, type) and issubclass(kind, ReduceLROnPlateau):
        raise ConfigError(
            f"{where}: torch's ReduceLROnPlateau does not say which metric it follows; use "
            "dict(type='ReduceOnPlateauLR', monitor=...), and rule for mode, min_value for min_lr."
        )
    if window.factor != 1:
        raise ConfigError(
            f"{where}.convert_to_iter_based: which arguments of {arguments.get('type')!r} count "
            "epochs is not known; write them in iterations, with by_epoch=False."
        )
    return TorchDriver(optimizer, arguments, where)


def _resolve(name: str, arguments: dict[str, Any], where: str) -> tuple[Any, str | None]:
    """Return the family or class of a name, and its setting if the name says it."""
    if name not in PARAM_SCHEDULERS.module_dict:  # the user's own wins
        found = family_of(name, arguments)
        if found is not None:
            return found
    if name == ReduceLROnPlateau.__name__:  # until torch 2.1 it was no scheduler by its class
        return ReduceLROnPlateau, "lr"
    try:
        return PARAM_SCHEDULERS.get(name, others=schedule_names()), "lr"
    except ComponentNotFoundError as error:
        raise ComponentNotFoundError(f"{where}.type: {error}") from error


def _build_ours(
    optimizer: Optimizer,
    family: type[Any],
    setting: str | None,
    arguments: dict[str, Any],
    window: Window,
    where: str,
) -> _Ours:
    name = arguments.pop("type")
    setting = setting or arguments.pop("param_name", None)
    if setting is None:
        raise ConfigError(
            f"{where}.param_name: {name} needs the name of a setting, such as 'weight_decay'."
        )
    if issubclass(family, ReduceOnPlateau) and not window.by_epoch:
        raise ConfigError(
            f"{where}: a schedule that follows a metric counts epochs; leave out by_epoch=False "
            "and convert_to_iter_based."
        )
    check_arguments(family, arguments, where, name=str(getattr(name, "__name__", name)))
    for key in getattr(family, "in_epochs", ()):
        if arguments.get(key) is not None:
            arguments[key] = _times(arguments[key], window.factor)
    try:
        values = GroupValues(optimizer, setting)
        if not issubclass(family, ReduceOnPlateau):
            return ShapeDriver(values, family(window.length, **arguments))
        return family(values, where, **arguments)
    except (ConfigError, TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from error


def _times(value: Any, factor: int) -> Any:
    return [one * factor for one in value] if isinstance(value, (list, tuple)) else value * factor

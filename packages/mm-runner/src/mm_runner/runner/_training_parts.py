"""How a training comes by its parts: as configured, or as a script or a hook has assigned them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from mm_runner.errors import ConfigError
from mm_runner.hooks import ParamSchedulerHook
from mm_runner.optim import named_wrappers

from ._assigned_checks import (
    are_schedules,
    as_listed,
    check_loop,
    check_schedules,
    check_seed_of_loop,
    check_steps_left,
    drives_another,
    listed,
    set_place,
)
from ._build_steps import BuildSteps
from ._built_schedules import BuiltSchedules
from ._optimizers import check_wrapper_of_run
from ._overrides import built_by, step_of_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ._data_begin import DataBegin
    from ._lazy_loops import EarlyTrainLoop

__all__ = ["TrainingParts"]

_EVAL_LOOPS = ("val_loop", "test_loop")
_OF_LOOPS = frozenset(
    (
        *(f"{phase}_dataloader" for phase in ("train", "val", "test")),
        "val_evaluator",
        "test_evaluator",
    )
)
_PARTS = frozenset((*_EVAL_LOOPS, "train_loop", "optim_wrapper", "param_schedulers"))


def _other_name(name: str) -> Any:
    return property(lambda run: getattr(run, name), lambda run, value: setattr(run, name, value))


class TrainingParts(BuildSteps):
    """Goes through ``build_order``, and takes what was assigned instead of what is configured.

    A part may be assigned itself, or as its config. It is used by the next training, and by those
    that follow until one has ended well; one that a hook assigns in ``before_run``, by that which
    begins. An evaluation loop stays.
    """

    # MMEngine's own attributes, which scripts assign there.
    _train_loop: Any = _other_name("train_loop")
    _val_loop: Any = _other_name("val_loop")
    _test_loop: Any = _other_name("test_loop")

    @property
    def _randomness_cfg(self) -> dict[str, Any]:
        return self._seed.configured

    # Optimizers whose rates train() has scaled: one that was given may be there a second time, and
    # a hook may put another wrapper around it.
    _scaled: WeakValueDictionary[int, Any]
    # What lies in param_schedulers; others may put more into it.
    _known_schedules: list[Any]
    # Those that train() has built itself, until it has ended well.
    _built_schedules: BuiltSchedules | None = None
    _data_begin: DataBegin
    # The loop that was only asked for, once a training has used it.
    _asked: EarlyTrainLoop | None = None
    is_resuming: bool

    def __setattr__(self, name: str, value: Any) -> None:
        # Instead of properties: what steps read stays a plain attribute, which costs them nothing.
        # A subclass may set some before the constructor runs, which are its own affair.
        if name in _PARTS and "_assigned" in vars(self):
            self._assign(name, value)
        elif name in _OF_LOOPS and getattr(getattr(type(self), name), "fset", self) is None:
            phase, _, part = name.partition("_")
            raise ConfigError(
                f"{name} was assigned to the Runner, and is its {phase} loop's: assign "
                f"runner.{phase}_loop.{part}."
            )
        else:
            super().__setattr__(name, value)
            if name == "model":
                self._follow_model()

    def _assign(self, name: str, value: Any) -> None:
        parts = self._assigned
        if parts.is_ending and name not in _EVAL_LOOPS:
            parts.defer(name, value)  # hooks still tell of what has trained
            return
        if value is None and name in ("train_loop", "optim_wrapper") and parts.is_training:
            raise ConfigError(f"{name}: None was assigned in a training, which needs one.")
        if name == "optim_wrapper":
            self._assign_wrapper(value)
        elif name == "param_schedulers":
            with parts.unless_it_fails():
                self._assign_schedules(as_listed(value))
        elif name == "train_loop":
            self._check_loop_or_cfg(name, value)
            if parts.are_settled:
                raise ConfigError(
                    "train_loop was assigned while one is training. Assign it before train(), or "
                    "in before_run of a hook."
                )
            if value is None:
                parts.forget(name)
            else:
                if not isinstance(value, Mapping):
                    check_loop(value)
                parts.note(name, value)
            self._keep_loop(name, value)
        else:
            self._assign_eval_loop(name, value)

    def _follow_model(self) -> None:
        """Let a training under way take its steps with the model that was assigned."""
        parts = vars(self).get("_assigned")
        if parts is None or not parts.are_settled:
            return
        # One that validates, or none at the end, trains nothing.
        if self.model is not None and not getattr(self.train_loop, "is_validating", False):
            self._tell_what_is_trained()
        if hasattr(self.train_loop, "renew_step"):
            self.train_loop.renew_step()

    def _tell_what_is_trained(self) -> None:
        own = {*map(id, self.model.parameters())}
        wrappers = named_wrappers(self.optim_wrapper).values()
        trained = [
            {id(one) for group in wrapper.param_groups for one in group["params"]}
            for wrapper in wrappers
        ]
        if any(own.isdisjoint(group) for group in trained):
            self.logger.warning(
                "model was assigned while training: optim_wrapper goes on with the parameters of "
                "the one before, until it is assigned as well."
            )

    def _assign_wrapper(self, wrapper: Any) -> None:
        parts, name = self._assigned, "optim_wrapper"
        if wrapper is None:
            parts.forget(name)
            self._keep_part(name, None)
            return
        is_built = hasattr(wrapper, "update_params")
        if parts.is_training and not is_built:  # hooks may ask for it at once
            wrapper, is_built = built_by(self, "build_optim_wrapper", wrapper), True
        if parts.are_settled:
            check_wrapper_of_run(self.model, wrapper)
            if wrapper is not self.optim_wrapper:
                self._drop_gradients()
                # During the hooks after a step it is done, and the loop does not count it yet.
                done = max(self.iter, getattr(self.train_loop, "_iters_done", 0))
                wrapper.initialize_count_status(self.model, done, self.max_iters)
            if _leave_alone(wrapper, self.param_schedulers):
                self.logger.warning(
                    "optim_wrapper was assigned while training: the schedules go on changing the "
                    "one before it, until param_schedulers is assigned as well."
                )
        parts.note(name, wrapper)
        self._keep_part(name, wrapper if is_built else None)

    def _drop_gradients(self) -> None:
        """Leave no gradients of an unfinished window to another wrapper: they may be scaled."""
        if not self.holds_gradients:
            return
        for one in named_wrappers(self.optim_wrapper).values():
            one.zero_grad()
        self.logger.warning(
            "optim_wrapper was assigned amid a window of the one before, which accumulates: the "
            "gradients since its last step are dropped. Assign it where runner.holds_gradients is "
            "False to keep all."
        )

    def _assign_schedules(self, value: Any) -> None:
        parts = self._assigned
        before, built = self.param_schedulers, self._built_schedules
        parts.note("param_schedulers", value)
        self._keep_schedules(value if are_schedules(value) else [])
        if parts.are_settled:
            try:
                self._take_schedules()
            except BaseException:  # a hook may go on with those that were there
                if self._built_schedules is not built:
                    self._undo_schedules()
                self._built_schedules = built
                self._keep_schedules(before)
                raise

    def _assign_eval_loop(self, name: str, loop: Any) -> None:
        self._check_loop_or_cfg(name, loop)
        phase = name.partition("_")[0]
        if isinstance(loop, Mapping):
            self._check_configured(phase, f"build_{name}")
            {"val": self._val, "test": self._test}[phase][f"{phase}_cfg"] = loop
        self._keep_loop(name, loop)

    def _keep_loop(self, name: str, loop: Any) -> None:
        vars(self).pop(name, None)
        is_asked_for = isinstance(loop, Mapping) or (loop is None and name == "train_loop")
        if not is_asked_for:  # else it is built when it is
            self._keep_part(name, loop)

    def _check_loop_or_cfg(self, name: str, loop: Any) -> None:
        if not (loop is None or isinstance(loop, Mapping) or hasattr(loop, "run")):
            raise ConfigError(
                f"{name}: {loop!r} was assigned; a loop, which has run(), or the config of one is "
                f"needed. In a script: runner.{name} = runner.build_{name}(cfg)."
            )

    def _keep_schedules(self, schedules: Any) -> None:
        self._keep_part("param_schedulers", schedules)
        self._known_schedules = listed(schedules)

    # How train() goes through them.

    @contextmanager
    def _with_parts(self) -> Iterator[None]:
        """Train in the block; what was assigned for it counts until it ends well."""
        try:
            with self._assigned.training(self):
                yield
            self._built_schedules = None
        finally:
            self._data_begin.end()
            # What hooks have put into the list was for this training, or is noted.
            self._known_schedules = listed(self.param_schedulers)
            for name, value in self._assigned.take_deferred().items():
                self._assign(name, value)

    def _build_training(self) -> None:
        own: dict[str, Callable[[], Any]] = {
            "build_train_loop": self._take_train_loop,
            "build_optim_wrapper": self._take_optim_wrapper,
            "scale_lr": self._scale_rates,
            "build_param_scheduler": self._take_schedules,
            "build_val_loop": lambda: self.build_loop("val"),
        }
        for name in own:
            times = self.build_order.count(name)
            if times != 1:
                raise ConfigError(
                    f"{type(self).__name__}.build_order: {name!r} is there {times} times; each of "
                    f"{', '.join(own)} is needed once."
                )
        self._note_more_schedules()
        with self._assigned.building():
            for name in self.build_order:
                step = own.get(name) or step_of_order(self, name)
                step()

    def _take_from_hooks(self) -> None:
        """Use what hooks have assigned in ``before_run``, and let what goes by it follow."""
        self._note_more_schedules()
        names = self._assigned.from_hooks()
        with self._assigned.building():
            if "train_loop" in names:
                self._take_train_loop()
            if "optim_wrapper" in names:
                self._take_optim_wrapper()
                self._scale_rates()
            if names:
                self._take_schedules()
        self._data_begin.begin(self.train_loop, is_resuming=self.is_resuming)

    def _take_train_loop(self) -> None:
        run: Any = self
        parts, early = self._assigned, self._early
        self._early = None
        assigned = parts.get("train_loop")
        asked, self._asked = self._asked, None
        if asked is not None and asked.loop is assigned:
            if asked.has_seed_of(run):
                self._asked = asked
            else:  # nobody has assigned it
                parts.forget_kept("train_loop")
                assigned = parts.get("train_loop")
        if early is not None and vars(self).get("train_loop") is early.loop:
            loop = early.begin(run)
            check_loop(loop)
            if assigned is not loop:
                self._asked = early
            parts.keep("train_loop", loop)  # what a script has changed of it counts likewise
            parts.place("train_loop")
        elif hasattr(assigned, "run"):
            loop = assigned
            check_seed_of_loop(run, loop, early)
            set_place(loop, *parts.place("train_loop"))
            if not self.is_resuming:
                check_steps_left(loop)
        else:
            with self._constructing("train"):
                cfg = self._train["train_cfg"] if assigned is None else assigned
                loop = built_by(run, "build_train_loop", cfg)
            check_loop(loop)
        self._keep_part("train_loop", loop)

    def _take_optim_wrapper(self) -> None:
        assigned = self._assigned.get("optim_wrapper")
        self._undo_schedules()  # the wrapper may be the one of a training that failed
        if "param_schedulers" not in self._assigned:
            self._keep_schedules([])  # those of a training before
        if not hasattr(assigned, "update_params"):
            cfg = self._train["optim_wrapper"] if assigned is None else assigned
            assigned = built_by(self, "build_optim_wrapper", cfg)
        elif self._assigned.is_used("optim_wrapper") and not self.is_resuming:
            self.logger.warning(
                "optim_wrapper, which was assigned, goes on as the training that failed left it. "
                "Its config, if that is assigned, is built anew each time."
            )
        check_wrapper_of_run(self.model, assigned)
        self._keep_part("optim_wrapper", assigned)

    def _scale_rates(self) -> None:
        wrappers = list(named_wrappers(self.optim_wrapper).values())
        fresh = [one for one in wrappers if not self._is_scaled(one)]
        for one in [self.optim_wrapper] if len(fresh) == len(wrappers) else fresh:
            self.scale_lr(one, self._auto_scale_lr)
        for one in fresh:
            if hasattr(one.optimizer, "param_groups"):
                with suppress(TypeError):  # with __slots__ it may have no weak references
                    self._scaled[id(one.optimizer)] = one.optimizer

    def _is_scaled(self, wrapper: Any) -> bool:
        # By their groups: an optimizer around another one, as those that shard, shares them.
        groups = {*map(id, wrapper.param_groups)}
        return any(
            not groups.isdisjoint(map(id, one.param_groups)) for one in list(self._scaled.values())
        )

    def _take_schedules(self) -> None:
        are_assigned = "param_schedulers" in self._assigned
        cfg = self._param_scheduler_cfg
        schedules = self._assigned.get("param_schedulers") if are_assigned else cfg
        if are_assigned and schedules and are_schedules(schedules):
            self._check_beginning(schedules)
        else:
            if not self._assigned.are_settled:
                self._undo_schedules()
            self._built_schedules = BuiltSchedules(
                self.optim_wrapper, partial(built_by, self, "build_param_scheduler", schedules)
            )
            schedules = self._built_schedules.schedules
        # A subclass may build others that a hook of its own steps.
        are_stepped = any(isinstance(hook, ParamSchedulerHook) for hook in self.hooks)
        check_schedules(
            self.optim_wrapper, schedules, are_assigned=are_assigned, are_stepped=are_stepped
        )
        self._keep_schedules(schedules)

    def _check_beginning(self, schedules: Any) -> None:
        """Raise if they were built over what those that they replace had set already."""
        built = self._built_schedules
        if self._assigned.are_settled or built is None or not built.has_set_anything:
            return
        if {*map(id, listed(schedules))}.isdisjoint(map(id, listed(built.schedules))):
            raise ConfigError(
                "param_schedulers: the schedules assigned were built when those of the "
                "configuration had already begun to change the settings, and go on from these. "
                "Assign their config, param_schedulers = [dict(type=...)], or give the Runner no "
                "param_scheduler."
            )

    def _undo_schedules(self) -> None:
        if self._built_schedules is not None:
            self._built_schedules.undo()
            self._built_schedules = None

    def _note_more_schedules(self) -> None:
        """Let schedules count that others have put into the list that was there."""
        there = listed(self.param_schedulers)
        if [*map(id, there)] != [*map(id, self._known_schedules)]:
            self._assigned.note("param_schedulers", self.param_schedulers)


def _leave_alone(optim_wrapper: Any, schedules: Any) -> bool:
    wrappers = named_wrappers(optim_wrapper).values()
    return any(all(drives_another(one, each) for one in wrappers) for each in listed(schedules))

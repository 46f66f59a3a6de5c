"""The stateful parts of a run: one list, which a snapshot and a restore walk."""

from __future__ import annotations

import hashlib
import io
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

import mm_dist
from mm_amp import MMAmpError
from mm_runner.checkpoint import load_weights, plain, renamed, rng_state, set_rng_state
from mm_runner.data import DataPosition
from mm_runner.errors import CheckpointError, MMRunnerError
from mm_runner.loops import AbstractTrainLoop
from mm_runner.model import unwrap_model
from mm_runner.optim import named_schedulers

from ._data_position import position_elsewhere, position_without_state, warn_of_other_length
from ._optimizers import loading_optimizers
from ._sharded import (
    as_sharded,
    check_versions,
    read_optimizer,
    versions_of,
    write_optimizer,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from mm_runner.hooks import Hook

    from ._runner import Runner

__all__ = ["Part", "RunState", "restore_weights"]

# Left out of a checkpoint where they are empty.
_OPTIONAL = ("hooks", "message_hub", "param_schedulers", "rank_buffers")
# Beyond this, in bytes over all ranks, buffers that differ are not worth their place in every file.
_MAX_RANK_BUFFERS = 256 * 2**20
_MAX_PROBLEMS = 20
# Errors of code that loads values of other types or sizes than it saves.
_OF_CONTENT = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


class Part(NamedTuple):
    """A stateful part of a run.

    Args:
        name: Its entry in a checkpoint.
        save: Returns its state, tensors and primitives. Every process calls it.
        load: Takes the state.
        is_per_rank: Whether every process has its own; the entry is then a list in rank order.
            With another number of processes only ``data`` is restored.
    """

    name: str
    save: Callable[[], Any]
    load: Callable[[Any], None]
    is_per_rank: bool = False


class RunState:
    """The state of a run.

    Attributes:
        parts: In the order they are restored.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.parts = (
            Part("state_dict", self._save_weights, self._load_weights),
            Part("rank_buffers", self._save_buffers, self._load_buffers, is_per_rank=True),
            Part("optimizer", self._save_optimizer, self._load_optimizer),
            Part("param_schedulers", self._save_schedules, self._load_schedules),
            Part("hooks", self._save_hooks, self._load_hooks),
            Part("message_hub", self._save_windows, self._load_windows, is_per_rank=True),
            Part("data", self._save_position, self._load_position, is_per_rank=True),
            Part("rng", self._save_generators, self._load_generators, is_per_rank=True),
        )
        self._checkpoint: Mapping[str, Any] = {}
        self.is_sharded = False  # whether tensors stay spread over the processes in a snapshot

    def snapshot(self, *, leave_out: Collection[str] = (), is_sharded: bool = False) -> Any:
        """Return the state by names of parts. Every process must call this.

        Args:
            leave_out: Names of parts.
            is_sharded: Leave tensors spread over the processes, instead of gathering them.

        Raises:
            CheckpointError: On all processes, if the state of one cannot be saved.
        """
        self.is_sharded = is_sharded and as_sharded(self._runner.model) is not None
        parts = [part for part in self.parts if part.name not in leave_out]
        ranks = self._gather([part for part in parts if part.is_per_rank])
        states = {}
        for part in parts:
            own = [rank[part.name] for rank in ranks] if part.is_per_rank else part.save()
            states[part.name] = own if not part.is_per_rank or any(own) else []
        return {name: state for name, state in states.items() if state or name not in _OPTIONAL}

    def restore(self, checkpoint: Mapping[str, Any], *, leave_out: Collection[str] = ()) -> None:
        """Load the state of another run. Every process must call this.

        Raises:
            CheckpointError: If it does not fit.
        """
        self._checkpoint = checkpoint
        try:
            for part in self.parts:
                if part.name not in leave_out:
                    state = checkpoint.get(part.name)
                    part.load(self._own_of(part.name, state) if part.is_per_rank else state)
        except _OF_CONTENT as error:
            if isinstance(error, (MMRunnerError, MMAmpError)):
                raise
            raise CheckpointError(
                f"The checkpoint's content does not fit this run: {type(error).__name__}: "
                f"{error}. Give the run the configuration that it was saved with; or take the "
                "weights alone, by load_from without resume."
            ) from error
        finally:
            self._checkpoint = {}

    def _own_of(self, name: str, states: Any) -> Any:
        """Return the state of this process, ``None`` if the part is not restored."""
        runner = self._runner
        if isinstance(states, list) and len(states) == runner.world_size:
            return states[runner.rank]
        if name != "data" or not states:
            return None
        return position_elsewhere(runner, self._checkpoint.get("meta", {}), states)

    def _gather(self, parts: list[Part]) -> list[dict[str, Any]]:
        failure: Exception | None = None
        own: Any
        try:
            own = plain({part.name: part.save() for part in parts})
        except Exception as error:  # noqa: BLE001 - a dataset's own state_dict, say; others wait
            failure = error
            kind = "" if isinstance(error, CheckpointError) else f"{type(error).__name__}: "
            own = f"The state of process {self._runner.rank} cannot be saved: {kind}{error}"
        states = mm_dist.all_gather_object(own)
        for state in states:
            if isinstance(state, str):
                raise CheckpointError(state) from failure
        return states

    # The model.

    def _save_weights(self) -> dict[str, Any]:
        sharded = as_sharded(self._runner.model)
        if sharded is None:
            weights = unwrap_model(self._runner.model).state_dict()
        else:
            whole, spread = sharded.full_state_dict, sharded.sharded_state_dict
            weights = OrderedDict(spread() if self.is_sharded else whole())
            vars(weights)["_metadata"] = versions_of(sharded.module)
        # Not "module.": what is left of it is the model's own attribute.
        return renamed(weights, lambda name: name.replace("_orig_mod.", ""))

    def _load_weights(self, weights: Mapping[str, Any]) -> None:
        restore_weights(self._runner, weights, strict=True)

    def _save_buffers(self) -> dict[str, torch.Tensor]:
        """Return the buffers that differ between processes, such as unshared batch statistics."""
        runner = self._runner
        if runner.world_size == 1:
            return {}
        own = {
            name: buffer.detach().cpu()
            for name, buffer in unwrap_model(runner.model).named_buffers()
            if not hasattr(buffer, "full_tensor")
        }
        digests = mm_dist.all_gather_object({name: _digest(one) for name, one in own.items()})
        names = [name for name in own if any(one.get(name) != digests[0][name] for one in digests)]
        num_bytes = sum(own[name].numel() * own[name].element_size() for name in names)
        if num_bytes * runner.world_size > _MAX_RANK_BUFFERS:
            runner.logger.warning(
                f"The buffers {', '.join(names[:5])} differ between processes and are too large "
                "to save them all: a resumed run takes the first process's. Share them with the "
                "SyncBuffersHook, or model_wrapper_cfg=dict(broadcast_buffers=True)."
            )
            return {}
        return {name: own[name] for name in names}

    def _load_buffers(self, saved: Mapping[str, Any] | None) -> None:
        own = dict(unwrap_model(self._runner.model).named_buffers())
        with torch.no_grad():
            for name, value in (saved or {}).items():
                if name in own and own[name].shape == value.shape:
                    own[name].copy_(value)

    # The optimizers and their schedules.

    def _save_optimizer(self) -> dict[str, Any]:
        sharded = as_sharded(self._runner.model)
        if sharded is not None:
            return read_optimizer(sharded, self._runner.optim_wrapper, is_whole=not self.is_sharded)
        state: dict[str, Any] = self._runner.optim_wrapper.state_dict()
        return state

    def _load_optimizer(self, state: Mapping[str, Any] | None) -> None:
        runner = self._runner
        if state is None:
            runner.logger.warning(
                "The checkpoint has no optimizer state: the optimizer starts anew."
            )
            return
        sharded = as_sharded(runner.model)
        with loading_optimizers(runner.optim_wrapper):
            if sharded is not None:
                write_optimizer(sharded, runner.optim_wrapper, state)
            else:
                runner.optim_wrapper.load_state_dict(state)

    def _save_schedules(self) -> Any:
        schedules = self._runner.param_schedulers
        states = {
            name: [one.state_dict() for one in group]
            for name, group in named_schedulers(schedules or []).items()
        }
        return states if isinstance(schedules, dict) else states[""]

    def _load_schedules(self, saved: Any) -> None:
        runner = self._runner
        by_name = saved if isinstance(saved, dict) else {"": saved or []}
        for name, schedules in named_schedulers(runner.param_schedulers).items():
            states = by_name.get(name, [])
            if len(states) != len(schedules):
                runner.logger.warning(
                    f"The checkpoint has {len(states)} parameter schedulers"
                    f"{f' of {name!r}' if name else ''}, this run {len(schedules)}; those without "
                    "a state start anew."
                )
            for schedule, state in zip(schedules, states, strict=False):
                schedule.load_state_dict(state)

    # Hooks.

    def _save_hooks(self) -> dict[str, Any]:
        states = {name: hook.state_dict() for name, hook in _named(self._runner.hooks)}
        return {name: state for name, state in states.items() if state}

    def _load_hooks(self, states: Mapping[str, Any] | None) -> None:
        for name, hook in _named(self._runner.hooks):
            if name in (states or {}):
                hook.load_state_dict((states or {})[name])

    def _save_windows(self) -> dict[str, Any]:
        state: dict[str, Any] = self._runner.message_hub.state_dict()
        return state

    def _load_windows(self, state: Mapping[str, Any] | None) -> None:
        if state:
            self._runner.message_hub.load_state_dict(state)

    # The loop: counters, position in the data, generators.

    def _save_position(self) -> dict[str, Any]:
        loop = vars(self._runner).get("train_loop")
        if isinstance(loop, AbstractTrainLoop):
            return loop.state_dict()
        return {"epoch": self._runner.epoch, "iter": self._runner.iter}

    def _load_position(self, state: Any) -> None:
        runner, meta = self._runner, self._checkpoint.get("meta", {})
        if not state:
            state = position_without_state(runner.train_loop, meta)
        if "position" in state:
            warn_of_other_length(runner, DataPosition(**state["position"]))
        loop = runner.train_loop
        if isinstance(loop, AbstractTrainLoop):
            loop.load_state_dict(state)
            return
        for name in ("epoch", "iter"):  # custom loop; MMEngine's are read-only
            setattr(loop, f"_{name}" if hasattr(loop, f"_{name}") else name, state[name])

    def _save_generators(self) -> dict[str, Any]:
        loop = vars(self._runner).get("train_loop")
        if isinstance(loop, AbstractTrainLoop):
            return loop.rng_state()
        return rng_state(self._runner.device)

    def _load_generators(self, state: Any) -> None:
        loop = self._runner.train_loop
        if not state:
            self._runner.logger.warning(
                "The checkpoint has no random numbers of this process: they start anew from the "
                "seed."
            )
            self._runner.randomness.reseed(self._num_iters())
        elif not isinstance(loop, AbstractTrainLoop):
            set_rng_state(state, self._runner.device)
        else:
            loop.load_rng_state(state)

    def _num_iters(self) -> int:
        return int(self._checkpoint.get("meta", {}).get("iter", 0))


def restore_weights(runner: Runner, weights: Mapping[str, Any], *, strict: bool) -> None:
    """Load a state dict into the model.

    Raises:
        CheckpointError: If nothing fits the model, or when ``strict``, not everything does.
    """
    sharded = as_sharded(runner.model)
    if sharded is not None:
        check_versions(weights, sharded.module)
        sharded.load_full_state_dict(weights, strict=strict)
        return
    problems = load_weights(unwrap_model(runner.model), weights, strict=strict)
    if problems:
        shown = "".join(f"\n  {problem}" for problem in problems[:_MAX_PROBLEMS])
        more = len(problems) - _MAX_PROBLEMS
        runner.logger.warning(
            f"load_from: {len(problems)} entries of the checkpoint or the model do not fit, the "
            f"others are loaded:{shown}{f'{chr(10)}  and {more} more' if more > 0 else ''}"
        )


def _named(hooks: list[Hook]) -> Iterator[tuple[str, Hook]]:
    """Yield the hooks by class name; the second of a class is ``<name>#2``."""
    counts: Counter[str] = Counter()
    for hook in hooks:
        name = type(hook).__name__
        counts[name] += 1
        yield (f"{name}#{counts[name]}" if counts[name] > 1 else name), hook


def _digest(tensor: torch.Tensor) -> bytes:
    file = io.BytesIO()  # by torch's own serialisation: NumPy need not be there
    torch.save(tensor.contiguous().clone(), file)
    return hashlib.blake2b(file.getvalue(), digest_size=8).digest()

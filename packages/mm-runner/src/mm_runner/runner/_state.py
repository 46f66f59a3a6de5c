"""Save the stateful parts of a run to a checkpoint, and restore them."""

from __future__ import annotations

import hashlib
import io
import time
from collections import Counter
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

import mm_dist
from mm_amp import MMAmpError
from mm_runner._main_process import run_on_all, run_on_main
from mm_runner._untrusted import CONTENT_ERRORS
from mm_runner.checkpoint import (
    FORMAT_VERSION,
    first_line,
    mark_latest,
    plain,
    rng_state,
    save_checkpoint_file,
    saved_names,
    set_rng_state,
)
from mm_runner.data import DataPosition, batch_seed
from mm_runner.errors import CheckpointError, MMRunnerError
from mm_runner.loops import AbstractTrainLoop, IterBasedTrainLoop
from mm_runner.model import unwrap_model
from mm_runner.optim import named_schedulers

from ._environment import seed_everything
from ._logs import plain_config
from ._optimizers import load_optimizers
from ._sharded import as_sharded, read_optimizer, read_weights, restore_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from mm_runner.checkpoint import BackgroundWriter
    from mm_runner.hooks import Hook

    from ._runner import Runner

# Left out of a checkpoint if empty.
_OPTIONAL = ("hooks", "message_hub", "param_schedulers", "rank_buffers")


class Part(NamedTuple):
    """A stateful part of a run.

    Args:
        name: Its entry in a checkpoint.
        save: Returns its state, tensors and primitives. Every process calls it.
        load: Takes the state.
        is_per_rank: Whether every process has its own; the entry is then a list in rank order.
            Of processes that see the same data, the first counts. With another number of them only
            ``data`` is restored.
    """

    name: str
    save: Callable[[], Any]
    load: Callable[[Any], None]
    is_per_rank: bool = False


class RunState:
    """The state of a run: ``parts``, in the order they are restored."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        hub = runner.message_hub
        self.parts = (
            Part(
                "state_dict",
                lambda: read_weights(runner.model, is_whole=not self._is_sharded),
                lambda state: restore_weights(runner, state, strict=True),
            ),
            Part("rank_buffers", self._save_buffers, self._load_buffers, is_per_rank=True),
            Part(
                "optimizer",
                lambda: read_optimizer(
                    runner.model, runner.optim_wrapper, is_whole=not self._is_sharded
                ),
                lambda state: load_optimizers(runner, state),
            ),
            Part("param_schedulers", self._save_schedules, self._load_schedules),
            Part("hooks", self._save_hooks, self._load_hooks),
            Part(
                "message_hub",
                hub.state_dict,
                lambda state: hub.load_state_dict(state or {}),
                is_per_rank=True,
            ),
            Part("data", self._save_position, self._load_position, is_per_rank=True),
            Part("rng", self._save_generators, self._load_generators, is_per_rank=True),
        )
        self._meta: Mapping[str, Any] = {}  # of the checkpoint that is restored
        self._is_sharded = False  # whether tensors stay spread over the processes in a snapshot

    def snapshot(self, *, leave_out: Collection[str] = (), is_sharded: bool = False) -> Any:
        """Return the state by names of parts. Every process must call this.

        With ``is_sharded`` the tensors of a sharded model stay spread over the processes.

        Raises:
            Exception: On all processes, if the state of one cannot be saved.
        """
        self._is_sharded = is_sharded
        parts = [part for part in self.parts if part.name not in leave_out]
        # A dataset's own state_dict may fail on one process.
        ranks = run_on_all(
            lambda: plain({one.name: one.save() for one in parts if one.is_per_rank})
        )
        states = {}
        # Processes that see the same data share their state: it fits another mesh then.
        ranks = ranks[:: len(ranks) // self._runner.num_data_ranks]
        for part in parts:
            own = [rank[part.name] for rank in ranks] if part.is_per_rank else part.save()
            states[part.name] = own if not part.is_per_rank or any(own) else []
        return {name: state for name, state in states.items() if state or name not in _OPTIONAL}

    def restore(self, checkpoint: Mapping[str, Any], *, leave_out: Collection[str] = ()) -> None:
        """Load the state of another run. Every process must call this.

        Raises:
            CheckpointError: If it does not fit.
        """
        self._meta = checkpoint.get("meta", {})
        try:
            for part in self.parts:
                if part.name not in leave_out:
                    state = checkpoint.get(part.name)
                    part.load(self._of_this_rank(part.name, state) if part.is_per_rank else state)
        except (MMRunnerError, MMAmpError):
            raise
        except CONTENT_ERRORS as error:
            raise CheckpointError(
                f"The checkpoint's content does not fit this run: {type(error).__name__}: "
                f"{first_line(error)}. Give the run the configuration that it was saved with; or "
                "take the weights alone, by load_from without resume."
            ) from error

    def _of_this_rank(self, name: str, states: Any) -> Any:
        """Return the state of this process, ``None`` if the part is not restored."""
        if isinstance(states, list) and len(states) == self._runner.num_data_ranks:
            return states[self._runner.data_rank]
        return self._position_elsewhere(states[0]) if name == "data" and states else None

    # The model.

    def _save_buffers(self) -> dict[str, torch.Tensor]:
        """Return the buffers that differ between processes, such as unshared batch statistics."""
        if self._runner.world_size == 1:
            return {}
        buffers = unwrap_model(self._runner.model).named_buffers()
        own = {name: one.detach().cpu() for name, one in buffers if not hasattr(one, "full_tensor")}
        digests = mm_dist.all_gather_object({name: _digest(one) for name, one in own.items()})
        return {
            name: value
            for name, value in own.items()
            if any(one.get(name) != digests[0][name] for one in digests)
        }

    def _load_buffers(self, saved: Mapping[str, Any] | None) -> None:
        own = dict(unwrap_model(self._runner.model).named_buffers())
        with torch.no_grad():
            for name, value in (saved or {}).items():
                if name in own and own[name].shape == value.shape:
                    own[name].copy_(value)

    # The optimizers and their schedules.

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
            for schedule, state in zip(schedules, states, strict=False):
                end = getattr(schedule, "end", None)
                schedule.load_state_dict(state)
                if getattr(schedule, "end", None) != end:
                    runner.logger.warning(
                        f"{schedule.where}: its course ended at {schedule.end}, and the run now at "
                        f"{end}; the value stays from there. For a course over the whole length "
                        "start a run with load_from; or give another schedule with begin and end."
                    )
            if len(states) != len(schedules):
                runner.logger.warning(
                    f"The checkpoint has {len(states)} parameter schedulers"
                    f"{f' of {name!r}' if name else ''}, this run {len(schedules)}; those without "
                    "a state start from their beginning."
                )

    # Hooks.

    def _save_hooks(self) -> dict[str, Any]:
        states = {name: hook.state_dict() for name, hook in _named(self._runner.hooks)}
        return {name: state for name, state in states.items() if state}

    def _load_hooks(self, states: Mapping[str, Any] | None) -> None:
        for name, hook in _named(self._runner.hooks):
            if name in (states or {}):
                hook.load_state_dict((states or {})[name])

    # The loop: counters, position in the data, generators.

    def _save_position(self) -> dict[str, Any]:
        runner, loop = self._runner, vars(self._runner).get("train_loop")
        if isinstance(loop, AbstractTrainLoop):
            return loop.state_dict()
        # Other loops count a step, or an epoch, after the hooks that follow it.
        epoch = runner.epoch + (runner.stage == "after_train_epoch")
        return {
            "epoch": epoch,
            "iter": runner.iter + (runner.stage == "after_train_iter"),
            "pass": {},
        }

    def _load_position(self, state: Any) -> None:
        loop = self._runner.train_loop
        if not state:  # MMEngine's checkpoint only counts epochs and steps
            epoch, iteration = (int(self._meta.get(name, 0)) for name in ("epoch", "iter"))
            position = DataPosition(epoch, samples=0)
            if isinstance(loop, IterBasedTrainLoop):
                length = loop.batches.length
                whole, rest = (0, iteration) if length is None else divmod(iteration, length)
                position = DataPosition(whole, rest)
            place = {"position": position._asdict(), "pass": {}}
            state = {"epoch": epoch, "iter": iteration, **place}
        if not isinstance(loop, AbstractTrainLoop):  # custom loop; MMEngine's are read-only
            for name in ("epoch", "iter"):
                setattr(loop, f"_{name}" if hasattr(loop, f"_{name}") else name, state[name])
            num_epochs, num_iters = (getattr(loop, f"max_{one}", 0) for one in ("epochs", "iters"))
            if num_epochs > 1 and state["iter"] * num_epochs != state["epoch"] * num_iters:
                self._runner.logger.warning(
                    f"The checkpoint was written within epoch {state['epoch'] + 1}, and "
                    f"{type(loop).__name__} trains whole epochs: it repeats the batches of this "
                    "one. Resume from a checkpoint of a whole epoch instead."
                )
            return
        position = DataPosition(**state.get("position", {}))
        if position.is_begun and position.num_batches is not None:
            length = position.batch + (loop.batches.num_left(position) or 0)
            if length != position.num_batches:
                self._runner.logger.warning(
                    f"The checkpoint was written in a pass of {position.num_batches} batches, "
                    f"which has {length} in this run: the dataset or the batch size has changed. "
                    f"The data continue {_place(position)}."
                )
        loop.load_state_dict(state)

    def _position_elsewhere(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Convert a position in the data to this number of processes, and warn."""
        runner = self._runner
        if "position" not in state:
            return dict(state)
        before, saved = DataPosition(**state["position"]), int(self._meta.get("world_size", 1))
        position = before
        batches = getattr(runner.train_loop, "batches", None)
        if batches is not None:
            position = batches.rescaled(position, saved, runner.num_data_ranks)
        data = f"the data continue {_place(position)}, each sample once"
        if before.is_begun and not position.is_begun:
            data = (
                f"pass {position.epoch + 1} over the data starts again, as an iterable dataset "
                "splits its samples by itself (a StreamDataset would continue)"
            )
        runner.logger.warning(
            f"The checkpoint was written by {saved} process(es), this run has "
            f"{runner.num_data_ranks}: {data}. Schedules and learning rates are left as they are."
        )
        return {**state, "position": position._asdict(), "pass": {}}

    def _save_generators(self) -> dict[str, Any]:
        loop = vars(self._runner).get("train_loop")
        if isinstance(loop, AbstractTrainLoop):
            return loop.rng_state()
        return rng_state(self._runner.device)

    def _load_generators(self, state: Any) -> None:
        runner, loop = self._runner, self._runner.train_loop
        if not state:
            runner.logger.warning(
                "The checkpoint has no random numbers of this process: they start again from the "
                "seed."
            )
            rank, num_steps = (
                runner.data_rank * runner.diff_rank_seed,
                int(self._meta.get("iter", 0)),
            )
            seed_everything(batch_seed(runner.seed, rank, 0, num_steps) % 2**32)
        elif not isinstance(loop, AbstractTrainLoop):
            set_rng_state(state, runner.device)
        else:
            loop.load_rng_state(state)


def write_snapshot(
    runner: Runner,
    path: Path,
    *,
    save_optimizer: bool = True,
    save_param_scheduler: bool = True,
    meta: Mapping[str, Any] | None = None,
    mark_as_latest: bool = True,
    writer: BackgroundWriter | None = None,
    then: Callable[[], None] | None = None,
    whole: bool = False,
) -> None:
    """Save the run. Every process must call this: each contributes its state.

    Args:
        runner: The run.
        path: The file.
        save_optimizer: Include the optimizer and the loss scaler.
        save_param_scheduler: Include the schedules.
        meta: Added to the header of the checkpoint.
        mark_as_latest: Let ``last_checkpoint`` name the file, so that resuming finds it.
        writer: Writes a copy while training continues; without one the file is whole on return.
        then: Called on the main process once the file is whole and named.
        whole: Gather the tensors of a sharded model into the file; by default each process writes
            its shards to a folder beside it.

    Raises:
        CheckpointError: On all processes, if something cannot be saved or written.
    """
    is_sharded = not whole and as_sharded(runner.model) is not None
    saves = {"optimizer": save_optimizer, "param_schedulers": save_param_scheduler}
    leave_out = [name for name, is_saved in saves.items() if not is_saved]
    if runner.optim_wrapper is None:
        leave_out.append("optimizer")
    state = runner.state.snapshot(leave_out=leave_out, is_sharded=is_sharded)
    checkpoint = {"meta": {**_header(runner, state), **(meta or {})}, **state}
    runner.call_hook("before_save_checkpoint", checkpoint=checkpoint)
    checkpoint["state_dict"] = saved_names(unwrap_model(runner.model), checkpoint["state_dict"])

    def write(content: dict[str, Any]) -> None:
        save_checkpoint_file(content, path)
        if mark_as_latest:
            mark_latest(path, runner.work_dir)
        if then is not None:
            then()

    if is_sharded:
        runner.shard_writer.write(checkpoint, path, write, writer)
    elif writer is None:  # copied to the CPU by the main process alone
        run_on_main(lambda: write(plain(checkpoint)))
    else:
        run_on_main(lambda: writer.submit(checkpoint, write))


def _header(runner: Runner, state: Mapping[str, Any]) -> dict[str, Any]:
    packages = ("mm-runner", "mm-dist", "mm-amp", "mm-compile", "mm-npu")
    versions = {}
    for package in packages:
        with suppress(PackageNotFoundError):  # a source tree that is not installed
            versions[package] = version(package)
    return {
        "epoch": state["data"][0]["epoch"],
        "iter": state["data"][0]["iter"],
        "format_version": FORMAT_VERSION,
        "seed": runner.seed,
        "world_size": runner.num_data_ranks,
        "experiment_name": runner.experiment_name,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "cfg": runner.logs.config_text,
        "dataset_meta": plain_config(runner.message_hub.get_info("dataset_meta") or {}),
        "versions": {"torch": str(torch.__version__), **versions},
    }


def _place(position: DataPosition) -> str:
    if not position.is_begun:
        return "with the next epoch"
    done = f"batch {position.batch} of each process"
    if position.samples is not None:
        done = f"sample {position.samples}"
    return f"after {done} of pass {position.epoch + 1}"


def _named(hooks: list[Hook]) -> Iterator[tuple[str, Hook]]:
    """Yield the hooks by class name; the second of a class is ``<name>#2``."""
    counts: Counter[str] = Counter()
    for hook in hooks:
        name = type(hook).__name__
        counts[name] += 1
        yield (f"{name}#{counts[name]}" if counts[name] > 1 else name), hook


def _digest(tensor: torch.Tensor) -> bytes:
    file = io.BytesIO()  # by torch's own serialization: NumPy need not be there
    torch.save(tensor.contiguous().clone(), file)
    return hashlib.blake2b(file.getvalue(), digest_size=8).digest()

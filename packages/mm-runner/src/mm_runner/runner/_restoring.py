"""The state of a run, back from a checkpoint."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from mm_amp import MMAmpError
from mm_runner.checkpoint import load_weights
from mm_runner.data import DataPosition
from mm_runner.errors import CheckpointError, MMRunnerError
from mm_runner.loops import Resumption, needs_rehearsal
from mm_runner.model import ZEROED_GRADIENTS, restore_zeroed_gradients, unwrap_model
from mm_runner.optim import named_schedulers

from ._assigned_checks import set_place
from ._comm_hook_state import restore_comm_hooks, warn_of_comm_hooks
from ._data_position import position_of_run, steps_done
from ._hook_states import restore_hooks
from ._mmengine_groups import optimizer_in_own_groups
from ._optimizer_fit import loading_optimizers
from ._rank_state import restore_rank_buffers
from ._schedule_replay import KeptSettings, fit_to_length
from ._sharded_state import as_sharded, check_versions, write_optimizer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mm_runner.runner import Runner

    from ._seed import RunSeed

__all__ = ["restore_training", "restore_weights"]

_MOST_PROBLEMS = 20
# What code raises that is given values of other kinds, or of other sizes, than it saves.
_OF_CONTENT = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def restore_weights(runner: Runner, checkpoint: Mapping[str, Any], *, strict: bool) -> None:
    """Give the model its weights.

    Raises:
        CheckpointError: If nothing fits the model, or when ``strict``, not everything does.
    """
    weights = checkpoint.get("state_dict", checkpoint)
    sharded = as_sharded(runner.model)
    if sharded is not None:
        check_versions(weights, sharded.module)
        sharded.load_full_state_dict(weights, strict=strict)
        return
    problems = load_weights(unwrap_model(runner.model), weights, strict=strict)
    if problems:
        shown = "".join(f"\n  {problem}" for problem in problems[:_MOST_PROBLEMS])
        more = len(problems) - _MOST_PROBLEMS
        runner.logger.warning(
            f"load_from: {len(problems)} entries of the checkpoint or the model do not fit, the "
            f"others are loaded:{shown}{f'{chr(10)}  and {more} more' if more > 0 else ''}"
        )


def restore_training(
    runner: Runner,
    checkpoint: Mapping[str, Any],
    seed: RunSeed,
    *,
    optimizer: bool = True,
    schedules: bool = True,
    keeps_data: bool = False,
) -> None:
    """Set everything but the model's weights to where ``checkpoint`` left it.

    Args:
        runner: The run.
        checkpoint: Of the run that it goes on from.
        seed: Of the run; random numbers that the checkpoint has not start anew from it.
        optimizer: Whether the optimizers go on as well.
        schedules: Whether the schedules do.
        keeps_data: Whether the data do, even if ``resume_data`` says that they begin anew.

    Raises:
        CheckpointError: If something in it does not fit.
    """
    try:
        _restore(
            runner,
            checkpoint,
            seed,
            optimizer=optimizer,
            schedules=schedules,
            keeps_data=keeps_data,
        )
    except _OF_CONTENT as error:
        if isinstance(error, (MMRunnerError, MMAmpError)):
            raise
        raise CheckpointError(
            f"The checkpoint's content does not fit this run: {type(error).__name__}: "
            f"{error}. Give the run the configuration that it was saved with; or take the "
            "weights alone, by load_from without resume."
        ) from error


def _restore(
    runner: Runner,
    checkpoint: Mapping[str, Any],
    seed: RunSeed,
    *,
    optimizer: bool,
    schedules: bool,
    keeps_data: bool,
) -> None:
    if not optimizer:
        checkpoint = {key: value for key, value in checkpoint.items() if key != "optimizer"}
    elif "optimizer" not in checkpoint:
        runner.logger.warning("The checkpoint has no optimizer state: the optimizer starts anew.")
    _restore_tensors(runner, checkpoint)
    settings = _restore_schedulers(runner, checkpoint) if schedules else None
    restore_hooks(runner, checkpoint.get("hooks", {}))
    windows = _of_this_rank(runner, checkpoint.get("message_hub"))
    if windows:
        runner.message_hub.load_state_dict(windows)
    _restore_position(runner, checkpoint, seed, settings, keeps_data=keeps_data)
    warn_of_comm_hooks(runner, checkpoint)


def _restore_tensors(runner: Runner, checkpoint: Mapping[str, Any]) -> None:
    """Restore what a training step changes on the device, besides the weights."""
    restore_rank_buffers(runner, checkpoint.get("rank_buffers", []))
    if "optimizer" not in checkpoint:
        return
    state = optimizer_in_own_groups(runner, checkpoint)
    if needs_rehearsal(runner.model, runner.world_size):
        # torch's optimizers go on with the very tensors they are given, and those are needed again.
        state = copy.deepcopy(state)
    sharded = as_sharded(runner.model)
    with loading_optimizers(runner.optim_wrapper, runner.logger):
        if sharded is not None:
            write_optimizer(sharded, runner.optim_wrapper, state)
        else:
            runner.optim_wrapper.load_state_dict(state)
    restore_zeroed_gradients(runner.model, checkpoint.get(ZEROED_GRADIENTS, {}))


def _restore_position(
    runner: Runner,
    checkpoint: Mapping[str, Any],
    seed: RunSeed,
    settings: KeptSettings | None,
    *,
    keeps_data: bool,
) -> None:
    """Tell the loop where to go on, and with which random numbers."""
    state = _loop_state(runner, checkpoint, keeps_data=keeps_data)
    if not state["rng"]:
        seed.start_anew(state["iter"])
    loop = runner.train_loop
    if not hasattr(loop, "resume"):  # a loop of the user's own
        set_place(loop, state["epoch"], state["iter"])
        return

    def restore() -> None:
        restore_weights(runner, checkpoint, strict=True)
        _restore_tensors(runner, checkpoint)
        if settings is not None:
            settings.restore()
        # Only now: what it keeps is by buckets as they are after the rehearsal.
        restore_comm_hooks(runner, checkpoint)

    loop.resume(Resumption(state, restore))


def _loop_state(
    runner: Runner, checkpoint: Mapping[str, Any], *, keeps_data: bool
) -> dict[str, Any]:
    """Return what the loop's own ``state_dict`` was, as far as the checkpoint has it."""
    meta, data = checkpoint.get("meta", {}), dict(checkpoint.get("data", {}))
    own = _of_this_rank(runner, data.pop("ranks", None)) or {}
    counts = {name: int(meta.get(name, 0)) for name in ("epoch", "iter")}
    counts["iter"] = int(data.pop("iter", counts["iter"]))
    rng = _of_this_rank(runner, checkpoint.get("rng")) or {}
    if not data:
        position = _position_after(runner.train_loop, counts)
    else:
        known = {name: data[name] for name in DataPosition._fields if name in data}
        position = DataPosition(**{**known, "state": own.get("state")})
    is_kept = keeps_data or runner.cfg.get("resume_data") is not False
    position = position_of_run(runner, checkpoint, position, has_numbers=bool(rng), is_kept=is_kept)
    return {
        **counts,
        "data": position._asdict(),
        "rng": rng,
        "pass": own.get("pass", {}),
        "is_validated": bool(data.get("is_validated")),
    }


def _position_after(loop: Any, counts: Mapping[str, int]) -> DataPosition:
    """Return where the data go on after a checkpoint that says only how much was done."""
    if hasattr(loop, "position_after"):
        position: DataPosition = loop.position_after(counts["epoch"], counts["iter"])
        return position
    return DataPosition(counts["epoch"], samples=0)


def _restore_schedulers(runner: Runner, checkpoint: Mapping[str, Any]) -> KeptSettings | None:
    """Restore the schedules, and return the optimizers' settings if they are not the saved ones."""
    saved = checkpoint.get("param_schedulers", [])
    num_iters = steps_done(checkpoint)
    refitted = []
    by_name = saved if isinstance(saved, dict) else {"": saved}
    for name, schedulers in named_schedulers(runner.param_schedulers).items():
        states = by_name.get(name, [])
        if len(states) != len(schedulers):
            runner.logger.warning(
                f"The checkpoint has {len(states)} parameter schedulers"
                f"{f' of {name!r}' if name else ''}, this run {len(schedulers)}; those without a "
                "state start anew."
            )
        for scheduler, state in zip(schedulers, states, strict=False):
            scheduler.load_state_dict(state)
        if len(states) == len(schedulers) and fit_to_length(
            runner, name, schedulers, states, num_iters
        ):
            refitted.append(name)
    return KeptSettings(runner.optim_wrapper, refitted) if refitted else None


def _of_this_rank(runner: Runner, states: Any) -> Any:
    """Return this process's entry, ``None`` if the run had another number of processes."""
    if isinstance(states, list) and len(states) == runner.world_size:
        return states[runner.rank]
    return None

"""Log a summary at the start and at the end of a training."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from mm_dist import is_model_wrapper
from mm_runner import __version__
from mm_runner.hooks import CheckpointHook
from mm_runner.model import unwrap_model
from mm_runner.optim import named_wrappers
from mm_runner.registry import need_names, origins

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._runner import Runner


def batch_of_process(loader: Any) -> int | None:
    """Return the batch size of one process; ``None`` if it is unknown."""
    size = getattr(loader, "batch_size", None)
    if size is None:
        size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return size if isinstance(size, int) else None


def describe_optimizer(optimizer: Any, *, is_compiled: bool = False) -> str:
    """Name an optimizer and the implementation of its step.

    Example:
        >>> describe_optimizer(torch.optim.SGD(model.parameters(), lr=0.1, fused=True))
        'SGD (fused)'
    """
    kind, group = type(optimizer), optimizer.param_groups[0]
    package = kind.__module__.partition(".")[0]
    traits = [] if package == "torch" else [f"of {package}"]
    traits += [name for name in ("fused", "foreach", "capturable") if group.get(name)]
    traits += ["compiled"] if is_compiled else []
    return f"{kind.__name__} ({', '.join(traits)})" if traits else kind.__name__


def log_start(runner: Runner) -> None:
    """Log what a training will use: devices, precision, optimizers, batch size, length, paths."""
    bare, device, backend = unwrap_model(runner.model), runner.device, runner.dist_info.backend
    about = f"{torch.get_num_threads()} threads each"
    if device.type != "cpu":
        name_of = getattr(getattr(torch, device.type, None), "get_device_name", str)
        about = name_of(device)
    total = sum(one.numel() for one in bare.parameters())
    trained = sum(one.numel() for one in bare.parameters() if one.requires_grad)
    dtypes = {str(one.dtype).removeprefix("torch.") for one in bare.parameters()}
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    launcher = f"launcher {runner.launcher}{f', backend {backend}' if backend else ''}"
    checkpointed = need_names(
        runner.cfg.get("activation_checkpointing"), "activation_checkpointing"
    )
    lines = [
        ("devices", f"{runner.world_size} x {device.type} ({about}), {launcher}"),
        ("versions", f"{versions}, mm-runner {__version__}"),
        (
            "parameters",
            f"{total:,} in {', '.join(sorted(dtypes))}, of which {trained:,} are trained",
        ),
    ]
    lines += origins()
    if checkpointed:
        lines.append(("checkpointed", ", ".join(checkpointed)))
    if runner.cfg.get("channels_last"):
        lines.append(("layout", "channels_last"))
    if is_model_wrapper(runner.model):
        lines.append(("wrapper", type(runner.model).__name__))
    handle, asked = runner.compile_handle, runner.cfg.get("compile")
    compiled = "off" if asked in (None, False) else f"off, for compile={asked!r}"
    if handle and handle.enabled:
        report = handle.report()
        mode = f", mode {report.mode}" if report.mode else ""
        compiled = f"{report.target} by {report.backend}{mode}, {len(report.regions)} region(s)"
    lines.append(("compile", compiled))
    steps_compiled = bool(
        handle and handle.enabled and isinstance(asked, Mapping) and asked.get("optimizer")
    )
    for name, wrapper in named_wrappers(runner.optim_wrapper).items():
        prefix = f"{name}: " if name else ""
        lines += [
            (about, f"{prefix}{text}")
            for about, text in _describe_wrapper(runner, wrapper, is_compiled=steps_compiled)
        ]
    lines += [
        ("length", _length(runner)),
        ("seed", f"{runner.seed}{', deterministic algorithms' if runner.deterministic else ''}"),
    ]
    _log(runner, f"Training {runner.model_name}", lines)


def _describe_wrapper(
    runner: Runner, wrapper: Any, *, is_compiled: bool
) -> Iterator[tuple[str, str]]:
    """Yield the precision, the optimizer and the batch of an optimizer wrapper."""
    is_half = getattr(wrapper, "dtype", None) in (torch.float16, torch.bfloat16)
    dtype = str(wrapper.dtype).removeprefix("torch.") if is_half else ""
    yield "precision", f"{dtype} by autocast" if is_half else "that of the parameters"
    optimizer = describe_optimizer(wrapper.optimizer, is_compiled=is_compiled)
    yield "optimizer", f"{optimizer} in {type(wrapper).__name__}"
    size = batch_of_process(runner.train_dataloader)
    accumulated = getattr(wrapper, "accumulative_counts", 1)
    whole = "" if size is None else f"{size * runner.num_data_ranks * accumulated} = "
    per_rank = "the loader's own size" if size is None else str(size)
    ranks = f"{runner.num_data_ranks} rank(s) x {accumulated} accumulated"
    yield "batch", f"{whole}{per_rank} per rank x {ranks}"


def _length(runner: Runner) -> str:
    if runner.iter and runner.iter >= runner.max_iters:
        return f"no step, {runner.iter:,} are done"
    wrappers = named_wrappers(runner.optim_wrapper).values()
    accumulated = max(getattr(one, "accumulative_counts", 1) for one in wrappers)
    epochs = f" in {runner.max_epochs:,} epochs" if runner.max_epochs > 1 else ""
    unit = (
        f", a step being one batch, {accumulated} to an optimizer step" if accumulated > 1 else ""
    )
    done = f", {runner.iter:,} of them done" if runner.iter else ""
    return f"{runner.max_iters:,} steps{epochs}{unit}{done}"


def _log(runner: Runner, title: str, lines: list[tuple[str, str]]) -> None:
    """Log a title and, indented below it, lines that begin with a key, places last."""
    hooks = [hook for hook in runner.hooks if isinstance(hook, CheckpointHook)]
    places = [hook.directory(runner) for hook in hooks] or [runner.work_dir]
    checkpoints = ", ".join(dict.fromkeys(map(str, places)))
    lines = [*lines, ("checkpoints", checkpoints), ("logs", str(runner.log_dir))]
    runner.logger.info("\n".join([title, *(f"  {key:<13}{text}" for key, text in lines)]))


def log_end(runner: Runner, began_s: float, first_iter: int) -> None:
    """Log what a training has done since ``time.perf_counter()`` was ``began_s``."""
    spent, steps = time.perf_counter() - began_s, runner.iter - first_iter
    validated_s = getattr(runner.train_loop, "validated_s", 0.0)
    training_s, lines = max(spent - validated_s, 1e-9), []
    if runner.interruption.ran_out_of_time:
        left = runner.max_iters - runner.iter
        lines.append(("ended", f"the time was up, {left:,} steps are left"))
    size = batch_of_process(runner.train_dataloader)
    if steps > 0:
        speed = f"{1000 * training_s / steps:.3g} ms per step"
        if size is not None:
            rate = steps * runner.num_data_ranks * size / training_s
            speed = f"{rate:,.1f} samples/s, {speed}"
        lines.append(("speed", speed))
    feed = getattr(runner.train_loop, "batches", None)
    if feed is not None:
        lines.append(("data", f"{feed.waited_s / training_s:.0%} of it waiting for data"))
    if validated_s:
        lines.append(("validation", _clock(validated_s)))
    hooks = [hook for hook in runner.hooks if isinstance(hook, CheckpointHook)]
    best = {name: record for hook in hooks for name, record in hook.best_records.items()}
    for name, record in best.items():
        where = f"epoch {record['epoch']}, step {record['iter']}"
        lines.append(("best", f"{name} {record['score']:.4g} after {where}: {record['file']}"))
    for name, wrapper in named_wrappers(runner.optim_wrapper).items():
        if wrapper.num_skipped:
            of_name = f" of {name}" if name else ""
            skipped = f"{wrapper.num_skipped:,} steps{of_name}, gradients not finite"
            lines.append(("skipped", skipped))
    _log(runner, f"Trained {runner.model_name}: {steps:,} steps in {_clock(spent)}", lines)


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds))) if seconds >= 10 else f"{seconds:.2f} s"

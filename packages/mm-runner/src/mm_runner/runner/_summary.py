"""The first and the last lines of a training's log."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from typing_extensions import override

from mm_dist import is_model_wrapper
from mm_runner import __version__
from mm_runner._tf32 import uses_tf32
from mm_runner.hooks import CheckpointHook, Hook
from mm_runner.hooks._iter_timer import feed_of_training
from mm_runner.model import MODULE_SETTINGS, describe_module_settings, unwrap_model
from mm_runner.optim import computes_in_half, named_wrappers

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

    from ._runner import Runner

__all__ = ["RunReceipt", "batch_of_process", "describe_optimizer", "log_start"]


def log_start(runner: Runner) -> None:
    """Log devices, precision, compilation, optimizers, batch, length and places of a built run."""
    _log(runner, f"Training {runner.model_name}", _start_lines(runner))


def batch_of_process(loader: Any) -> int | None:
    """Return how many samples of one process a whole batch has; ``None`` if nobody knows."""
    size = getattr(loader, "batch_size", None)
    if size is None:
        size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return size if isinstance(size, int) else None


def describe_optimizer(optimizer: Any, *, is_compiled: bool = False) -> str:
    """Name an optimizer, and the implementation of its step that is really used.

    Example:
        >>> describe_optimizer(torch.optim.SGD(model.parameters(), lr=0.1, fused=True))
        'SGD (fused)'
    """
    kind = type(optimizer)
    module = kind.__module__.partition(".")[0]
    traits = []
    if getattr(optimizer, "is_fused_optimizer", False):
        traits.append("torch_npu's fused")
    elif module != "torch":
        traits.append("portable" if module == "mm_npu" else f"of {module}")
    group = optimizer.param_groups[0]
    traits += [name for name in ("fused", "foreach", "capturable") if group.get(name)]
    traits += ["compiled"] if is_compiled else []
    return f"{kind.__name__} ({', '.join(traits)})" if traits else kind.__name__


def _log(runner: Runner, title: str, lines: Iterator[tuple[str, str]]) -> None:
    """Log a title and, indented below it, lines that begin with a key, places last."""
    hooks = [hook for hook in runner.hooks if isinstance(hook, CheckpointHook)]
    places = [hook.directory(runner) for hook in hooks] or [runner.work_dir]
    ends = {
        "checkpoints": ", ".join(dict.fromkeys(map(str, places))),
        "logs": str(runner.log_dir),
    }
    shown = [f"  {key:<13}{text}" for key, text in (*lines, *ends.items())]
    runner.logger.info("\n".join([title, *shown]))


def _start_lines(runner: Runner) -> Iterator[tuple[str, str]]:
    device, bare = runner.device, unwrap_model(runner.model)
    named = named_wrappers(runner.optim_wrapper)
    wrappers = {f"{name}: " if name else "": one for name, one in named.items()}
    name_of = getattr(getattr(torch, device.type, None), "get_device_name", None)
    about = f"{torch.get_num_threads()} threads each"
    if device.type != "cpu" and name_of is not None:
        about = name_of(device)
    backend = f", backend {runner.dist_info.backend}" if runner.distributed else ""
    yield (
        "devices",
        f"{runner.world_size} x {device.type} ({about}), launcher {runner.launcher}{backend}",
    )
    toolkits = (("CUDA", torch.version.cuda), ("ROCm", torch.version.hip))
    built_with = "".join(f" with {name} {version}" for name, version in toolkits if version)
    of_torch = f"torch {torch.__version__}{built_with}"
    yield "versions", f"Python {platform.python_version()}, {of_torch}, mm-runner {__version__}"
    total = sum(one.numel() for one in bare.parameters())
    trained = sum(one.numel() for one in bare.parameters() if one.requires_grad)
    layout = ", channels_last" if runner.cfg.get("channels_last") else ""
    yield "parameters", f"{total:,}, of which {trained:,} are trained{layout}"
    for key, names in describe_module_settings(bare).items():
        yield MODULE_SETTINGS[key], names
    if is_model_wrapper(runner.model):
        yield "wrapper", type(runner.model).__name__
    kept = {str(one.dtype).removeprefix("torch.") for one in runner.model.parameters()}
    weights = f"weights in {', '.join(sorted(kept)) or 'nothing'}"
    weights += ", TF32 matrix products" if device.type == "cuda" and uses_tf32() else ""
    for prefix, wrapper in wrappers.items():
        is_half = computes_in_half(wrapper)
        lower = f"{str(wrapper.dtype).removeprefix('torch.')} by autocast, " if is_half else ""
        yield "precision", f"{prefix}{lower}{weights}"
    yield "compile", _compile(runner)
    asked = runner.cfg.get("compile")
    asks_for_optimizer = isinstance(asked, Mapping) and bool(asked.get("optimizer"))
    is_compiled = runner.compile_handle.enabled and asks_for_optimizer
    size = batch_of_process(runner.train_dataloader)
    for prefix, wrapper in wrappers.items():
        optimizer = describe_optimizer(wrapper.optimizer, is_compiled=is_compiled)
        yield "optimizer", f"{prefix}{optimizer} in {type(wrapper).__name__}"
        count = getattr(wrapper, "accumulative_counts", 1)
        whole = "" if size is None else f"{size * runner.world_size * count} = "
        per_rank = "the loader's own size" if size is None else str(size)
        ranks = f"{runner.world_size} rank(s) x {count} accumulated"
        yield "batch", f"{prefix}{whole}{per_rank} per rank x {ranks}"
    loader = runner.train_dataloader
    workers = getattr(loader, "num_workers", 0)
    data = [f"{workers} workers per rank" if workers else "loaded in the training process"]
    data += ["kept over epochs"] if getattr(loader, "persistent_workers", False) else []
    data += ["pinned memory"] if getattr(loader, "pin_memory", False) else []
    yield "data", ", ".join(data)
    counts = [getattr(one, "accumulative_counts", 1) for one in wrappers.values()]
    yield "length", _length(runner, max(counts))
    yield "seed", f"{runner.seed}{', deterministic algorithms' if runner.deterministic else ''}"


def _compile(runner: Runner) -> str:
    handle, asked = runner.compile_handle, runner.cfg.get("compile")
    if not handle.enabled:
        return "off" if asked in (None, False) else f"off, for compile={asked!r}"
    report = handle.report()
    mode = f", mode {report.mode}" if report.mode else ""
    return f"{report.target} by {report.backend}{mode}, {len(report.regions)} region(s)"


def _length(runner: Runner, accumulated: int) -> str:
    if runner.iter and runner.iter >= runner.max_iters:
        return f"no step, {runner.iter:,} are done"
    steps = f"{runner.max_iters:,} steps"
    if runner.max_epochs > 1:
        steps += f" in {runner.max_epochs:,} epochs"
    if accumulated > 1:
        steps += f", a step being one batch, {accumulated} to an optimizer step"
    return f"{steps}, {runner.iter:,} of them done" if runner.iter else steps


class RunReceipt(Hook):
    """Times a training, and logs the result at the end.

    Attributes:
        has_ended: Whether the training has come to ``after_train``, and all hooks before this.
    """

    priority = "VERY_LOW"

    def __init__(self) -> None:
        self.has_ended = False
        self._started_s = self._evaluated_s = self._val_begin_s = 0.0
        self._first_iter = 0

    @override
    def before_train(self, runner: RunView) -> None:
        self._started_s = time.perf_counter()
        self._first_iter = runner.iter

    @override
    def after_train(self, runner: RunView) -> None:
        self.has_ended = True

    @override
    def before_val(self, runner: RunView) -> None:
        self._val_begin_s = time.perf_counter()

    @override
    def after_val(self, runner: RunView) -> None:
        self._evaluated_s += time.perf_counter() - self._val_begin_s

    def log(self, runner: Runner) -> None:
        """Log the summary of the training; on the main process."""
        spent, steps = time.perf_counter() - self._started_s, runner.iter - self._first_iter
        title = f"Trained {runner.model_name}: {steps:,} steps in {_clock(spent)}"
        _log(runner, title, self._lines(runner, steps, spent))

    def _lines(self, runner: Runner, steps: int, spent: float) -> Iterator[tuple[str, str]]:
        training_s = max(spent - self._evaluated_s, 1e-9)
        if runner.interruption.ran_out_of_time:
            yield "ended", f"the time was up, {runner.max_iters - runner.iter:,} steps are left"
        if steps > 0:
            size = batch_of_process(runner.train_dataloader)
            rate = steps * runner.world_size * (size or 0) / training_s
            samples = "" if size is None else f"{rate:,.1f} samples/s, "
            yield "speed", f"{samples}{1000 * training_s / steps:.3g} ms per step"
        feed = feed_of_training(runner)
        if feed is not None:
            yield "data", f"{feed.waited_s / training_s:.0%} of it waiting for data"
        if self._evaluated_s:
            yield "validation", _clock(self._evaluated_s)
        hooks = [hook for hook in runner.hooks if isinstance(hook, CheckpointHook)]
        best = {name: record for hook in hooks for name, record in hook.best_records.items()}
        for name, record in best.items():
            where = f"epoch {record['epoch']}, step {record['iter']}"
            score = float(record["score"])
            text = f"{score:,.0f}" if 1e4 <= abs(score) < 1e15 else f"{score:.4g}"
            yield "best", f"{name} {text} after {where}: {record['file']}"
        for name, wrapper in named_wrappers(runner.optim_wrapper).items():
            if wrapper.num_skipped:
                of_name = f" of {name}" if name else ""
                yield "skipped", f"{wrapper.num_skipped:,} steps{of_name}, gradients not finite"


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds))) if seconds >= 10 else f"{seconds:.2f} s"

"""The first and the last lines of a training's log."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from typing_extensions import override

from mm_dist import is_model_wrapper
from mm_runner import __version__
from mm_runner._torch_private import uses_tf32
from mm_runner.hooks import CheckpointHook, Hook
from mm_runner.model import checkpointing_patterns, unwrap_model
from mm_runner.optim import named_wrappers

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

    from ._runner import Runner

__all__ = ["RunReceipt", "batch_of_process", "describe_optimizer", "log_start"]


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


def log_start(runner: Runner) -> None:
    """Log devices, precision, compilation, optimizers, batch, length and places of a built run."""
    device, bare = runner.device, unwrap_model(runner.model)
    about = f"{torch.get_num_threads()} threads each"
    name_of = getattr(getattr(torch, device.type, None), "get_device_name", None)
    if device.type != "cpu" and name_of is not None:
        about = name_of(device)
    backend = f", backend {runner.dist_info.backend}" if runner.distributed else ""
    places = f"{runner.world_size} x {device.type} ({about})"
    toolkits = (("CUDA", torch.version.cuda), ("ROCm", torch.version.hip))
    built_with = "".join(f" with {name} {version}" for name, version in toolkits if version)
    of_torch = f"torch {torch.__version__}{built_with}"
    total = sum(one.numel() for one in bare.parameters())
    trained = sum(one.numel() for one in bare.parameters() if one.requires_grad)
    layout = ", channels_last" if runner.cfg.get("channels_last") else ""
    checkpointed = checkpointing_patterns(runner.cfg.get("activation_checkpointing"))
    lines = [
        ("devices", f"{places}, launcher {runner.launcher}{backend}"),
        ("versions", f"Python {platform.python_version()}, {of_torch}, mm-runner {__version__}"),
        ("parameters", f"{total:,}, of which {trained:,} are trained{layout}"),
    ]
    if checkpointed:
        lines.append(("checkpointed", ", ".join(checkpointed)))
    if is_model_wrapper(runner.model):
        lines.append(("wrapper", type(runner.model).__name__))
    kept = {str(one.dtype).removeprefix("torch.") for one in runner.model.parameters()}
    weights = f"weights in {', '.join(sorted(kept)) or 'nothing'}"
    weights += ", TF32 matrix products" if device.type == "cuda" and uses_tf32() else ""
    handle, asked, compiled = runner.compile_handle, runner.cfg.get("compile"), "off"
    if handle.enabled:
        report = handle.report()
        mode = f", mode {report.mode}" if report.mode else ""
        compiled = f"{report.target} by {report.backend}{mode}, {len(report.regions)} region(s)"
    elif asked not in (None, False):
        compiled = f"off, for compile={asked!r}"
    is_compiled = handle.enabled and isinstance(asked, Mapping) and bool(asked.get("optimizer"))
    size, counts = batch_of_process(runner.train_dataloader), [1]
    precisions, steps = [], []
    for name, wrapper in named_wrappers(runner.optim_wrapper).items():
        prefix = f"{name}: " if name else ""
        is_half = getattr(wrapper, "dtype", None) in (torch.float16, torch.bfloat16)
        lower = f"{str(wrapper.dtype).removeprefix('torch.')} by autocast, " if is_half else ""
        optimizer = describe_optimizer(wrapper.optimizer, is_compiled=is_compiled)
        counts.append(getattr(wrapper, "accumulative_counts", 1))
        whole = "" if size is None else f"{size * runner.world_size * counts[-1]} = "
        per_rank = "the loader's own size" if size is None else str(size)
        ranks = f"{runner.world_size} rank(s) x {counts[-1]} accumulated"
        precisions.append(("precision", f"{prefix}{lower}{weights}"))
        steps += [
            ("optimizer", f"{prefix}{optimizer} in {type(wrapper).__name__}"),
            ("batch", f"{prefix}{whole}{per_rank} per rank x {ranks}"),
        ]
    seed = f"{runner.seed}{', deterministic algorithms' if runner.deterministic else ''}"
    ends = [("length", _length(runner, max(counts))), ("seed", seed)]
    lines += [*precisions, ("compile", compiled), *steps, *ends]
    _log(runner, f"Training {runner.model_name}", lines)


def _length(runner: Runner, accumulated: int) -> str:
    if runner.iter and runner.iter >= runner.max_iters:
        return f"no step, {runner.iter:,} are done"
    steps = f"{runner.max_iters:,} steps"
    if runner.max_epochs > 1:
        steps += f" in {runner.max_epochs:,} epochs"
    if accumulated > 1:
        steps += f", a step being one batch, {accumulated} to an optimizer step"
    return f"{steps}, {runner.iter:,} of them done" if runner.iter else steps


def _log(runner: Runner, title: str, lines: list[tuple[str, str]]) -> None:
    """Log a title and, indented below it, lines that begin with a key, places last."""
    hooks = [hook for hook in runner.hooks if isinstance(hook, CheckpointHook)]
    places = [hook.directory(runner) for hook in hooks] or [runner.work_dir]
    checkpoints = ", ".join(dict.fromkeys(map(str, places)))
    lines = [*lines, ("checkpoints", checkpoints), ("logs", str(runner.log_dir))]
    runner.logger.info("\n".join([title, *(f"  {key:<13}{text}" for key, text in lines)]))


class RunReceipt(Hook):
    """Times a training, and logs the result at the end.

    Attributes:
        has_ended: Whether the training has come to ``after_train``, and all hooks before this.
    """

    priority = "VERY_LOW"

    def __init__(self) -> None:
        self.has_ended = False
        self._started_s = self._evaluated_s = 0.0
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
        self._evaluated_s -= time.perf_counter()

    @override
    def after_val(self, runner: RunView) -> None:
        self._evaluated_s += time.perf_counter()

    def log(self, runner: Runner) -> None:
        """Log the summary of the training; on the main process."""
        spent, steps = time.perf_counter() - self._started_s, runner.iter - self._first_iter
        training_s, lines = max(spent - self._evaluated_s, 1e-9), []
        if runner.interruption.ran_out_of_time:
            left = runner.max_iters - runner.iter
            lines.append(("ended", f"the time was up, {left:,} steps are left"))
        if steps > 0:
            size = batch_of_process(runner.train_dataloader)
            rate = steps * runner.world_size * (size or 0) / training_s
            samples = "" if size is None else f"{rate:,.1f} samples/s, "
            lines.append(("speed", f"{samples}{1000 * training_s / steps:.3g} ms per step"))
        feed = getattr(runner.train_loop, "batches", None)
        if feed is not None:
            lines.append(("data", f"{feed.waited_s / training_s:.0%} of it waiting for data"))
        if self._evaluated_s:
            lines.append(("validation", _clock(self._evaluated_s)))
        hooks = [hook for hook in runner.hooks if isinstance(hook, CheckpointHook)]
        best = {name: record for hook in hooks for name, record in hook.best_records.items()}
        for name, record in best.items():
            where = f"epoch {record['epoch']}, step {record['iter']}"
            score = float(record["score"])
            text = f"{score:,.0f}" if 1e4 <= abs(score) < 1e15 else f"{score:.4g}"
            lines.append(("best", f"{name} {text} after {where}: {record['file']}"))
        for name, wrapper in named_wrappers(runner.optim_wrapper).items():
            if wrapper.num_skipped:
                of_name = f" of {name}" if name else ""
                skipped = f"{wrapper.num_skipped:,} steps{of_name}, gradients not finite"
                lines.append(("skipped", skipped))
        _log(runner, f"Trained {runner.model_name}: {steps:,} steps in {_clock(spent)}", lines)


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds))) if seconds >= 10 else f"{seconds:.2f} s"

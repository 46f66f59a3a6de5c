"""The first lines of a training's log."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from mm_dist import is_model_wrapper
from mm_runner import __version__
from mm_runner._tf32 import uses_tf32
from mm_runner.hooks import CheckpointHook
from mm_runner.model import MODULE_SETTINGS, describe_module_settings, unwrap_model
from mm_runner.optim import computes_in_half, named_wrappers

if TYPE_CHECKING:
    from mm_runner.runner import Runner

__all__ = [
    "aligned",
    "batch_of_process",
    "checkpoint_places",
    "describe_optimizer",
    "log_start",
]

_WIDTH = 13


def log_start(runner: Runner) -> None:
    """Log devices, precision, compilation, optimizers, batch, length and places of a built run."""
    runner.logger.info(aligned(f"Training {runner.model_name}", _lines(runner)))


def aligned(title: str, lines: Iterator[tuple[str, str]]) -> str:
    """Return a title and, indented below it, lines that begin with a key.

    Example:
        >>> print(aligned("Training Net", iter([("seed", "0"), ("devices", "1 x cpu")])))
        Training Net
          seed         0
          devices      1 x cpu
    """
    return "\n".join([title, *(f"  {about:<{_WIDTH}}{text}" for about, text in lines)])


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


def checkpoint_places(runner: Runner) -> str:
    """Return where the run's hooks save; the work directory if it has none."""
    hooks = [hook for hook in runner.hooks if isinstance(hook, CheckpointHook)]
    places = [hook.directory(runner) for hook in hooks] or [runner.work_dir]
    return ", ".join(dict.fromkeys(map(str, places)))


def _lines(runner: Runner) -> Iterator[tuple[str, str]]:
    wrappers = named_wrappers(runner.optim_wrapper)
    prefixes = {name: f"{name}: " if name else "" for name in wrappers}
    group = f", backend {runner.dist_info.backend}" if runner.distributed else ""
    yield "devices", f"{runner.world_size} x {_device(runner)}, launcher {runner.launcher}{group}"
    yield "versions", _versions()
    sizes = [(one.numel(), one.requires_grad) for one in unwrap_model(runner.model).parameters()]
    total, trained = sum(size for size, _ in sizes), sum(size for size, is_on in sizes if is_on)
    layout = ", channels_last" if runner.cfg.get("channels_last") else ""
    yield (
        "parameters",
        f"{total:,}, of which {trained:,} are trained{layout}",
    )
    for key, names in describe_module_settings(unwrap_model(runner.model)).items():
        yield MODULE_SETTINGS[key], names
    if is_model_wrapper(runner.model):
        yield "wrapper", type(runner.model).__name__
    for name, wrapper in wrappers.items():
        yield "precision", prefixes[name] + _precision(runner, wrapper)
    yield "compile", _compile(runner)
    asked = runner.cfg.get("compile")
    compiles_steps = (
        runner.compile_handle.enabled
        and isinstance(asked, Mapping)
        and bool(asked.get("optimizer"))
    )
    for name, wrapper in wrappers.items():
        optimizer = describe_optimizer(wrapper.optimizer, is_compiled=compiles_steps)
        yield "optimizer", f"{prefixes[name]}{optimizer} in {type(wrapper).__name__}"
    for name, wrapper in wrappers.items():
        yield "batch", prefixes[name] + _batch(runner, wrapper)
    yield "data", _data(runner.train_dataloader)
    yield "length", _length(runner)
    deterministic = ", deterministic algorithms" if runner.deterministic else ""
    yield "seed", f"{runner.seed}{deterministic}"
    yield "checkpoints", checkpoint_places(runner)
    yield "logs", str(runner.log_dir)


def _device(runner: Runner) -> str:
    device = runner.device
    name_of = getattr(getattr(torch, device.type, None), "get_device_name", None)
    if device.type == "cpu" or name_of is None:
        return f"{device.type} ({torch.get_num_threads()} threads each)"
    return f"{device.type} ({name_of(device)})"


def _versions() -> str:
    toolkits = (("CUDA", torch.version.cuda), ("ROCm", torch.version.hip))
    built_with = "".join(f" with {name} {version}" for name, version in toolkits if version)
    return (
        f"Python {platform.python_version()}, torch {torch.__version__}{built_with}, "
        f"mm-runner {__version__}"
    )


def _precision(runner: Runner, wrapper: Any) -> str:
    kept = {str(one.dtype).removeprefix("torch.") for one in runner.model.parameters()}
    weights = f"weights in {', '.join(sorted(kept)) or 'nothing'}"
    tf32 = runner.device.type == "cuda" and uses_tf32()
    weights += ", TF32 matrix products" if tf32 else ""
    if not computes_in_half(wrapper):
        return weights
    return f"{str(wrapper.dtype).removeprefix('torch.')} by autocast, {weights}"


def _compile(runner: Runner) -> str:
    handle, asked = runner.compile_handle, runner.cfg.get("compile")
    if not handle.enabled:
        return "off" if asked in (None, False) else f"off, for compile={asked!r}"
    report = handle.report()
    mode = f", mode {report.mode}" if report.mode else ""
    return f"{report.target} by {report.backend}{mode}, {len(report.regions)} region(s)"


def _batch(runner: Runner, wrapper: Any) -> str:
    size = batch_of_process(runner.train_dataloader)
    accumulated = getattr(wrapper, "accumulative_counts", 1)
    if size is None:
        return f"of the loader's own size x {runner.world_size} rank(s) x {accumulated} accumulated"
    effective = size * runner.world_size * accumulated
    return (
        f"{effective} = {size} per rank x {runner.world_size} rank(s) x {accumulated} accumulated"
    )


def _data(loader: Any) -> str:
    workers = getattr(loader, "num_workers", 0)
    parts = [f"{workers} workers per rank" if workers else "loaded in the training process"]
    if workers and getattr(loader, "persistent_workers", False):
        parts.append("kept over epochs")
    if getattr(loader, "pin_memory", False):
        parts.append("pinned memory")
    return ", ".join(parts)


def _length(runner: Runner) -> str:
    if runner.iter and runner.iter >= runner.max_iters:
        return f"no step, {runner.iter:,} are done"
    steps = f"{runner.max_iters:,} steps"
    if runner.max_epochs > 1:
        steps += f" in {runner.max_epochs:,} epochs"
    wrappers = named_wrappers(runner.optim_wrapper).values()
    counts = max(getattr(one, "accumulative_counts", 1) for one in wrappers)
    if counts > 1:
        steps += f", a step being one batch, {counts} to an optimizer step"
    return f"{steps}, {runner.iter:,} of them done" if runner.iter else steps

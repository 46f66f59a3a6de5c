"""The plan of a run, for ``mm-runner check``."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

import mm_compile
import mm_dist
from mm_runner.config import Config
from mm_runner.data import DataSettings, build_dataloader, num_batches
from mm_runner.errors import ConfigError, MMRunnerError, with_place
from mm_runner.evaluator import build_evaluator
from mm_runner.hooks import build_hooks
from mm_runner.hooks._metrics import refuse_missing_metrics
from mm_runner.model import find_checkpointed, uncalled_step, unwrap_model
from mm_runner.optim import (
    build_optim_wrapper,
    build_param_schedulers,
    named_schedulers,
    named_wrappers,
    scale_lr,
)
from mm_runner.registry import init_default_scope, need_names, prepare_libraries
from mm_runner.runner import Runner
from mm_runner.runner._checks import check_run, run_arguments, unknown_keys
from mm_runner.runner._model import (
    as_trainable,
    build_model,
    is_wrapped,
    with_preprocessor,
    wrapper_type,
)
from mm_runner.runner._optimizers import known_batch_size
from mm_runner.runner._resume import StartingPoint
from mm_runner.runner._summary import batch_of_process

# Schedules are followed step by step, or epoch by epoch: a few seconds at most.
_MOST_TURNS = 200_000
_PARTS = 4

_Lines = Iterator[tuple[str, str]]


def make_plan(cfg: Mapping[str, Any], *, world_size: int = 1) -> str:
    """Build everything that a training needs without memory, data or other processes.

    Args:
        cfg: The full configuration.
        world_size: Processes to plan for.

    Returns:
        Lines with their subject in front: model, optimizer with its groups, batch, length,
        schedule, memory of each process, device, precision, compilation, wrapper, hooks, notes.

    Raises:
        ConfigError: If something does not fit.
        ComponentNotFoundError: If a ``type`` names nothing.
    """
    lines = _Plan(cfg, world_size).lines()
    return "".join(f"{subject:<14}{text}".rstrip() + "\n" for subject, text in lines)


class _Plan:
    """Parts of a run, built on the meta device, and the lines that describe them."""

    def __init__(self, cfg: Mapping[str, Any], world_size: int) -> None:
        init_default_scope(cfg.get("default_scope"))
        check_run(run_arguments(cfg, Runner), cfg, Runner)
        load_from = StartingPoint(cfg.get("load_from"), resume=False).load_from
        if load_from is not None and not Path(load_from).exists():
            raise ConfigError(f"load_from: {str(load_from)!r} was given; there is no such file.")
        if world_size < 1:
            raise ConfigError(f"world_size={world_size} was given; a positive number is needed.")
        self.cfg, self.world_size = cfg, world_size
        self.notes: list[str] = []
        dist_cfg = (cfg.get("env_cfg") or {}).get("dist_cfg") or {}
        self.device_type = dist_cfg.get("device_type") or mm_dist.available_device_type()
        prepare_libraries(cfg, lambda: None)
        self.hooks = build_hooks(cfg.get("default_hooks"), cfg.get("custom_hooks")).hooks
        self.wrapper: Any = None  # in one process
        if world_size > 1:
            self.wrapper = wrapper_type(cfg.get("model_wrapper_cfg") or {})
        self.wrappers: dict[str, Any] = {}

    def lines(self) -> _Lines:
        cfg = self.cfg
        reported: dict[str, Any] = {}
        for where in ("val_evaluator", "test_evaluator"):
            if cfg.get(where) is not None:
                reported[where] = build_evaluator(cfg[where], where=where).reported_names()
        self.model = model = as_trainable(self._build_model(), cfg.get("loss"), self.notes.append)
        patterns = need_names(cfg.get("activation_checkpointing"), "activation_checkpointing")
        find_checkpointed(unwrap_model(model), patterns)  # raises where a name matches nothing
        parameters, buffers = list(model.parameters()), list(model.buffers())
        trained = _count(one for one in parameters if one.requires_grad)
        size = _mebibytes(_size([*parameters, *buffers]))
        counts = f"{_count(parameters):,} parameters, {trained:,} trained"
        text = f"{counts}, and {_count(buffers):,} numbers in buffers; {size}"
        yield "model", f"{type(model).__name__}: {text}"
        if cfg.get("optim_wrapper") is not None:
            if self.world_size > 1:
                kind = type(model) if is_wrapped(model) else self.wrapper
                warning = uncalled_step(unwrap_model(model), kind)
                self.notes += [warning] if warning is not None else []
            wrapper = build_optim_wrapper(model, _for_meta(cfg["optim_wrapper"], self.device_type))
            self.wrappers = named_wrappers(wrapper)
            self._measure_run()
            yield from self._optimizer_lines()
            try:
                yield from self._schedule_lines(wrapper, reported.get("val_evaluator"))
            except MMRunnerError:
                raise
            except Exception as error:
                raise ConfigError(f"param_scheduler: {with_place(error)}.") from error
            yield from self._memory_lines()
        yield "device", self.device_type
        dtypes = {name: getattr(one, "dtype", "float32") for name, one in self.wrappers.items()}
        yield "precision", _named(dtypes).replace("torch.", "") or "float32"
        yield "compile", _compilation(cfg.get("compile"), self.device_type)
        if patterns:
            yield "checkpointed", ", ".join(patterns)
        wrapper_name = getattr(self.wrapper, "__name__", "none (one process)")
        yield "wrapper", wrapper_name
        yield "hooks", ", ".join(type(hook).__name__ for hook in self.hooks)
        if "FullySharded" in wrapper_name:
            shard = f"Each process keeps about 1/{self.world_size} of the memory listed."
            self.notes.append(shard)
        is_read = cfg.reads if isinstance(cfg, Config) else lambda _: False
        unused = [key for key in unknown_keys(cfg, Runner) if not is_read(key)]
        if unused:
            self.notes.append(
                f"Keys of the configuration's own, which nothing here uses: {', '.join(unused)}."
            )
        yield from (("note", note) for note in self.notes)

    def _build_model(self) -> nn.Module:
        """Build the model on the meta device; with its values where it, or torch, needs them."""
        model = with_preprocessor(self.cfg["model"], self.cfg.get("data_preprocessor"))
        reason: object = "torch before 2.0"
        if hasattr(torch, "set_default_device"):
            try:
                with torch.device("meta"):
                    # A model may change its own config, which is used again if this fails.
                    return build_model(deepcopy(model) if isinstance(model, Mapping) else model)
            except Exception as error:
                if isinstance(error, MMRunnerError) and error.__cause__ is None:  # the user's
                    raise
                reason = error.__cause__ if isinstance(error, MMRunnerError) else error
        self.notes.append(f"The model was built with its values: without them it fails ({reason}).")
        return build_model(model)

    def _measure_run(self) -> None:
        """Find the length of the run; the dataset is built, nothing is read from it."""
        where, train_cfg = "train_dataloader", self.cfg["train_cfg"]
        settings = DataSettings(0, torch.Generator(), 0, self.world_size)
        try:
            self.loader = build_dataloader(self.cfg[where], settings, shuffle=True, where=where)
        except MMRunnerError:
            raise
        except Exception as error:
            raise ConfigError(
                f"{where}: {with_place(error)}. The length of a run is that of its data: change "
                f"their paths, as by --cfg-options {where}.dataset.data_root=DIR."
            ) from error
        self.by_epoch = (
            train_cfg.get("max_iters") is None or train_cfg.get("max_epochs") is not None
        )
        self.epoch_steps: int | None = None  # the data may have no length
        if self.by_epoch:
            num_batches(self.loader, where)
        with suppress(TypeError):
            self.epoch_steps = _epoch_steps(self.loader, self.world_size) or None
        self.num_epochs = int(train_cfg["max_epochs"]) if self.by_epoch else 1
        steps = self.num_epochs * (self.epoch_steps or 0)
        self.num_steps = steps if self.by_epoch else int(train_cfg["max_iters"])

    def _optimizer_lines(self) -> _Lines:
        for name, wrapper in self.wrappers.items():
            prefix = f"{name}: " if name else ""
            counts = getattr(wrapper, "accumulative_counts", 1)
            scaling = self.cfg.get("auto_scale_lr") or {}
            if scaling.get("enable", False):
                effective = self.world_size * known_batch_size(self.loader) * counts
                scale_lr(wrapper, effective / scaling["base_batch_size"])
            if counts > 1:
                self.notes.append(
                    f"{prefix}The optimizer steps once in {counts} steps of the run, which are "
                    "batches. Schedules with by_epoch=False, max_iters and intervals count batches."
                )
            kind, of = type(wrapper.optimizer), type(wrapper).__name__
            yield "optimizer", f"{prefix}{kind.__module__}.{kind.__name__} in {of}"
            for index, group in enumerate(wrapper.optimizer.param_groups):
                settings = ", ".join(
                    f"{key} {group[key] if key == 'betas' else format(float(group[key]), 'g')}"
                    for key in ("lr", "weight_decay", "momentum", "betas")
                    if key in group
                )
                params = group["params"]
                count = f"{_count(params):,} parameters in {len(params)} tensors"
                yield f"  group {index}", f"{count}; {settings}"
            size = batch_of_process(self.loader)
            text = "as the dataset gives it"
            if size is not None:
                text = f"{self.world_size * size * counts} = {size} of a process"
            of_all = f"x {self.world_size} process(es) x {counts} accumulated"
            yield "batch", f"{prefix}{text} {of_all}"
        shape = f"; {self.epoch_steps} go through the data once" if self.epoch_steps else ""
        if self.by_epoch:
            shape = f" = {self.num_epochs} epochs x {self.epoch_steps}"
        yield "length", f"{self.num_steps} steps{shape}"

    def _schedule_lines(self, wrapper: Any, metrics: Any) -> _Lines:
        """Step through the schedules; yield the rates at the beginning, turns and end."""
        built = build_param_schedulers(
            wrapper,
            self.cfg.get("param_scheduler"),
            num_epochs=self.num_epochs,
            num_iters=self.num_steps,
            epoch_length=self.epoch_steps,
        )
        schedules = [one for group in named_schedulers(built).values() for one in group]
        if metrics is not None:
            refuse_missing_metrics(metrics, self.hooks, schedules)
        followed = [one for one in schedules if not one.need_val_args]
        if len(followed) < len(schedules):
            self.notes.append("A schedule follows a metric, and is not shown.")
        if not self.by_epoch and any(one.by_epoch for one in followed):
            self.notes.append(
                "A schedule counts epochs, and the run counts iterations: it will not change."
            )
        epoch_steps = (self.by_epoch and self.epoch_steps) or self.num_steps
        stride = epoch_steps if all(one.by_epoch for one in followed) else 1
        num_turns = min(self.num_steps // stride, _MOST_TURNS) if followed else 1
        if num_turns == _MOST_TURNS:
            self.notes.append(f"The schedule is shown up to step {num_turns * stride}.")
        shown = {(num_turns - 1) * part // _PARTS for part in range(_PARTS + 1)}
        for one in followed:
            unit = epoch_steps if one.by_epoch else 1
            shown |= {one.begin * unit // stride, one.end * unit // stride}
        for turn in range(num_turns):
            if turn in shown:
                step = turn * stride
                rates = {
                    name: f"{float(one.optimizer.param_groups[0]['lr']):.4g}"
                    for name, one in self.wrappers.items()
                }
                epoch = f", epoch {step // epoch_steps}" if self.by_epoch else ""
                yield "schedule", f"step {step}{epoch}: lr {_named(rates)}"
            ends_epoch = self.by_epoch and (turn + 1) * stride % epoch_steps == 0
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the optimizer does not step between
                for one in followed:
                    if ends_epoch or not one.by_epoch:
                        one.step()

    def _memory_lines(self) -> _Lines:
        """Yield the memory of each process, as far as it is certain."""
        optimizers = [one.optimizer for one in self.wrappers.values()]
        params = [p for one in optimizers for group in one.param_groups for p in group["params"]]
        trained = [one for one in params if one.requires_grad]
        parts: dict[str, int | None] = {
            "model": _size([*self.model.parameters(), *self.model.buffers()]),
            "gradients": _size(trained),
            "optimizer": self._state_size(optimizers, trained),
        }
        total = _mebibytes(sum(size or 0 for size in parts.values()))
        text = "; ".join(f"{name} {_mebibytes(size)}" for name, size in parts.items())
        yield "memory", f"{total} in each process: {text}"
        yield "", "not counted: activations, batches, averages, what kernels and DDP need"

    def _state_size(self, optimizers: list[Any], trained: list[Tensor]) -> int | None:
        """Take a step over parameters without values, and count what the optimizers keep."""
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter)
        total = 0
        for optimizer in optimizers:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    optimizer.step()
            except Exception as error:  # noqa: BLE001 - some read values, or need a closure
                reason = f"{type(error).__name__}: {error}"[:200]
                self.notes.append(f"What {type(optimizer).__name__} keeps is not known: {reason}")
                return None
            values = [one for state in optimizer.state.values() for one in state.values()]
            total += _size(one for one in values if isinstance(one, Tensor))
        return total


def _for_meta(cfg: Any, device_type: str) -> Any:
    """Return the optimizers' config for parameters on meta: no fused kernels, autocast's device."""
    if not isinstance(cfg, Mapping):
        return cfg
    changed = {name: _for_meta(part, device_type) for name, part in cfg.items() if name != "fused"}
    kind = cfg.get("type")
    is_amp = str(getattr(kind, "__name__", kind)).endswith("AmpOptimWrapper")
    if is_amp and cfg.get("device_type") is None:
        changed["device_type"] = device_type
    return changed


def _epoch_steps(loader: DataLoader[Any], world_size: int) -> int:
    if isinstance(loader.dataset, IterableDataset):
        return len(loader)  # of a process
    if loader.batch_size is None or world_size == 1:
        return math.ceil(len(loader) / world_size)
    share = math.ceil(len(loader.sampler) / world_size)  # type: ignore[arg-type]
    return share // loader.batch_size if loader.drop_last else math.ceil(share / loader.batch_size)


def _compilation(compiled: Any, device_type: str) -> str:
    if compiled in (None, False):
        return "off"
    if isinstance(compiled, Mapping) and compiled.get("cache") is True:
        compiled = {**compiled, "cache": "compile_cache"}  # beside the work directory
    support = mm_compile.can_compile(compiled, device_type)
    return str(compiled) if support.ok else f"cannot: {support.reason}"


def _count(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _size(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _mebibytes(size: int | None) -> str:
    return "not known" if size is None else f"{size / 2**20:,.2f} MiB"


def _named(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {value}" if name else f"{value}" for name, value in values.items())

"""A plan as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mm_runner.model import MODULE_SETTINGS

__all__ = ["plan_as_text"]

_MIB = 2**20


def plan_as_text(plan: Mapping[str, Any]) -> str:
    """Return the plan as lines, each with its subject in front.

    Args:
        plan: As of :func:`make_plan`.
    """
    return "".join(f"{about:<14}{text}".rstrip() + "\n" for about, text in _lines(plan))


def _lines(plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    model = plan["model"]
    counts = f"{model['parameters']:,} parameters, {model['trained']:,} trained"
    rest = f"{model['buffers']:,} numbers in buffers; {_sizes(model['bytes'])}"
    yield "model", f"{model['name']}: {counts}, and {rest}"
    if "optimizers" in plan:
        yield from _training_lines(plan)
    fast = plan["acceleration"]
    precision = ", ".join(_named(fast["precision"])) or "float32"
    yield "device", fast["device"]
    yield "precision", precision
    yield "compile", str(fast["compile"])
    yield from ((label, fast[key]) for key, label in MODULE_SETTINGS.items() if key in fast)
    yield "wrapper", fast["wrapper"] or "none (one process)"
    yield "hooks", ", ".join(plan["hooks"])
    yield from (("note", note) for note in plan["notes"])


def _training_lines(plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for one in plan["optimizers"]:
        prefix = f"{one['name']}: " if one["name"] else ""
        yield "optimizer", f"{prefix}{one['from']}.{one['optimizer']} in {one['wrapper']}"
        for index, group in enumerate(one["groups"]):
            settings = ", ".join(
                f"{name} {value:g}" if isinstance(value, (int, float)) else f"{name} {value}"
                for name, value in group.items()
                if name not in {"parameters", "tensors"}
            )
            count = f"{group['parameters']:,} parameters in {group['tensors']} tensors"
            yield f"  group {index}", f"{count}; {settings}"
    batch, length = plan["batch"], plan["length"]
    for one in plan["optimizers"]:
        prefix = f"{one['name']}: " if one["name"] else ""
        processes = f"{batch['per_process']} of a process x {batch['world_size']} process(es)"
        effective = batch["effective"][one["name"]]
        accumulated = f"{one['accumulative_counts']} accumulated"
        yield "batch", f"{prefix}{effective} = {processes} x {accumulated}"
    epochs, per_epoch = length["epochs"], length["steps_per_epoch"]
    shape = f" = {epochs} epochs x {per_epoch}" if epochs else ""
    if per_epoch and not epochs:
        shape = f"; {per_epoch} go through the data once"
    yield "length", f"{length['steps']} steps{shape}"
    for point in plan["schedule"]:
        rates = ", ".join(_named(point["lr"], "{:.4g}"))
        epoch = f", epoch {point['epoch']}" if epochs else ""
        yield "schedule", f"step {point['step']}{epoch}: lr {rates}"
    yield from _memory_lines(plan)


def _memory_lines(plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    memory = plan["memory"]
    named = {
        "model": plan["model"]["bytes"],
        "gradients": memory["gradients"],
        "optimizer": memory["optimizer_state"],
        "average": memory["averages"],
        "DDP buckets": memory["ddp_buckets"],
    }
    optional = ("average", "DDP buckets")
    parts = {name: sizes for name, sizes in named.items() if name not in optional or sizes != {}}
    total = sum(sum(sizes.values()) for sizes in parts.values() if sizes is not None)
    text = "; ".join(
        f"{name} {'not known' if sizes is None else _sizes(sizes)}" for name, sizes in parts.items()
    )
    yield "memory", f"{total / _MIB:,.2f} MiB in each process: {text}"
    yield "", f"not counted: {', '.join(_not_counted(memory))}"


def _not_counted(memory: Mapping[str, Any]) -> Iterator[str]:
    yield from ("activations", "batches", "what kernels and communication need besides")
    if memory["averages"] != {}:
        yield "the weights themselves once more while their average is validated"
    yield "what code of your own keeps"


def _sizes(sizes: Mapping[str, int]) -> str:
    total = sum(sizes.values())
    return f"{total / _MIB:,.2f} MiB ({', '.join(sizes) or 'nothing'})"


def _named(values: Mapping[str, Any], form: str = "{}") -> list[str]:
    return [
        f"{name}: {form.format(value)}" if name else form.format(value)
        for name, value in values.items()
    ]

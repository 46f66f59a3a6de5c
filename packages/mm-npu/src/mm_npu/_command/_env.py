"""``mm-npu env``: print the report."""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from mm_npu._devices._torch_npu import AUTOLOAD_VARIABLE, set_environment

if TYPE_CHECKING:
    from mm_npu._devices._report import NpuReport

_NOT_FOUND = "not found"
_PATHS = {
    "torch_npu": "those of torch_npu",
    "portable": "the portable ones of mm-npu",
    "refused": "refused, since MM_NPU_STRICT insists on an NPU",
}


def print_environment(*, as_json: bool) -> int:
    """Print what there is, and return 0 if an NPU can be used, else 1."""
    report = _look(dict(os.environ))
    if as_json:
        sys.stdout.write(json.dumps(asdict(report), indent=2) + "\n")
    else:
        rows = dict(_rows(report))
        width = max(map(len, rows))
        sys.stdout.writelines(f"{name:<{width}}  {value}\n" for name, value in rows.items())
    return 0 if report.reason is None else 1


def _look(env: Mapping[str, str]) -> "NpuReport":
    # In this process only: torch would load a torch_npu that is broken, and end. It is loaded
    # later, where that is expected.
    set_environment(AUTOLOAD_VARIABLE, "0")
    try:
        from mm_npu._devices._report import npu_report  # noqa: PLC0415 - imports torch
    finally:
        set_environment(AUTOLOAD_VARIABLE, env.get(AUTOLOAD_VARIABLE))
    return npu_report(env)


def _rows(report: "NpuReport") -> Iterator[tuple[str, str]]:
    yield "mm-npu", report.mm_npu
    yield "torch", report.torch
    yield "torch_npu", report.torch_npu or _NOT_FOUND
    yield "CANN", report.cann or _NOT_FOUND
    yield "driver", report.driver or _NOT_FOUND
    yield "devices", ", ".join([str(report.device_count), *report.device_names])
    yield "ASCEND_RT_VISIBLE_DEVICES", _or_not_set(report.visible_devices)
    yield "autoload of torch_npu", report.autoload
    yield "NpuFused* are", _PATHS[report.path]
    if report.reason is not None:
        yield "reason", report.reason


def _or_not_set(value: str | None) -> str:
    return "not set" if value is None else repr(value)

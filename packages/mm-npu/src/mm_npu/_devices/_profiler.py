"""The profiler of NPUs."""

from importlib import import_module
from types import ModuleType

from mm_npu._availability import npu_unavailable_reason
from mm_npu._errors import NpuUnavailableError


def npu_profiler() -> ModuleType:
    """Return ``torch_npu.profiler``, the counterpart of ``torch.profiler`` for NPUs.

    torch's own profiler does not record the kernels of an NPU. This one has its names: ``profile``,
    ``schedule``, ``tensorboard_trace_handler``, ``ProfilerActivity`` (``CPU`` and ``NPU``, both by
    default), and ``export_chrome_trace`` of a finished profile.

    Raises:
        NpuUnavailableError: If there is no NPU.

    Example:
        >>> npu_profiler().ProfilerActivity.NPU  # doctest: +SKIP
    """
    reason = npu_unavailable_reason()
    if reason is not None:
        raise NpuUnavailableError(f"The profiler of NPUs was asked for, but {reason}")
    return import_module("torch_npu.profiler")

"""Logging: scalars, log lines, the progress bar and files."""

from typing import TYPE_CHECKING

from mm_runner._lazy import importing

from ._console import RunConsole, as_clock, close_logger, current_logger, open_logger
from ._log_processor import LogProcessor, build_log_processor
from ._message_hub import MessageHub
from ._writers import (
    GuardedWriter,
    JsonLinesWriter,
    LogWriter,
    TensorBoardWriter,
    writer_configs,
)

if TYPE_CHECKING:
    from ._mlflow import MLflowWriter
    from ._wandb import WandbWriter

__all__ = [
    "GuardedWriter",
    "JsonLinesWriter",
    "LogProcessor",
    "LogWriter",
    "MLflowWriter",
    "MessageHub",
    "RunConsole",
    "TensorBoardWriter",
    "WandbWriter",
    "as_clock",
    "build_log_processor",
    "close_logger",
    "current_logger",
    "open_logger",
    "writer_configs",
]

if not TYPE_CHECKING:  # which would take any name then
    __getattr__, __dir__ = importing(__name__, "_mlflow", "_wandb")

"""Logging: scalars, log lines, the progress bar and files."""

from ._console import RunConsole, as_clock, close_logger, current_logger, open_logger
from ._log_processor import LogProcessor, build_log_processor
from ._message_hub import MessageHub, as_numbers
from ._mlflow import MLflowWriter
from ._wandb import WandbWriter
from ._writers import (
    GuardedWriter,
    JsonLinesWriter,
    LogWriter,
    TensorBoardWriter,
    writer_configs,
)

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
    "as_numbers",
    "build_log_processor",
    "close_logger",
    "current_logger",
    "open_logger",
    "writer_configs",
]

"""What a run tells: the scalars it collects, the lines, the progress bar and the files."""

from ._background import BackgroundScalars
from ._console import RunConsole
from ._host_numbers import as_numbers
from ._log_processor import LogProcessor
from ._log_processor_configs import build_log_processor
from ._message_hub import MessageHub
from ._progress import TrainingClock, as_clock
from ._recent_lines import recent_lines
from ._run_logger import close_logger, open_logger
from ._tensorboard import TensorBoardWriter
from ._wandb import WandbWriter
from ._writer_configs import writer_configs
from ._writers import JsonLinesWriter, LogWriter

__all__ = [
    "BackgroundScalars",
    "JsonLinesWriter",
    "LogProcessor",
    "LogWriter",
    "MessageHub",
    "RunConsole",
    "TensorBoardWriter",
    "TrainingClock",
    "WandbWriter",
    "as_clock",
    "as_numbers",
    "build_log_processor",
    "close_logger",
    "open_logger",
    "recent_lines",
    "writer_configs",
]

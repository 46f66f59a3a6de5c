"""What a run tells: the scalars it collects, the lines, the progress bar and the files."""

from ._console import RunConsole
from ._log_processor import LogProcessor
from ._message_hub import MessageHub
from ._run_logger import close_logger, open_logger
from ._writers import JsonLinesWriter

__all__ = [
    "JsonLinesWriter",
    "LogProcessor",
    "MessageHub",
    "RunConsole",
    "close_logger",
    "open_logger",
]

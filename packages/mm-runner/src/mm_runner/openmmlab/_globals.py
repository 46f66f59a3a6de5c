"""MMEngine's global objects, as its libraries read them during a run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmengine.logging import MessageHub as TheirMessageHub
from mmengine.logging import MMLogger
from mmengine.registry import VISBACKENDS, VISUALIZERS, DefaultScope
from mmengine.visualization import Visualizer  # registers it and its back ends
from typing_extensions import override

from mm_runner.reporting import MessageHub

if TYPE_CHECKING:
    from mm_runner.registry._bridges import FindLogger

_numbers = count(1)


def begin(arguments: Mapping[str, Any], find_logger: FindLogger) -> None:
    """Create MMEngine's default scope, logger, message hub and visualizer for a run."""
    name = f"mm-runner-{next(_numbers)}"
    DefaultScope.get_instance(name, scope_name=arguments["default_scope"])
    logger = MMLogger.get_instance(name)
    logger.handlers = [_ToLogOfRun(find_logger)]
    hub = TheirMessageHub.get_instance(name)
    hub.get_info = partial(_fact, hub.runtime_info)
    visualizer = {"type": Visualizer, **(arguments.get("visualizer") or {}), "name": name}
    if visualizer.get("vis_backends"):  # what it draws, images too, is kept in files at least
        backends = [one for one in visualizer["vis_backends"] if _is_theirs(one)]
        visualizer["vis_backends"] = backends or [{"type": "LocalVisBackend"}]
    visualizer["save_dir"] = str(Path(arguments["work_dir"]) / "vis_data")
    VISUALIZERS.build(visualizer)


def _fact(set_by_library: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """Return what library code has set, or else what the message hub of the run knows."""
    if key in set_by_library:
        return set_by_library[key]
    return MessageHub.get_current_instance().get_info(key, default)


def _is_theirs(backend: Any) -> bool:
    kind = backend.get("type") if isinstance(backend, Mapping) else backend
    return not isinstance(kind, str) or VISBACKENDS.get(kind) is not None


class _ToLogOfRun(logging.FileHandler):
    """Passes records of MMEngine's logger on to the log of a run.

    Its models write how each parameter was initialized to the stream of a handler of files, or log
    it where there is none: hundreds of lines, which here are of the level ``DEBUG``.
    """

    def __init__(self, find_logger: FindLogger) -> None:
        logging.Handler.__init__(self)  # there is no file
        self._find_logger = find_logger
        self.stream: Any = self

    def write(self, text: str) -> None:
        """Log text that is written to the stream."""
        logger = self._find_logger()
        if logger is not None and text.strip():
            logger.debug(text.strip())

    @override
    def flush(self) -> None:
        pass

    @override
    def close(self) -> None:
        logging.Handler.close(self)

    @override
    def emit(self, record: logging.LogRecord) -> None:
        logger = self._find_logger()
        if logger is not None and logger.isEnabledFor(record.levelno):
            logger.handle(record)

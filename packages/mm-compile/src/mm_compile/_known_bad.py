"""What does not go well with the installed torch, known before anything is compiled.

Not errors: each is worked around, or hurts only some models. One line in the log at the beginning
is worth more than a strange error in the middle of a run.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ._config import CompileConfig
from ._device_graphs import records_graphs
from ._torch import torch_version

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class KnownBad:
    """Versions of torch, and what a config or model must not ask of them.

    Attributes:
        since: The first version concerned.
        before: The first version that is right again.
        applies: ``applies(model, config)`` says whether this is asked for.
        message: What happens, and what to do.
        level: That of the log; lower where nothing goes wrong.
    """

    since: tuple[int, int]
    before: tuple[int, int]
    applies: Callable[[nn.Module, CompileConfig], bool]
    message: str
    level: int = logging.WARNING


def _is_whole_in_ddp(model: nn.Module, config: CompileConfig) -> bool:
    is_parallel = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    is_wrapped = is_parallel or isinstance(model, DistributedDataParallel)
    return is_wrapped and config.regions is None and "forward" in config.target


def _has_regions(_model: nn.Module, config: CompileConfig) -> bool:
    return config.regions is not None


def _records_graphs(_model: nn.Module, config: CompileConfig) -> bool:
    return records_graphs(config.keywords)


TABLE: Sequence[KnownBad] = (
    # Source: torch's tracker, "torch2.1.0 compile+amp+ddp cause NotImplementedError": autocast is
    # entered in one of the graphs that dynamo cuts at the gradient buckets, and left in another.
    KnownBad(
        (2, 1),
        (2, 2),
        _is_whole_in_ddp,
        "a whole model in DistributedDataParallel fails with NotImplementedError if its own code "
        "enters autocast. Enter autocast around the model, or set regions='auto'",
    ),
    # Source: torch's change "Add cudagraph_mark_step_begin in torch.compiler", after 2.1.
    KnownBad(
        (2, 0),
        (2, 2),
        _records_graphs,
        "it cannot be told where an iteration begins, so with device graphs a model that is called "
        "twice before backward, or by regions, may have results overwritten. Use mode='default'",
    ),
    # Source: measured here; parameters are parts of a graph before 2.5, and its inputs since.
    KnownBad(
        (2, 0),
        (2, 5),
        _has_regions,
        "it compiles every region anew, also those that are alike: they start no faster than the "
        "whole model",
        logging.INFO,
    ),
)


def tell_known_bad(
    model: nn.Module,
    config: CompileConfig,
    *,
    version: tuple[int, int] | None = None,
    table: Sequence[KnownBad] = TABLE,
) -> None:
    """Log, once for each model, what this torch is known to do badly of what is asked for.

    Args:
        model: The model, wrapped or not.
        config: The checked config.
        version: Major and minor version of torch; None for the installed one.
        table: What is known.
    """
    version = version or torch_version()
    for entry in table:
        if entry.since <= version < entry.before and entry.applies(model, config):
            _logger.log(
                entry.level,
                "compile: of PyTorch %s it is known: %s.",
                _named(version),
                entry.message,
            )


def _named(version: tuple[int, int]) -> str:
    return torch.__version__ if version == torch_version() else ".".join(map(str, version))

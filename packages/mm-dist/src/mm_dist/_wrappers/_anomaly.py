"""Find the parameters that a loss did not reach."""

import logging
from functools import partial

from torch import Tensor, nn

_logger = logging.getLogger(__name__)


class GradientWatch:
    """Notes which parameters of a module get a gradient, and names the others.

    Args:
        module: The module to watch; each of its trainable parameters gets a hook.
        prefix: Comes before each name.
    """

    def __init__(self, module: nn.Module, prefix: str = "") -> None:
        self._names = [prefix + n for n, p in module.named_parameters() if p.requires_grad]
        self._reached: set[str] = set()
        self._reported: list[str] = []
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                # untyped in torch
                parameter.register_hook(partial(self._note, prefix + name))  # type: ignore[no-untyped-call]

    def _note(self, name: str, _: Tensor) -> None:
        self._reached.add(name)

    def start(self) -> None:
        """Forget the last step."""
        self._reached.clear()

    def report(self) -> list[str]:
        """Return the parameters without gradient since ``start``; log them when they changed."""
        missing = [name for name in self._names if name not in self._reached]
        if missing and missing != self._reported:
            _logger.warning(
                "The loss did not reach these parameters: %s. Freeze them "
                "(requires_grad=False), use them in the loss, or pass "
                "find_unused_parameters=True.",
                ", ".join(missing),
            )
        self._reported = missing
        return missing

"""Test-time augmentation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from mm_runner.errors import ConfigError
from mm_runner.registry import MODELS, build_from_cfg, check_cfg

from ._hook import Hook

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["PrepareTTAHook"]

# Stands for the model, which is not built yet; fits every annotation.
_OF_THE_RUN: Any = object()


class PrepareTTAHook(Hook):
    """Wraps the model in a :class:`~mm_runner.model.BaseTTAModel` for tests.

    Training, validation, checkpoints and ``runner.model`` use the bare model.

    Args:
        tta_cfg: Config of the ``BaseTTAModel``; its ``module`` is the model of the run.

    Raises:
        ConfigError: If ``tta_cfg`` does not fit.
        ComponentNotFoundError: If its ``type`` names nothing.

    Example:
        >>> hook = dict(type="PrepareTTAHook", tta_cfg=dict(type="my_package.tta:Averaged"))
    """

    def __init__(self, tta_cfg: Mapping[str, Any]) -> None:
        check_cfg(tta_cfg, MODELS, {"module": _OF_THE_RUN}, where="tta_cfg")
        self.tta_cfg = dict(tta_cfg)

    @override
    def before_test(self, runner: RunView) -> None:
        loop = runner.test_loop
        if not hasattr(loop, "use_model"):
            raise ConfigError(
                "PrepareTTAHook: the test loop is a TestLoop, or has its use_model(model); this "
                f"one is a {type(loop).__name__}. Let it call the BaseTTAModel itself."
            )
        model = build_from_cfg(self.tta_cfg, MODELS, {"module": runner.model}, where="tta_cfg")
        # Not runner.model: hooks that load or average weights know it by its parameters' names.
        loop.use_model(model)

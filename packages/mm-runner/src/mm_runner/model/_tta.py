"""Test-time augmentation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from mm_runner.errors import ConfigError
from mm_runner.evaluator import join, layout_of, split
from mm_runner.registry import MODELS, build_from_cfg, short_repr

from ._steps import eval_step_of


class BaseTTAModel(nn.Module, ABC):
    """Predicts for several views of each sample, such as flipped ones, and merges the predictions.

    Override :meth:`merge_preds`. Each sample of the dataset holds its views in lists; a batch is
    then a mapping, or a sequence, whose parts are lists with an entry for each view: that is what
    ``pseudo_collate`` makes, and ``default_collate`` too. A part that is a tensor, such as labels,
    is the same for all views.

    Args:
        module: The model whose predictions are merged, or its config.
        data_preprocessor: For a ``module`` given as a config without its own.

    Attributes:
        module: The model.

    Raises:
        ConfigError: If ``module`` cannot be tested.
    """

    def __init__(
        self,
        module: nn.Module | Mapping[str, Any],
        data_preprocessor: nn.Module | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if isinstance(module, Mapping):
            given = None if data_preprocessor is None else {"data_preprocessor": data_preprocessor}
            module = build_from_cfg(module, MODELS, given)
        if not isinstance(module, nn.Module):
            raise ConfigError(f"module: an nn.Module or its config is needed, got {module!r}.")
        eval_step_of(module, "test_step")
        self.module = module

    @abstractmethod
    def merge_preds(self, data_samples_list: list[list[Any]]) -> Sequence[Any]:
        """Merge the predictions for the views of each sample.

        Args:
            data_samples_list: For each sample of the batch a list with the prediction for each
                view: an entry of the list that the model returned; or, where it returned tensors,
                their rows.

        Returns:
            One prediction for each sample, of the same form.
        """

    def test_step(self, data: Any) -> Any:
        """Return the merged predictions for one batch, in the form that the model returns."""
        return self._merged(data, "test_step")

    def val_step(self, data: Any) -> Any:
        """Return the same for a batch of the validation set."""
        return self._merged(data, "val_step")

    def _merged(self, data: Any, name: str) -> Any:
        step = eval_step_of(self.module, name)
        predictions = [step(view) for view in _views(data)]
        layout = layout_of(predictions[0])
        by_view = [split(one) for one in predictions]
        merged = self.merge_preds([list(views) for views in zip(*by_view, strict=True)])
        if not isinstance(merged, Sequence) or len(merged) != len(by_view[0]):
            raise ConfigError(
                f"{type(self).__name__}.merge_preds returned {short_repr(merged)} for "
                f"{len(by_view[0])} samples; a list with one prediction for each is needed."
            )
        return join(merged, layout)


def _views(data: Any) -> list[Any]:
    """Return a batch for each view."""
    if not isinstance(data, (Mapping, list, tuple)):
        raise ConfigError(
            f"A batch for several views is a dict or a list of parts, got {type(data).__name__}."
        )
    parts = list(data.values()) if isinstance(data, Mapping) else list(data)
    numbers = sorted({len(one) for one in parts if not isinstance(one, Tensor)})
    if len(numbers) != 1 or 0 in numbers:
        raise ConfigError(
            "The parts of a batch must have one entry for each view; there are "
            f"{' and '.join(map(str, numbers)) or 'none'}. Let the dataset give each part as a "
            "list of views, or what all share as a tensor that default_collate stacks."
        )
    views = [
        [one if isinstance(one, Tensor) else one[index] for one in parts]
        for index in range(numbers[0])
    ]
    is_dict = isinstance(data, Mapping)
    return [dict(zip(data, view, strict=True)) for view in views] if is_dict else views

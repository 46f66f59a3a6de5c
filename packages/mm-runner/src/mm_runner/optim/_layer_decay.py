"""Learning rates that fall from the head of a model to its first layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn
from typing_extensions import override

from mm_runner.errors import ConfigError
from mm_runner.model import repeated_blocks, unwrap_model

from ._constructors import DefaultOptimWrapperConstructor, NamedParameter, walk_parameters

__all__ = ["LearningRateDecayOptimWrapperConstructor"]

_RATES = ("decay_rate", "layer_decay_rate")


class LearningRateDecayOptimWrapperConstructor(DefaultOptimWrapperConstructor):
    """Multiplies the learning rate of a layer by ``decay_rate`` once for each layer above it.

    The layers are the repeated blocks of the model, of its ``backbone`` if it has one; what comes
    before the first is one more, and what follows the last, or is no part of the backbone, trains
    at the full rate. A model with ``get_layer_depth(name)``, or a part of it with
    ``get_layer_depth(name, prefix)``, returns ``(depth, number of depths)`` itself.

    ``LearningRateDecayOptimizerConstructor``, as in mmdet and mmseg, is another name of it.

    Args:
        optim_wrapper_cfg: As of :class:`DefaultOptimWrapperConstructor`.
        paramwise_cfg: As there (other rules and this one multiply), and:

            * ``decay_rate``: between 0 and 1; as in mmdet, parameters of one dimension then have no
              weight decay unless ``flat_decay_mult`` is given. Or ``layer_decay_rate``, as in
              mmpretrain, which leaves weight decay alone;
            * ``num_layers``: over how many rates the blocks spread, by default one for each block;
            * ``layers``: names of the blocks, in order, if the model's are not found.
        where: Path of the config, for messages.

    Raises:
        ConfigError: If a key is unknown or has a value that cannot work.

    Example:
        >>> cfg = dict(optimizer=dict(type="SGD", lr=1.0))
        >>> rules = dict(layer_decay_rate=0.5, layers=["0", "1"])
        >>> constructor = LearningRateDecayOptimWrapperConstructor(cfg, rules)
        >>> wrapper = constructor(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
        >>> [group["lr"] for group in wrapper.param_groups]
        [0.25, 0.5]
    """

    def __init__(
        self,
        optim_wrapper_cfg: Mapping[str, Any],
        paramwise_cfg: Mapping[str, Any] | None = None,
        *,
        where: str = "optim_wrapper",
    ) -> None:
        cfg = dict(paramwise_cfg or {})
        place = f"{where}.paramwise_cfg"
        given = {name: cfg.pop(name) for name in _RATES if name in cfg}
        if len(given) != 1:
            raise ConfigError(
                f"{place}: one of decay_rate and layer_decay_rate is needed, got "
                f"{given or 'neither'}."
            )
        ((name, self._rate),) = given.items()
        if not isinstance(self._rate, (int, float)) or not 0 < self._rate <= 1:
            raise ConfigError(f"{place}.{name}: a number above 0, at most 1, got {self._rate!r}.")
        self._num_layers = number = cfg.pop("num_layers", None)
        if number is not None and not (isinstance(number, int) and number > 0):
            raise ConfigError(f"{place}.num_layers: a positive integer, got {number!r}.")
        kind = cfg.pop("decay_type", "layer_wise")
        if kind not in {"layer_wise", "layer_wise_vit"}:
            raise ConfigError(
                f"{place}.decay_type: 'layer_wise', got {kind!r}; for rates by stage give the "
                "stages with layers=[...]."
            )
        self._blocks: list[str] | None = cfg.pop("layers", None)
        super().__init__(optim_wrapper_cfg, cfg, where=where)
        if self._base["lr"] is None:
            raise ConfigError(f"{where}.optimizer.lr: a learning rate that decays is needed.")
        # Not empty: without rules there are no groups.
        self._paramwise.setdefault("lr_mult", 1.0)
        if name == "decay_rate" and self._base["weight_decay"] is not None:
            self._paramwise.setdefault("flat_decay_mult", 0.0)
        self._scales: dict[str, float] = {}

    @override
    def settings_of(self, one: NamedParameter) -> dict[str, Any]:
        settings = super().settings_of(one)
        return {**settings, "lr": settings.get("lr", self._base["lr"]) * self._scales[one.name]}

    @override
    def _parameters(self, model: nn.Module) -> list[Any]:
        names = [one.name for one in walk_parameters(model)]
        self._scales = dict.fromkeys(names, 1.0)
        for path, module in _modules_of(model):
            ask: Any = getattr(module, "get_layer_depth", None)
            if ask is not None:  # the model, or a part of it, knows the depths of its layers
                prefix = (f"{path}.",) if path else ()
                for name in names:
                    if name.startswith(prefix or ("",)):
                        depth, count = ask(name, *prefix)
                        self._scales[name] = self._rate ** (count - 1 - depth)
                break
        else:
            self._scales.update(self._scales_of_blocks(model, names))
        return super()._parameters(model)

    def _scales_of_blocks(self, model: nn.Module, names: list[str]) -> dict[str, float]:
        inner = unwrap_model(model)
        prefix, blocks = "", self._blocks
        backbone = getattr(inner, "backbone", None)
        if blocks is None and isinstance(backbone, nn.Module):
            prefix, blocks = "backbone.", list(repeated_blocks(unwrap_model(backbone)))
        if not blocks:
            prefix, blocks = "", list(repeated_blocks(inner))
        inside = [name for name in names if name.startswith(prefix)]
        depths = _depths_of([name.removeprefix(prefix) for name in inside], blocks)
        if not any(depths):
            raise ConfigError(
                f"{self._where}.paramwise_cfg: {type(inner).__name__} has no repeated blocks to "
                "divide into layers; name them in order with layers=[...], or give the model "
                "get_layer_depth(name)."
            )
        rates = self._num_layers or len(blocks)
        levels = [0, *(1 + index * rates // len(blocks) for index in range(len(blocks))), rates + 1]
        return {
            name: self._rate ** (rates + 1 - levels[depth])
            for name, depth in zip(inside, depths, strict=True)
        }


def _depths_of(names: list[str], blocks: list[str]) -> list[int]:
    """Return the depth of each parameter: 0 before the first block, then the block's number.

    Parameters between two blocks count with the next one, those after the last with a further one.
    """
    numbers = [
        next((i for i, block in enumerate(blocks, 1) if name.startswith(f"{block}.")), 0)
        for name in names
    ]
    first = next((index for index, number in enumerate(numbers) if number), len(names))
    depths, following = [0] * len(names), len(blocks) + 1
    for index in range(len(names) - 1, first - 1, -1):
        following = depths[index] = numbers[index] or following
    return depths


def _modules_of(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield every module with its name, both without wrappers."""
    module = unwrap_model(module)
    yield name, module
    for own, child in module.named_children():
        yield from _modules_of(child, f"{name}.{own}" if name else own)

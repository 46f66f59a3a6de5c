"""Learning rates that fall from the head of a model to its first layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn
from typing_extensions import override

from mm_runner.errors import ConfigError
from mm_runner.model import unwrap_model

from ._default import DefaultOptimWrapperConstructor
from ._layers import depths_of, find_blocks, find_leads, modules_of
from ._walk import NamedParameter, walk_parameters

if TYPE_CHECKING:
    from ._paramwise import ParamwiseRules

__all__ = ["LayerDecayOptimizerConstructor", "LearningRateDecayOptimWrapperConstructor"]

_RATES = ("decay_rate", "layer_decay_rate")
# mmseg has another name for transformers.
_TYPES = {"layer_wise": False, "layer_wise_vit": False, "stage_wise": True}


class LearningRateDecayOptimWrapperConstructor(DefaultOptimWrapperConstructor):
    """Multiplies the learning rate of a layer by ``decay_rate`` once for each layer above it.

    The layers are the repeated blocks of the model, of its ``backbone`` if it has one; what comes
    before the first is one more, and what follows the last, or is no part of the backbone, trains
    at the full rate. A model with ``get_layer_depth(name)``, or a part of it with
    ``get_layer_depth(name, prefix)``, says itself which layer a parameter belongs to, and of how
    many: ``(depth, number of depths)``; it is not asked for stages.

    mmdet's and mmseg's name, ``LearningRateDecayOptimizerConstructor``, stands for it too.

    Args:
        optim_wrapper_cfg: As of :class:`DefaultOptimWrapperConstructor`.
        paramwise_cfg: As there (other rules and this one multiply), and:

            * ``decay_rate``: between 0 and 1; as in mmdet, parameters of one dimension then have no
              weight decay unless ``flat_decay_mult`` says otherwise. Or ``layer_decay_rate``, as in
              mmpretrain, which does not speak of weight decay;
            * ``num_layers``: over how many rates the blocks spread, by default one for each block;
              stages take the lowest of these, one after the other, as in mmdet;
            * ``decay_type``: ``"layer_wise"`` (the default; ``"layer_wise_vit"`` is the same), or
              ``"stage_wise"``, one rate for each stage of a model built in stages;
            * ``layers``: names of the blocks, in order, where they are to be others than those
              found.
        where: Path of the config, for messages.

    Raises:
        ConfigError: If a key is unknown or has a value that cannot work.

    Example:
        >>> cfg = dict(optimizer=dict(type="SGD", lr=1.0))
        >>> constructor = LearningRateDecayOptimWrapperConstructor(cfg, dict(layer_decay_rate=0.5))
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
        given = {name: cfg.pop(name) for name in _RATES if name in cfg}
        if len(given) != 1:
            raise ConfigError(
                f"{where}.paramwise_cfg: one of decay_rate and layer_decay_rate is needed, got "
                f"{given or 'neither'}."
            )
        ((name, rate),) = given.items()
        if not isinstance(rate, (int, float)) or not 0 < rate <= 1:
            raise ConfigError(
                f"{where}.paramwise_cfg.{name}: a number above 0, at most 1, got {rate!r}."
            )
        self._rate = rate
        self._num_layers = cfg.pop("num_layers", None)
        kind = cfg.pop("decay_type", "layer_wise")
        if kind not in _TYPES:
            raise ConfigError(
                f"{where}.paramwise_cfg.decay_type: 'layer_wise' or 'stage_wise', got {kind!r}."
            )
        self._by_stage = _TYPES[kind]
        self._blocks: list[str] | None = cfg.pop("layers", None)
        if self._num_layers is not None and not (
            isinstance(self._num_layers, int) and self._num_layers > 0
        ):
            raise ConfigError(
                f"{where}.paramwise_cfg.num_layers: a positive integer, got {self._num_layers!r}."
            )
        self._scales: dict[str, float] = {}
        super().__init__(optim_wrapper_cfg, cfg, where=where)
        if name == "decay_rate" and self._base_decay is not None:
            self._paramwise.setdefault("flat_decay_mult", 0.0)
        if self._base_lr is None:
            raise ConfigError(f"{where}.optimizer.lr: a learning rate that decays is needed.")

    @property
    @override
    def _is_paramwise(self) -> bool:
        return True

    @override
    def prepare(self, model: nn.Module) -> None:
        names = [one.name for one in walk_parameters(model)]
        if not self._by_stage and self._ask_model(model, names):
            return
        part, module = self._part(model)
        blocks = self._blocks or find_blocks(module, by_stage=self._by_stage)
        if not blocks:
            raise ConfigError(
                f"{self._where}.paramwise_cfg: {type(unwrap_model(model)).__name__} has no "
                "repeated blocks to tell layers by; name them in order with layers=[...], or give "
                "the model get_layer_depth(name)."
            )
        leads = {} if self._blocks or self._by_stage else find_leads(module, blocks)
        inside = [name.removeprefix(part) for name in names if name.startswith(part)]
        rates = self._num_layers or len(blocks)
        self._scales = dict.fromkeys(names, 1.0)
        for name, depth in depths_of(inside, blocks, leads).items():
            level = _level(depth, len(blocks), rates, by_stage=self._by_stage)
            self._scales[part + name] = self._rate ** (rates + 1 - level)

    def _part(self, model: nn.Module) -> tuple[str, nn.Module]:
        """Return the module to search for blocks, with the prefix of its names."""
        backbone = getattr(unwrap_model(model), "backbone", None)
        if self._blocks or not isinstance(backbone, nn.Module) or not find_blocks(backbone):
            return "", model
        return "backbone.", backbone

    def _ask_model(self, model: nn.Module, names: list[str]) -> bool:
        """Ask the model, or a part of it, for the depths of its layers."""
        for path, module in modules_of(model):
            ask: Any = getattr(module, "get_layer_depth", None)
            if ask is None:
                continue
            prefix = f"{path}." if path else ""
            for name in names:
                self._scales[name] = 1.0
                if name.startswith(prefix):
                    depth, count = ask(name, prefix) if prefix else ask(name)
                    self._scales[name] = self._rate ** (count - 1 - depth)
            return True
        return False

    @override
    def options(self, one: NamedParameter, rules: ParamwiseRules) -> dict[str, Any]:
        options = rules.options(one)
        return {**options, "lr": options.get("lr", self._base_lr) * self._scales[one.name]}


class LayerDecayOptimizerConstructor(LearningRateDecayOptimWrapperConstructor):
    """mmseg's older name: ``layer_decay_rate`` is taken for ``decay_rate``, as there.

    See :class:`LearningRateDecayOptimWrapperConstructor`, whose other arguments it has.
    """

    def __init__(
        self,
        optim_wrapper_cfg: Mapping[str, Any],
        paramwise_cfg: Mapping[str, Any] | None = None,
        *,
        where: str = "optim_wrapper",
    ) -> None:
        cfg = dict(paramwise_cfg or {})
        if "decay_rate" not in cfg and "layer_decay_rate" in cfg:
            cfg["decay_rate"] = cfg.pop("layer_decay_rate")
        super().__init__(optim_wrapper_cfg, cfg, where=where)


def _level(depth: int, num_blocks: int, num_rates: int, *, by_stage: bool) -> int:
    """Return the depth where neighbouring blocks share a rate, or rates are left out."""
    if depth in (0, num_blocks + 1):
        return 0 if depth == 0 else num_rates + 1
    if by_stage and num_blocks <= num_rates:
        return depth
    return 1 + (depth - 1) * num_rates // num_blocks

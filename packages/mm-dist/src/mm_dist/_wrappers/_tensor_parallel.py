"""Tensor parallelism: split single layers over the ranks that see the same data."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import nn

from mm_dist._errors import ConfigError
from mm_dist._message import suggest_name

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

DATA, TENSOR = "data", "tensor"

_STYLES = ("colwise", "colwise_gather", "rowwise", "rowwise_split", "head_norm", "replicate")
# Names in the plans of transformers.
_SYNONYMS = {
    "colwise_rep": "colwise_gather",
    "colwise_gather_output": "colwise_gather",
    "rowwise_rep": "rowwise_split",
    "rowwise_split_input": "rowwise_split",
    "embedding_rowwise": "rowwise",
    "embedding_colwise": "colwise_gather",
    "replicated_with_grad_allreduce": "head_norm",
}
_HEADS = (
    *("num_heads", "num_attention_heads", "n_heads"),
    *("num_key_value_heads", "num_kv_heads", "n_kv_heads"),
)

# Layers of libraries without a plan of their own: library, class around the layer, name.
_BERT = r"transformers (Bert|Roberta|XLMRoberta|Electra)"
_SHIPPED = {
    rf"{_BERT}(Self|Cross)Attention (query|key|value)|{_BERT}Intermediate dense": "colwise",
    rf"{_BERT}(SelfOutput|Output) dense": "rowwise",
    r"transformers (DistilBertSelfAttention [qkv]_lin|FFN lin1)": "colwise",
    r"transformers (DistilBertSelfAttention out_lin|FFN lin2)": "rowwise",
    r"transformers (ViTAttention [qkv]_proj|ViTMLP fc1)": "colwise",
    r"transformers (ViTAttention o_proj|ViTMLP fc2)": "rowwise",
    # Rows in a row of q, k and v in one layer are not whole heads: split, and gathered.
    r"timm Attention qkv": "colwise_gather",
    r"timm Attention proj": "rowwise_split",
    r"timm Mlp fc1": "colwise",
    r"timm Mlp fc2": "rowwise",
}


def build_mesh(options: Mapping[str, Any], device_type: str) -> "DeviceMesh":
    """Return the ranks as a mesh of data and tensor dimensions."""
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415 (slow to import)

    given, world_size = options["mesh"], dist.get_world_size()
    if options["device_mesh"] is not None or options["process_group"] is not None:
        raise ConfigError("mesh names all ranks; leave out device_mesh and process_group.")
    sizes = dict(given) if isinstance(given, Mapping) else {"": given}
    tensor = sizes.get(TENSOR, 1)
    is_size = all(type(one) is int and one > 0 for one in sizes.values())
    sizes.setdefault(DATA, world_size // tensor if is_size else 0)
    if not is_size or set(sizes) - {DATA, TENSOR} or math.prod(sizes.values()) != world_size:
        raise ConfigError(
            f"mesh={given!r} does not fit {world_size} ranks; give dict(data=..., tensor=...), "
            f"whose product is {world_size}."
        )
    if tensor > 1 and options["plan"] is None:
        raise ConfigError(
            f"mesh={given!r} was given without a plan, which says what the tensor dimension "
            "splits; give plan='auto' or a dict of patterns and styles."
        )
    shape = sizes[DATA], tensor
    return init_device_mesh(device_type, shape, mesh_dim_names=(DATA, TENSOR))


def parallelize(module: nn.Module, mesh: "DeviceMesh", plan: Any) -> None:
    """Split layers of ``module`` in place, as ``plan`` says, over the mesh's tensor dimension."""
    from torch.distributed.tensor.parallel import parallelize_module  # noqa: PLC0415 (slow)

    size = mesh[TENSOR].size()
    styles = _read_plan(module, plan, size)
    if size == 1:
        return
    for name, style in styles.items():
        layer = module.get_submodule(name)
        made = _make_style(style, layer) if isinstance(style, str) else style
        parallelize_module(layer, mesh[TENSOR], made)
    num_shards = mesh[DATA].size()
    for name, parameter in module.named_parameters():
        if _data_dim(parameter, num_shards) is None:
            raise ConfigError(
                f"plan: {name} has the shape {tuple(parameter.shape)}; its part on each of {size} "
                f"tensor ranks does not divide over {num_shards} data ranks. Leave the layer out "
                "of the plan, or choose another mesh."
            )


def data_placement(mesh: "DeviceMesh") -> Any:
    """Return the ``shard_placement_fn`` that shards parts of layers evenly over data ranks."""
    from torch.distributed.tensor import Shard  # noqa: PLC0415 (slow to import)

    num_shards = mesh[DATA].size()
    return lambda parameter: Shard(_data_dim(parameter, num_shards) or 0)


def _data_dim(parameter: Any, num_shards: int) -> int | None:
    """Return the dimension that data ranks shard; ``None`` if none divides."""
    placements = getattr(parameter, "placements", ())
    if not any(one.is_shard(0) for one in placements):
        return 0
    # Uneven parts of parts are beyond DTensor.
    sizes = parameter.to_local().shape[:2]
    return next((dim for dim, size in enumerate(sizes) if size % num_shards == 0), None)


def _make_style(name: str, layer: nn.Module) -> Any:
    from torch.distributed.tensor import Replicate  # noqa: PLC0415 (slow to import)
    from torch.distributed.tensor.parallel import (  # noqa: PLC0415
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
    )

    if name == "head_norm":  # heads come third: (batch, sequence, heads, features)
        return SequenceParallel(sequence_dim=2, use_local_output=True)
    if name.startswith("colwise"):
        return ColwiseParallel(output_layouts=Replicate() if name == "colwise_gather" else None)
    takes_whole = name == "rowwise_split" or isinstance(layer, nn.Embedding)
    return RowwiseParallel(input_layouts=Replicate() if takes_whole else None)


def _read_plan(root: nn.Module, plan: Any, size: int) -> dict[str, Any]:
    """Return the style of each layer that a plan splits, checked, by name."""
    is_auto = plan == "auto"
    if not is_auto and not (isinstance(plan, Mapping) and plan):
        raise ConfigError(
            f"plan={plan!r} cannot be used; give 'auto', or a dict of patterns on module names "
            "and styles such as {'layers.*.q': 'colwise', 'layers.*.out': 'rowwise'}."
        )
    patterns = dict(_find_plan(root)) if is_auto else plan
    modules = {name: one for name, one in root.named_modules() if name}
    chosen: dict[str, Any] = {}
    for pattern, given in patterns.items():
        style = _read_style(pattern, given)
        matches = [name for name in modules if fnmatchcase(name, str(pattern))]
        if not matches and not is_auto:
            raise ConfigError(
                f"plan: {pattern!r} matches no module; layers found: {_list_layers(modules)}."
                f"{suggest_name(str(pattern), modules)}"
            )
        chosen |= dict.fromkeys(_suited(pattern, style, matches, modules), style)
    styles = {name: style for name, style in chosen.items() if style != "replicate"}
    if not styles and is_auto:
        raise ConfigError(
            f"plan='auto': {type(root).__name__} brings no plan (_tp_plan), and none is shipped "
            f"for it; give a dict of patterns and styles. Layers found: {_list_layers(modules)}."
        )
    owners: defaultdict[Any, set[str]] = defaultdict(set)
    for name, parameter in root.named_parameters(remove_duplicate=False):
        owners[parameter].add(name.rpartition(".")[0])
    for name, style in list(styles.items()):
        tied = {o for p in modules[name].parameters() for o in owners[p] if o != name}
        problem = _find_problem(name, style, modules, tied, size)
        # What takes and gives whole tensors may stay whole.
        is_alone = style in ("colwise_gather", "rowwise_split")
        if problem and is_auto and (is_alone or isinstance(modules[name], nn.Embedding)):
            del styles[name]
        elif problem:
            raise ConfigError(f"plan: {problem}")
    return styles


def _read_style(pattern: Any, given: Any) -> Any:
    style = _SYNONYMS.get(given, given) if isinstance(given, str) else given
    is_object = not isinstance(style, (str, type)) and hasattr(style, "_apply")
    if not is_object and style not in _STYLES:
        raise ConfigError(
            f"plan: {pattern!r} has the style {given!r}; there are: {', '.join(_STYLES)}, and "
            "objects of torch's ParallelStyle."
        )
    return style


def _suited(
    pattern: str, style: Any, matches: list[str], modules: Mapping[str, nn.Module]
) -> list[str]:
    """Return the matches that a style can split."""
    if not (isinstance(style, str) and style.startswith(("colwise", "rowwise"))):
        return matches
    suited = [name for name in matches if isinstance(modules[name], (nn.Linear, nn.Embedding))]
    for name in sorted({*matches}.difference(suited)):
        is_around = any(one.startswith(f"{name}.") for one in suited)
        if not is_around and any(True for _ in modules[name].parameters()):
            raise ConfigError(
                f"plan: {pattern!r} matches {name}, a {type(modules[name]).__name__}; {style!r} "
                "splits nn.Linear and nn.Embedding only."
            )
    return suited


def _find_problem(
    name: str, style: Any, modules: Mapping[str, nn.Module], tied: set[str], size: int
) -> str:
    """Return why a layer cannot be split over ``size`` ranks; empty if it can."""
    if tied:
        return (
            f"{name} shares a parameter with {', '.join(sorted(tied))}, which splitting would "
            "untie; give both the style 'replicate'."
        )
    if not isinstance(style, str) or not style.startswith(("colwise", "rowwise")):
        return ""
    layer: Any = modules[name]
    dim = style.startswith("rowwise") != isinstance(layer, nn.Embedding)
    length = layer.weight.shape[int(dim)]
    if length % size:
        return f"{name} has {length} features to split ({style}), which {size} does not divide."
    parent = modules.get(name.rpartition(".")[0])
    is_attention = re.search("attention|attn", type(parent).__name__, re.IGNORECASE)
    owners = [parent, getattr(parent, "config", None) if is_attention else None]
    for key in _HEADS if style == "colwise" else ():
        heads = next((getattr(one, key) for one in owners if hasattr(one, key)), None)
        if isinstance(heads, int) and heads % size:
            return (
                f"{name} computes {key}={heads} heads, which the tensor dimension of {size} does "
                "not divide; use a smaller one, or leave the attention out of the plan."
            )
    return ""


def _find_plan(root: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield patterns and styles: those that models bring as ``_tp_plan``, else shipped ones."""
    done: tuple[str, ...] = ()
    for name, module in root.named_modules():
        prefix = f"{name}." if name else ""
        own = getattr(module, "_tp_plan", None)
        if isinstance(own, Mapping) and own and not prefix.startswith(done):
            done = (*done, prefix)
            yield from ((prefix + pattern, style) for pattern, style in own.items())
        # A norm between two layers would see a part of its features.
        has_norm = any(True for _ in getattr(module, "norm", nn.Identity()).parameters())
        if prefix.startswith(done) or (has_norm and type(module).__name__ == "Mlp"):
            continue
        around = f"{type(module).__module__.partition('.')[0]} {type(module).__name__}"
        for child, _ in module.named_children():
            found = (s for one, s in _SHIPPED.items() if re.fullmatch(one, f"{around} {child}"))
            yield from ((prefix + child, style) for style in found)


def _list_layers(modules: Mapping[str, nn.Module]) -> str:
    layers = (n for n, m in modules.items() if isinstance(m, (nn.Linear, nn.Embedding)))
    names = list(dict.fromkeys(re.sub(r"(?<=\.)\d+(?=\.)", "*", name) for name in layers))
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")

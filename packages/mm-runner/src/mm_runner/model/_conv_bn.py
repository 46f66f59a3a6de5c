"""A convolution and the batch normalisation after it, computed as one convolution.

While the normalisation is in eval mode both are linear: with its weight g, bias b, mean m and
variance v, ``BN(conv(x))`` is the convolution of x with the kernel ``k * c`` and the bias
``(d - m) * c + b``, where k and d are the convolution's own and ``c = g / sqrt(v + eps)``. So what
the convolution gives is neither computed nor kept for the backward pass, and gradients reach every
parameter ("tune mode" of Efficient ConvBN Blocks for Transfer Learning and Beyond, 2023,
https://arxiv.org/abs/2305.11624).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from typing_extensions import override

from mm_runner.errors import ConfigError

from ._conv_bn_links import Link, current_frame, is_compiling
from ._folded_kernel import convolve_folded
from ._traced_calls import CallForm, TracedForms
from ._variants import Variant, make_variant

__all__ = ["HOOKS_AFTER", "Pair", "fold_pairs", "folded_names"]

# Hooks that see, or change, what is between the two.
HOOKS_AFTER = ("_forward_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOKS_AROUND = ("_forward_pre_hooks", *HOOKS_AFTER)
_GLOBAL = tuple(
    hooks
    for kind in _HOOKS_AROUND
    if (hooks := getattr(torch_module, f"_global{kind}", None)) is not None
)


class Pair(NamedTuple):
    """Names of a convolution and its normalisation, and of the modules around them.

    Attributes:
        caller: In its forward each of the two is called once, and the convolution's output goes to
            the normalisation only.
        convolution: The first of the two.
        norm: The second.
        traced: The module whose calls that was found out for; it is or holds the caller. One pair
            may be given for several.
        forms: In which forms of its calls that holds.
    """

    caller: str
    convolution: str
    norm: str
    traced: str
    forms: TracedForms


def fold_pairs(model: nn.Module, pairs: Sequence[Pair]) -> None:
    """Let convolutions compute what their normalisations would in eval mode, in place.

    They do so in the forward of the module that calls both, outside of checkpointing that begins
    there. Anywhere else both compute what they always do.

    Args:
        model: What the names are of.
        pairs: Of modules in it.

    Raises:
        ConfigError: In a forward in which a convolution's output did not go to its normalisation,
            went there twice, or to one that is checkpointed without the convolution.
    """
    for pair in pairs:
        caller, convolution, norm = _modules(model, pair.caller, pair.convolution, pair.norm)
        make_variant(caller, _Caller)
        make_variant(convolution, _FoldingConvolution)
        make_variant(norm, _FoldedNorm)
        if convolution._conv_bn_link is None:  # noqa: SLF001
            convolution._conv_bn_link = norm._conv_bn_link = Link()  # noqa: SLF001
        names = (_within(pair.caller, pair.convolution), _within(pair.caller, pair.norm))
        if (names, _holders(names)) not in caller._conv_bn_pairs:  # noqa: SLF001
            caller._conv_bn_pairs += ((names, _holders(names)),)  # noqa: SLF001
    # Over those that are callers, too: whether to fold is said before it is asked.
    for pair in pairs:
        (traced,) = _modules(model, pair.traced)
        make_variant(traced, _Traced)
        name = _within(pair.traced, pair.convolution)
        traced._conv_bn_parts += ((name, pair.forms),)  # noqa: SLF001
        _form_of(traced)  # code that was compiled without it would be compiled once more


def folded_names(model: nn.Module) -> list[str]:
    """Return the names of the convolutions in ``model`` that may compute a normalisation too."""
    return [
        name for name, module in model.named_modules() if isinstance(module, _FoldingConvolution)
    ]


def _modules(model: nn.Module, *names: str) -> list[Any]:
    return [model.get_submodule(name) for name in names]


def _within(outer: str, name: str) -> str:
    return name[len(outer) + 1 :] if outer else name


def _holders(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the modules that hold those of ``names``."""
    split = [name.split(".") for name in names]
    return tuple(".".join(parts[:end]) for parts in split for end in range(1, len(parts)))


class _Traced(Variant):
    variant_state = ("_conv_bn_form", "_conv_bn_parts")
    _conv_bn_form: CallForm | None = None
    _conv_bn_parts: tuple[tuple[str, TracedForms], ...] = ()

    @override
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        is_one_of = _form_of(self).is_one_of
        known = [name for name, forms in self._conv_bn_parts if is_one_of(forms, args, kwargs)]
        found = [_link_of(_find(self, name)) for name in known]
        links = [link for link in found if link is not None]
        frame = current_frame()  # not that of a list
        before = [link.begin_known(frame) for link in links]
        try:
            return super().forward(*args, **kwargs)
        finally:
            for link, one in zip(links, before):  # noqa: B905 - compiled, too
                link.end_known(one)


class _Caller(Variant):
    variant_state = ("_conv_bn_pairs", "_conv_bn_is_told")
    _conv_bn_pairs: tuple[tuple[tuple[str, str], tuple[str, ...]], ...] = ()
    _conv_bn_is_told = False

    @override
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        links: list[Link] = []
        try:
            for norm, names in _pairs_of(self):
                link = norm._conv_bn_link  # noqa: SLF001
                if link.is_known():
                    link.open(norm, type(self).__name__, names, current_frame())
                    links.append(link)
                else:
                    _tell_unknown(self, names, args, kwargs)
            outputs = super().forward(*args, **kwargs)
            for link in links:
                if link.given is not None:
                    raise ConfigError(_misled(link, "did not go to"))
            return outputs
        finally:
            for link in links:
                link.close()


class _FoldingConvolution(Variant):
    variant_state = ("_conv_bn_link",)
    _conv_bn_link: Link | None = None

    @override
    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        link = self._conv_bn_link
        if (
            link is None
            or not link.is_open
            or link.given is not None
            or args
            or kwargs
            or not link.has_gradients_of_caller()
            or not _are_one(self, link.norm)
            or link.is_repeated_alone()
        ):
            outputs: Tensor = super().forward(input, *args, **kwargs)
            return outputs
        link.given = convolve_folded(self, link.norm, input)
        return link.given


class _FoldedNorm(Variant):
    variant_state = ("_conv_bn_link",)
    _conv_bn_link: Link | None = None

    @override
    def forward(self, input: Tensor) -> Tensor:
        link = self._conv_bn_link
        if link is not None and link.is_open:
            if link.given is input:
                if link.is_repeated_alone():
                    raise ConfigError(_parted(link))
                link.take()
                if link.has_gradients_of_caller():
                    return input
                if torch.is_grad_enabled():
                    raise ConfigError(_misled(link, "went without gradients to"))
                return input.detach()
            if link.was_taken(input):
                raise ConfigError(_misled(link, "went twice to"))
        outputs: Tensor = super().forward(input)
        return outputs


def _pairs_of(caller: _Caller) -> list[tuple[Any, tuple[str, str]]]:
    """Return each normalisation that may be folded now, and the names of its pair."""
    if getattr(caller, "_is_replica", False):  # of nn.DataParallel; they share their links
        return []
    pairs = []
    for names, holders in caller._conv_bn_pairs:  # noqa: SLF001
        convolution, norm = _find(caller, names[0]), _find(caller, names[1])
        link = _link_of(convolution)
        # One that was replaced is of no pair.
        if link is None or link is not _link_of(norm) or link.is_open or norm.training:
            continue
        # Hooks of what holds one of them see what is between the two as well.
        if not any(_has_hooks(_find(caller, holder), _HOOKS_AROUND) for holder in holders):
            pairs.append((norm, names))
    return pairs


def _form_of(module: Any) -> CallForm:
    form: CallForm | None = module._conv_bn_form  # noqa: SLF001
    if form is None:
        form = module._conv_bn_form = CallForm(module)  # noqa: SLF001
    return form


def _link_of(module: Any) -> Link | None:
    return getattr(module, "_conv_bn_link", None)


def _find(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part, None)
    return module


def _are_one(convolution: Any, norm: Any) -> bool:
    if norm.training or norm.running_mean is None or _is_watched(convolution, norm):
        return False
    # What is sharded by itself is there only while it computes.
    tensors = (convolution.weight, convolution.bias, norm.weight, norm.bias)
    if any(hasattr(tensor, "device_mesh") for tensor in tensors):
        return False
    return norm.weight is None or norm.weight.shape == norm.running_mean.shape


def _is_watched(convolution: Any, norm: Any) -> bool:
    return bool(
        any(map(len, _GLOBAL))
        or _has_hooks(convolution, HOOKS_AFTER)
        or _has_hooks(norm, _HOOKS_AROUND)
        or "forward" in convolution.__dict__
        or "forward" in norm.__dict__
    )


def _has_hooks(module: Any, kinds: tuple[str, ...]) -> bool:
    return any(getattr(module, kind, None) for kind in kinds)


def _misled(link: Link, what: str) -> str:
    convolution, norm = link.names
    return (
        f"efficient_conv_bn_eval: in {link.kind}, what {convolution!r} gave {what} {norm!r} in "
        "this forward, unlike when the forward was traced. Remove the module from the list, or "
        "name parts of it in which each convolution feeds its norm every time, once."
    )


def _parted(link: Link) -> str:
    convolution, norm = link.names
    return (
        f"efficient_conv_bn_eval: in {link.kind}, {norm!r} is called within torch.utils.checkpoint "
        f"and {convolution!r} is not, though both are computed as one. Checkpoint both together, "
        "or remove the module from the list."
    )


def _tell_unknown(caller: Any, names: tuple[str, str], args: Any, kwargs: Any) -> None:
    if caller._conv_bn_is_told or is_compiling():  # noqa: SLF001
        return
    caller._conv_bn_is_told = True  # noqa: SLF001
    given = ", ".join(CallForm(caller).untraced(args, kwargs))
    call = f"with {given}" if given else "without optional arguments"
    warnings.warn(
        f"efficient_conv_bn_eval: {type(caller).__name__} is called {call}. Of such calls it is "
        f"not known that what {names[0]!r} gives goes to {names[1]!r} alone, so they stay two "
        "modules there. Traced are calls without optional arguments and with all of them, tensors.",
        stacklevel=3,
    )

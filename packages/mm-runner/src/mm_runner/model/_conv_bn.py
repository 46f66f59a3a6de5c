"""A convolution and the batch normalisation after it, computed as one convolution.

While the normalisation is in eval mode both are linear: with its weight g, bias b, mean m and
variance v, ``BN(conv(x))`` is the convolution of x with the kernel ``k * c`` and the bias
``(d - m) * c + b``, where k and d are the convolution's own and ``c = g / sqrt(v + eps)``. So what
the convolution gives is neither computed nor kept for the backward pass, and gradients reach every
parameter ("tune mode" of Efficient ConvBN Blocks for Transfer Learning and Beyond, 2023,
https://arxiv.org/abs/2305.11624).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from typing_extensions import override

from mm_runner.errors import ConfigError

from ._folded_kernel import convolve_folded
from ._variants import Variant, make_variant

__all__ = ["Pair", "fold_into", "folded_names"]

_is_compiling: Callable[[], bool] = getattr(
    getattr(torch, "compiler", None), "is_compiling", lambda: False
)
# Since torch 2.0.
_backward_id: Callable[[], int] | None = getattr(torch._C, "_current_graph_task_id", None)  # noqa: SLF001
# Hooks that see, or change, what is between the two.
_AFTER_CONVOLUTION = ("_forward_hooks", "_backward_hooks", "_backward_pre_hooks")
_AROUND_NORM = ("_forward_pre_hooks", *_AFTER_CONVOLUTION)
_GLOBAL = tuple(
    hooks
    for kind in _AROUND_NORM
    if (hooks := getattr(torch_module, f"_global{kind}", None)) is not None
)


class Pair(NamedTuple):
    """Names of a convolution and its normalisation, and of the module whose forward calls both."""

    caller: str
    convolution: str
    norm: str


def fold_into(model: nn.Module, pair: Pair) -> None:
    """Let a convolution compute what its normalisation would, while that is in eval mode, in place.

    It does so in the forward of the module that calls both. Anywhere else both compute what they
    always do.

    Args:
        model: What the names are of.
        pair: In the forward of the caller, each is called once, and the convolution's output goes
            to the normalisation only.

    Raises:
        ConfigError: At the end of a forward in which it went elsewhere.
    """
    found: list[Any] = [model.get_submodule(name) for name in pair]
    caller, convolution, norm = found
    for module, mixin in (
        (caller, _Caller),
        (convolution, _FoldingConvolution),
        (norm, _FoldedNorm),
    ):
        if not isinstance(module, mixin):
            make_variant(module, mixin)
            module._conv_bn_pairs, module._conv_bn_link = (), None  # noqa: SLF001
    if convolution._conv_bn_link is None:  # noqa: SLF001
        convolution._conv_bn_link = norm._conv_bn_link = _Link()  # noqa: SLF001
    start = len(pair.caller) + 1 if pair.caller else 0
    caller._conv_bn_pairs += ((pair.convolution[start:], pair.norm[start:]),)  # noqa: SLF001


def folded_names(model: nn.Module) -> list[str]:
    """Return the names of the convolutions in ``model`` that may compute a normalisation too."""
    return [
        name for name, module in model.named_modules() if isinstance(module, _FoldingConvolution)
    ]


class _Link:
    """What a convolution and its normalisation know of one another; copies of it know nothing."""

    def __init__(self) -> None:
        self.norm: Any = None
        self.is_open = False  # the forward that calls both is running
        self.is_folded = False  # in the last such forward
        self.given: Tensor | None = None  # on its way from one to the other

    def __deepcopy__(self, memo: Any) -> _Link:
        return _Link()

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


class _Caller(Variant):
    _conv_bn_pairs: tuple[tuple[str, str], ...] = ()

    @override
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        links = _open_links(self)
        try:
            outputs = super().forward(*args, **kwargs)
            for link, names in links:
                if link.given is not None:
                    raise ConfigError(_misled(self, names))
            return outputs
        finally:
            for link, _ in links:
                link.is_open, link.given = False, None


class _FoldingConvolution(Variant):
    _conv_bn_link: _Link | None = None

    @override
    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        link = self._conv_bn_link
        if link is None or link.given is not None or args or kwargs:
            outputs: Tensor = super().forward(input, *args, **kwargs)
            return outputs
        if link.is_open:
            link.is_folded = _are_one(self, link.norm)
            if link.is_folded:
                link.given = convolve_folded(self, link.norm, input)
                return link.given
        elif link.is_folded and _in_backward():
            return convolve_folded(self, link.norm, input)
        plain: Tensor = super().forward(input)
        return plain


class _FoldedNorm(Variant):
    _conv_bn_link: _Link | None = None

    @override
    def forward(self, input: Tensor) -> Tensor:
        link = self._conv_bn_link
        if link is not None:
            if link.given is input:
                link.given = None
                return input
            if link.is_folded and not link.is_open and _in_backward():
                return input
        outputs: Tensor = super().forward(input)
        return outputs


def _open_links(caller: _Caller) -> list[tuple[_Link, tuple[str, str]]]:
    opened: list[tuple[_Link, tuple[str, str]]] = []
    if getattr(caller, "_is_replica", False):  # of nn.DataParallel; they share their links
        return opened
    for names in caller._conv_bn_pairs:  # noqa: SLF001
        convolution, norm = _find(caller, names[0]), _find(caller, names[1])
        # One that was replaced is of no pair.
        if not isinstance(convolution, _FoldingConvolution) or not isinstance(norm, _FoldedNorm):
            continue
        link = convolution._conv_bn_link  # noqa: SLF001
        if link is None and norm._conv_bn_link is None:  # noqa: SLF001
            link = convolution._conv_bn_link = norm._conv_bn_link = _Link()  # noqa: SLF001 - unpickled
        if link is None or link is not norm._conv_bn_link or link.is_open:  # noqa: SLF001
            continue
        link.norm, link.is_open = norm, True
        opened.append((link, names))
    return opened


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
        or any(getattr(convolution, kind, None) for kind in _AFTER_CONVOLUTION)
        or any(getattr(norm, kind, None) for kind in _AROUND_NORM)
        or "forward" in convolution.__dict__
        or "forward" in norm.__dict__
    )


def _in_backward() -> bool:
    """Return whether what is computed now was computed before, by the forward."""
    if _is_compiling():
        return False
    return _backward_id() != -1 if _backward_id is not None else any(_repetitions())


def _repetitions() -> Iterator[bool]:
    frame: Any = sys._getframe()  # noqa: SLF001
    while frame is not None:
        code = frame.f_code
        is_torchs = code.co_filename.endswith("checkpoint.py") and "torch" in code.co_filename
        yield is_torchs and code.co_name in ("unpack", "backward")
        frame = frame.f_back


def _misled(caller: nn.Module, names: tuple[str, str]) -> str:
    return (
        f"efficient_conv_bn_eval: in {type(caller).__name__}, what {names[0]!r} gave did not go to "
        f"{names[1]!r} in this forward, as it did when the forward was traced. Remove the module "
        "from the list, or name parts of it in which each convolution feeds its norm every time."
    )

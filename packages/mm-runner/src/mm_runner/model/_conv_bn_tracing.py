"""The forward of a module, traced: which convolution feeds which batch normalisation alone."""

from __future__ import annotations

import copy
import gc
import itertools
import warnings
import weakref
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.proxy import Attribute
from typing_extensions import override

from mm_runner.checkpoint import rng_state, set_rng_state

from ._batch_norms import is_batch_norm
from ._conv_bn import HOOKS_AFTER
from ._folded_kernel import CONVOLUTIONS
from ._traced_calls import CallForm, TracedForms
from ._variants import unmake_variants

__all__ = ["copy_to_trace", "traced_pairs"]

# Of the module that calls both, of the convolution and of the normalisation.
_Names = tuple[str, str, str]
# What torch.fx sets on its stand-ins for attributes.
_OF_TORCH = ("root", "attr", "tracer", "_node")


def copy_to_trace(module: nn.Module) -> nn.Module:
    """Return a copy of ``module``: what a forward does to its module, it does while it is traced.

    Its parameters are copied too: some forwards write into them, and some modules set which of
    them are trained when they are set to training or evaluation. Hooks after a forward are not:
    they may hold anything, and note or check values. Whether there are any is asked in each call.

    Raises:
        Exception: Of any kind, if an attribute cannot be copied.
    """
    shared: dict[int, Any] = {}
    for part in module.modules():
        for value in vars(part).values():
            # Of what was computed (by torch.nn.utils.weight_norm, say) torch makes no copies.
            if isinstance(value, Tensor) and not value.is_leaf:
                shared[id(value)] = value
        for kind in HOOKS_AFTER:
            if hasattr(part, kind):
                shared[id(getattr(part, kind))] = OrderedDict()
        if isinstance(part, nn.SyncBatchNorm):
            shared[id(part.process_group)] = part.process_group
    copied = copy.deepcopy(module, shared)
    unmake_variants(copied)
    return copied


def traced_pairs(copied: nn.Module) -> dict[_Names, TracedForms]:
    """Return which pairs a module holds, by the forms of its calls in which they are pairs.

    Args:
        copied: May be changed by its forward.

    Raises:
        Exception: Of any kind, if its forward cannot be traced.
    """
    form = CallForm(copied)
    if not form.optional:
        return dict.fromkeys(_pairs_always(copied, form.absent), TracedForms(left_out=True))
    left_out, error = _pairs_or_error(copied, {**form.optional, **form.absent})
    given, other_error = _pairs_or_error(copied, form.absent)
    if error is not None and other_error is not None:
        raise error
    return {pair: TracedForms(pair in left_out, pair in given) for pair in (*left_out, *given)}


def _pairs_or_error(
    copied: nn.Module, values: dict[str, Any]
) -> tuple[list[_Names], Exception | None]:
    try:
        return _pairs_always(copied, values), None
    except Exception as error:  # noqa: BLE001 - whatever a forward does with what is no tensor
        return [], error


def _pairs_always(copied: nn.Module, values: dict[str, Any]) -> list[_Names]:
    pairs: list[_Names] | None = None
    with _kept_random_numbers():
        for is_training, has_grad in itertools.product((True, False), repeat=2):
            copied.train(is_training)
            with torch.set_grad_enabled(has_grad), _kept_young():
                tracer, found = _traced(copied, values)
                always = found if pairs is None else [pair for pair in pairs if pair in found]
                kept = tracer.kept([convolution for _, convolution, _ in always])
            pairs = [pair for pair in always if pair[1] not in kept]
    return pairs or []


@contextmanager
def _kept_random_numbers() -> Iterator[None]:
    device = torch.device("cpu")  # what is traced computes nothing on another
    before = rng_state(device)
    try:
        yield
    finally:
        set_rng_state(before, device)


@contextmanager
def _kept_young() -> Iterator[None]:
    """Let what is made within stay in the youngest generation.

    Then a collection of that one frees what is garbage of it; one of all takes much longer.
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


def _traced(module: nn.Module, values: dict[str, Any]) -> tuple[_Tracer, list[_Names]]:
    tracer = _Tracer()
    with warnings.catch_warnings():
        # Of values that torch.fx does not compare with those of a call.
        warnings.simplefilter("ignore", UserWarning)
        nodes = list(tracer.trace(module, concrete_args=values or None).nodes)
    calls: dict[Any, nn.Module] = {
        node: module.get_submodule(node.target) for node in nodes if node.op == "call_module"
    }
    num_calls = Counter(map(id, calls.values()))
    pairs = []
    for node, norm in calls.items():
        source: Any = node.args[0] if len(node.args) == 1 and not node.kwargs else None
        convolution = calls.get(source) if isinstance(source, torch.fx.Node) else None
        if (
            is_batch_norm(norm)
            and type(convolution) in CONVOLUTIONS
            and len(source.users) == 1
            and (len(source.args), len(source.kwargs)) == (1, 0)
            and "forward" not in {**vars(norm), **vars(convolution)}
            and num_calls[id(norm)] == num_calls[id(convolution)] == 1
            and tracer.has_grad[source.target] == tracer.has_grad[node.target]
        ):
            caller = tracer.caller_of(source.target, node.target)
            pairs.append((caller, source.target, node.target))
    return tracer, pairs


class _Tracer(torch.fx.Tracer):
    """Notes in which forwards modules are called, and what those forwards keep.

    Attributes:
        has_grad: Whether gradients are recorded there, by the names of modules.
    """

    def __init__(self) -> None:
        super().__init__()
        self.has_grad: dict[str, bool] = {}
        self._callers: dict[str, tuple[str, ...]] = {}
        self._given: dict[str, weakref.ref[Any]] = {}
        self._attributes: list[dict[str, Any]] = []
        self._running = [""]

    def caller_of(self, *names: str) -> str:
        """Return the innermost of the modules in whose forward all of ``names`` are called."""
        found = ""
        for callers in zip(*(self._callers[name] for name in names)):  # noqa: B905 - the common part
            if len(set(callers)) > 1:
                break
            # One that does not hold them cannot look for them.
            if all(name.startswith(f"{callers[0]}.") for name in names):
                found = callers[0]
        return found

    def hold(self, attributes: dict[str, Any]) -> None:
        """Keep what a forward sets on a value: the value may be there after it, as inputs are."""
        self._attributes.append(attributes)

    def kept(self, names: Sequence[str]) -> set[str]:
        """Return the convolutions of ``names`` whose outputs are still there: in an attribute, say.

        Within :func:`_kept_young`, as they were traced.
        """
        if any(self._given[name]() is not None for name in names):
            gc.collect(0)  # what was only within a cycle
        return {name for name in names if self._given[name]() is not None}

    @override
    def proxy(self, node: torch.fx.Node) -> torch.fx.Proxy:
        proxy = _Proxy(node, self)
        self.hold(vars(proxy))  # without the proxy, which may be a convolution's output
        return proxy

    @override
    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        name = self.path_of_module(m)
        self._callers[name] = tuple(self._running)
        self.has_grad[name] = torch.is_grad_enabled()
        self._running.append(name)
        try:
            outputs = super().call_module(m, forward, args, kwargs)
        finally:
            self._running.pop()
        if type(m) in CONVOLUTIONS:
            self._given[name] = weakref.ref(outputs)
        return outputs

    @override
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        # That over processes is of another package.
        return is_batch_norm(m) or super().is_leaf_module(m, module_qualified_name)


class _Proxy(torch.fx.Proxy):
    """Stands for a value in a forward that is traced."""

    tracer: Any

    @override
    def __getattr__(self, k: str) -> Attribute:
        return _Attribute(self, k)


class _Attribute(_Proxy, Attribute):
    """Stands for an attribute of a value; each time that is asked for there is another.

    It holds the value, which may be a convolution's output. So it is held only if something is set.
    """

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name not in _OF_TORCH:
            self.tracer.hold(vars(self))

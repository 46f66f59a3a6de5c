"""Putting compiled code in a model's place, and taking it out again.

Whatever is compiled belongs to one object. A copy of the model (``copy.deepcopy``, ``pickle``) must
compute with its own parameters, so copies run eagerly until they are compiled themselves.
"""

from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ._errors import AlreadyCompiledError, ConfigError

Restore = Callable[[], None]


class CompiledMethod:
    """A method of one object, compiled; it lies on that object under the method's own name.

    The compiled function holds on to the object it was made for. A copy therefore drops it, and
    runs the copied object's own method.
    """

    def __init__(self, owner: object, name: str, keywords: Mapping[str, Any]) -> None:
        self._owner = owner
        self._name = name
        previous: Callable[..., Any] | None = vars(owner).get(name)
        # A dead one comes with a copied model, and stands for the class's own method.
        self._previous = None if isinstance(previous, CompiledMethod) else previous
        self._compiled: Callable[..., Any] | None = torch.compile(self._eager, **keywords)

    @property
    def is_active(self) -> bool:
        """Whether calls run compiled code: false in a copy."""
        return self._compiled is not None

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The eager method, where ``inspect.signature`` looks for it."""
        return self._eager

    @property
    def _eager(self) -> Callable[..., Any]:
        if self._previous is not None:
            return self._previous
        return MethodType(getattr(type(self._owner), self._name), self._owner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (self._compiled or self._eager)(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_compiled": None}

    def install(self) -> Restore:
        """Set this on its owner; the result takes it off again."""
        setattr(self._owner, self._name, self)
        return self._restore

    def _restore(self) -> None:
        if vars(self._owner).get(self._name) is not self:
            return  # somebody replaced it since: theirs stays
        delattr(self._owner, self._name)
        if self._previous is not None:
            setattr(self._owner, self._name, self._previous)


def install_forward(model: nn.Module, keywords: Mapping[str, Any]) -> Restore:
    """Compile what ``model(...)`` runs, for training and evaluation, in the model itself.

    Of a model in ``DistributedDataParallel`` the inner module is compiled: its own ``val_step`` and
    ``predict`` then run compiled code too, and dynamo, which knows the wrapper while the wrapper's
    forward runs, still cuts the graphs at the gradient buckets.

    Args:
        model: The module, or torch's wrapper of it.
        keywords: Arguments of ``torch.compile``.

    Returns:
        A function that restores the module.

    Raises:
        AlreadyCompiledError: If the module is compiled.
    """
    while isinstance(model, DistributedDataParallel):
        model = model.module
    if getattr(model, "_compiled_call_impl", None) is not None:
        raise _already_compiled(model, "forward")
    if not hasattr(nn.Module, "compile") or _has_forward_of_torch(model):
        return install_method(model, "forward", keywords)
    # Named on nn.Module, since a user's model may have a `compile` of its own.
    nn.Module.compile(model, **keywords)
    compiled = vars(model)["_compiled_call_impl"]

    def restore() -> None:
        if vars(model).get("_compiled_call_impl") is compiled:
            del model._compiled_call_impl  # noqa: SLF001 - what nn.Module.compile has set

    return restore


def _has_forward_of_torch(model: nn.Module) -> bool:
    # Dynamo captures no frame of torch's own files, so that Module.compile() of an nn.Sequential or
    # nn.Linear compiles nothing, silently. Of a bound forward torch.compile captures what it calls.
    return getattr(type(model).forward, "__module__", "").startswith("torch.")


def install_method(owner: object, name: str, keywords: Mapping[str, Any]) -> Restore:
    """Compile the method ``name`` of ``owner``, on ``owner`` alone.

    Args:
        owner: The model, or a wrapper that has the method.
        name: The method's name.
        keywords: Arguments of ``torch.compile``.

    Returns:
        A function that restores ``owner``.

    Raises:
        ConfigError: If ``owner`` has no such method.
        AlreadyCompiledError: If that method is compiled.
    """
    if not callable(getattr(type(owner), name, None)):
        raise ConfigError(
            f"compile.target is {name!r}, but {type(owner).__name__} has no method of that name. "
            "Use target='forward', or give the model the method."
        )
    present = vars(owner).get(name)
    if isinstance(present, CompiledMethod) and present.is_active:
        raise _already_compiled(owner, name)
    return CompiledMethod(owner, name, keywords).install()


def _already_compiled(owner: object, name: str) -> AlreadyCompiledError:
    return AlreadyCompiledError(
        f"compile of {name!r} was asked for, but {type(owner).__name__} is compiled already. "
        "Call undo() on the handle of the first compile_model before compiling again."
    )

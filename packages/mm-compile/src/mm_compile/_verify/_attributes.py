"""Plain attributes of modules, kept with what containers and tensors among them hold."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

# What nn.Module keeps for itself; buffers are saved on their own, parameters do not change.
_OF_TORCH = frozenset(vars(nn.Module())) - {"training"}


class SavedAttributes:
    """Counters, caches and lists of a user's own, as they are when this is made.

    Lists, dicts, sets, deques and tensors are kept with their content, also within one another;
    other objects only by what they are.

    Args:
        modules: The modules that have them.
    """

    def __init__(self, modules: Iterator[nn.Module]) -> None:
        self._seen: dict[int, Any] = {}
        self._writers: list[Callable[[], None]] = []
        self._attributes = [(module, dict(_own(module))) for module in modules]
        for _, attributes in self._attributes:
            for value in attributes.values():
                self._keep(value)

    def restore(self) -> None:
        """Put everything back."""
        for module, attributes in self._attributes:
            present = vars(module)
            for name in [name for name, _ in _own(module) if name not in attributes]:
                del present[name]
            for name, value in attributes.items():
                if present.get(name) is not value:
                    present[name] = value
        for write in self._writers:
            write()

    def _keep(self, value: Any) -> None:
        if id(value) in self._seen:
            return
        if type(value) is Tensor and value.layout == torch.strided:
            self._writers.append(_tensor_writer(value))
        elif isinstance(value, dict):
            self._writers.append(_dict_writer(value))
        elif isinstance(value, (list, set, deque)):
            self._writers.append(_items_writer(value))
        elif not isinstance(value, tuple):
            return
        self._seen[id(value)] = value
        for item in _items_of(value):
            self._keep(item)


def keep_version(tensor: Tensor) -> Any:
    """Return a context in which writing ``tensor`` does not count as a change.

    An earlier forward of a step may have saved it for its backward; what is written back is what
    that forward saw.
    """
    unsafe: Any = torch.autograd._unsafe_preserve_version_counter  # type: ignore[attr-defined]  # noqa: SLF001
    return unsafe(tensor)


def _own(module: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, value in vars(module).items():
        if name not in _OF_TORCH and not isinstance(value, nn.Module):
            yield name, value


def _items_of(value: Any) -> list[Any]:
    if isinstance(value, Tensor):
        return []
    return list(value.values() if isinstance(value, dict) else value)


def _tensor_writer(tensor: Tensor) -> Callable[[], None]:
    if tensor.is_inference():  # nothing changes it outside of inference mode
        return lambda: None
    value, version = tensor.detach().clone(), tensor._version  # noqa: SLF001

    def write() -> None:
        if tensor._version != version:  # noqa: SLF001
            with torch.no_grad(), keep_version(tensor):
                tensor.copy_(value)

    return write


def _dict_writer(content: dict[Any, Any]) -> Callable[[], None]:
    items = list(content.items())  # in their order

    def write() -> None:
        if not _are_same(content.items(), items):
            content.clear()
            content.update(dict(items))  # a Counter counts pairs

    return write


def _items_writer(content: Any) -> Callable[[], None]:
    items = list(content)
    extend = content.update if isinstance(content, set) else content.extend

    def write() -> None:
        if not _are_same(((each,) for each in content), [(each,) for each in items]):
            content.clear()
            extend(items)

    return write


def _are_same(present: Any, items: list[tuple[Any, ...]]) -> bool:
    # By identity: tensors have no truth value.
    now = list(present)
    return len(now) == len(items) and all(
        first is second
        for each, other in zip(now, items, strict=True)
        for first, second in zip(each, other, strict=True)
    )

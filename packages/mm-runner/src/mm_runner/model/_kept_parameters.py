"""Parameters of a module that is repeated: the forward changes none, nor does what comes later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from torch import Tensor, nn

from ._noted_tensors import copy_plain, is_equal, version_of

__all__ = ["KeptParameters"]


class _Parameter(NamedTuple):
    module: nn.Module
    prefix: str
    key: str
    parameter: nn.Parameter
    version: int
    requires_grad: bool

    @property
    def name(self) -> str:
        return f"{self.prefix}.{self.key}" if self.prefix else self.key


class KeptParameters:
    """The parameters of modules before a forward.

    Args:
        modules: With their names.
        is_copied: Whether to keep values until after the forward: not all changes are counted.
        refuse: Raises the error that something cannot be repeated.
    """

    def __init__(
        self,
        modules: Sequence[tuple[str, nn.Module]],
        refuse: Callable[[str], NoReturn],
        *,
        is_copied: bool,
    ) -> None:
        self._refuse = refuse
        self._parameters = [
            _Parameter(part, prefix, key, one, version_of(one), one.requires_grad)
            for prefix, part in modules
            for key, one in part._parameters.items()  # noqa: SLF001 - some is None
            if one is not None
        ]
        self._copies: dict[int, Tensor | None] = {}
        if is_copied:
            self._copies = {id(one): copy_plain(one.parameter) for one in self._parameters}
        self._renorming: list[Any] = []
        self._renormed: set[int] = set()

    def note_changes(self) -> None:
        """Expect that the forward has changed none, or as embeddings with ``max_norm`` do.

        Raises:
            ConfigError: If it has.
        """
        for one in self._parameters:
            is_counted = one.version != version_of(one.parameter)
            if is_counted and self._is_renormed(one.parameter):
                continue
            if is_counted or self._has_other_values(one):
                self._refuse(
                    f"changes {one.name!r}, a parameter, in its forward. Let that be a buffer "
                    "(register_buffer), which is repeated from what it was, or change it outside "
                    "of the forward"
                )
        self._copies = {}

    def expect_unchanged(self) -> None:
        """Expect that they are the same, with the values that the forward left.

        Raises:
            ConfigError: If they are not.
        """
        for one in self._parameters:
            now = one.module._parameters.get(one.key)  # noqa: SLF001
            if now is one.parameter:
                is_counted = one.version != version_of(now)
                if is_counted and id(now) not in self._renormed:
                    self._refuse(
                        f"has a parameter, {one.name!r}, that was changed between the forward and "
                        "the backward pass. Change it after the backward pass"
                    )
            elif not _is_same_sharded(now, one.parameter):
                self._refuse(
                    f"has another {one.name!r} in the backward pass than in the forward, as after "
                    "torch.func.functional_call. Call the model itself"
                )

    def restore(self) -> Callable[[], None]:
        """Let them be as they were before the forward, and return what undoes that."""
        switched = [
            (one.parameter, one.requires_grad)
            for one in self._parameters
            if one.parameter.requires_grad != one.requires_grad
        ]
        norms = [(embedding, embedding.max_norm) for embedding in self._renorming]
        for parameter, requires_grad in switched:
            parameter.requires_grad_(requires_grad)
        for embedding, _ in norms:
            embedding.max_norm = None  # the weights that it looks up have it by now

        def undo() -> None:
            for embedding, norm in norms:
                embedding.max_norm = norm
            for parameter, requires_grad in switched:
                parameter.requires_grad_(not requires_grad)

        return undo

    def _is_renormed(self, parameter: nn.Parameter) -> bool:
        # Before they are looked up, so that the same values are looked up again.
        embeddings = [
            one.module
            for one in self._parameters
            if one.parameter is parameter
            and isinstance(one.module, (nn.Embedding, nn.EmbeddingBag))
            and one.module.max_norm is not None
        ]
        self._renorming += embeddings
        self._renormed.update(id(parameter) for _ in embeddings)
        return bool(embeddings)

    def _has_other_values(self, one: _Parameter) -> bool:
        now = one.module._parameters.get(one.key)  # noqa: SLF001
        if now is not one.parameter:  # of those that were gathered, nothing is left
            return not _is_same_sharded(now, one.parameter)
        values = self._copies.get(id(one))
        if values is None or (values.shape, values.device) != (now.shape, now.device):
            return False  # sharded in place
        return not is_equal(values, now)


def _is_same_sharded(now: Tensor | None, before: Tensor) -> bool:
    # Sharded parameters are gathered, and that is another object, for the time they are needed.
    return now is not None and hasattr(now, "full_tensor") != hasattr(before, "full_tensor")

"""Parameters of a module that is repeated: with the values that its forward began with."""

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
        refuse: Raises the error that something cannot be repeated.
        changing: Names of those that the forward changes in place, which is added to. Each forward
            keeps their values.
        is_copied: Whether to keep all values until after the forward: not all changes are counted.
    """

    def __init__(
        self,
        modules: Sequence[tuple[str, nn.Module]],
        refuse: Callable[[str], NoReturn],
        changing: set[str],
        *,
        is_copied: bool,
    ) -> None:
        self._refuse, self._changing = refuse, changing
        self._parameters = [
            _Parameter(part, prefix, key, one, version_of(one), one.requires_grad)
            for prefix, part in modules
            for key, one in part._parameters.items()  # noqa: SLF001 - some is None
            if one is not None
        ]
        # By identity of the parameter, which may have several names.
        self._copies: dict[int, Tensor | None] = {
            id(one.parameter): copy_plain(one.parameter)
            for one in self._parameters
            if is_copied or one.name in changing
        }
        self._renorming: list[Any] = []
        self._renormed: set[int] = set()

    def note_changes(self, *, is_first: bool = True) -> None:
        """Keep the values before the forward of those that it has changed.

        Args:
            is_first: Whether the values kept are those before its first run.

        Raises:
            ConfigError: If it has changed one whose values were not kept, or replaced one.
        """
        changed = set()
        for one in self._parameters:
            is_counted = one.version != version_of(one.parameter)
            if is_counted and self._is_renormed(one.parameter):
                continue
            if one.name in self._changing:
                changed.add(id(one.parameter))
            elif is_counted or self._has_other_values(one):
                if not (is_first and self._can_be_kept(one)):
                    self._refuse_change(one)
                self._changing.add(one.name)
                changed.add(id(one.parameter))
        self._copies = {key: copy for key, copy in self._copies.items() if key in changed}

    def expect_unchanged(self) -> None:
        """Expect that they are the same, with the values that the forward left.

        Raises:
            ConfigError: If they are not.
        """
        for one in self._parameters:
            now = one.module._parameters.get(one.key)  # noqa: SLF001
            if now is one.parameter:
                is_counted = one.version != version_of(now)
                is_kept = id(now) in self._renormed or self._copies.get(id(now)) is not None
                if is_counted and not is_kept:
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
        replaced = self._put_stand_ins()
        for embedding, _ in norms:
            embedding.max_norm = None  # the weights that it looks up have it by now

        def undo() -> None:
            for embedding, norm in norms:
                embedding.max_norm = norm
            for one in replaced:
                one.module._parameters[one.key] = one.parameter  # noqa: SLF001
            for parameter, requires_grad in switched:
                parameter.requires_grad_(not requires_grad)

        return undo

    def _put_stand_ins(self) -> list[_Parameter]:
        stand_ins: dict[int, nn.Parameter] = {}
        replaced = []
        for one in self._parameters:
            values = self._copies.get(id(one.parameter))
            if one.name in self._changing and values is not None:
                if id(one.parameter) not in stand_ins:
                    stand_ins[id(one.parameter)] = nn.Parameter(
                        values.clone(), requires_grad=one.requires_grad
                    )
                # Not changed in place: autograd may hold it.
                one.module._parameters[one.key] = stand_ins[id(one.parameter)]  # noqa: SLF001
                replaced.append(one)
        return replaced

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
        values = self._copies.get(id(one.parameter))
        # Else it is sharded in place.
        return values is not None and _is_alike(values, now) and not is_equal(values, now)

    def _can_be_kept(self, one: _Parameter) -> bool:
        if one.module._parameters.get(one.key) is not one.parameter:  # noqa: SLF001
            return False
        values = self._copies.get(id(one.parameter))
        return values is not None and _is_alike(values, one.parameter)

    def _refuse_change(self, one: _Parameter) -> NoReturn:
        if one.module._parameters.get(one.key) is not one.parameter:  # noqa: SLF001
            self._refuse(
                f"puts another parameter in place of {one.name!r} in its forward. Change the "
                "values of that one"
            )
        remedy = "Let it do so from its first forward on"
        if not one.requires_grad:
            remedy = "Let that be a buffer (register_buffer)"
        self._refuse(
            f"changes {one.name!r}, a parameter, in its forward, whose values before were not "
            f"kept. {remedy}, or change it outside of the forward"
        )


def _is_alike(values: Tensor, now: Tensor) -> bool:
    return (values.shape, values.device) == (now.shape, now.device)


def _is_same_sharded(now: Tensor | None, before: Tensor) -> bool:
    # Sharded parameters are gathered, and that is another object, for the time they are needed.
    return now is not None and hasattr(now, "full_tensor") != hasattr(before, "full_tensor")

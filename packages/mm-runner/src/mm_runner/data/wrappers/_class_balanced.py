"""A dataset in which rare categories come more often."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

from typing_extensions import override

from mm_runner.errors import ConfigError
from mm_runner.registry import short_repr

from ._abstract import AbstractDatasetWrapper, Place, as_dataset, ask

__all__ = ["ClassBalancedDataset"]


class ClassBalancedDataset(AbstractDatasetWrapper):
    """Repeats the samples that have a rare category in them.

    A category ``c`` that is in the share ``f(c)`` of the samples has the repeat factor
    ``r(c) = max(1, sqrt(t / f(c)))``, ``t`` being ``oversample_thr``; a sample comes
    ``ceil(max r(c))`` times, over the categories in it, and once if it has none. This is repeat
    factor sampling, from "LVIS: A Dataset for Large Vocabulary Instance Segmentation", Gupta,
    Dollar and Girshick, CVPR 2019, https://arxiv.org/abs/1908.03195.

    Every sample is asked once for its categories, in :meth:`full_init`. What is kept takes eight
    bytes for each sample of an epoch.

    Args:
        dataset: A dataset with a length, indices and ``get_cat_ids(index)``, which lists the
            categories in a sample; or its config.
        oversample_thr: The share of samples below which a category is rare, above 0 and at most 1.
        lazy_init: Leave :meth:`full_init` to whoever first asks for the length or a sample.

    Attributes:
        dataset: The dataset within.

    Raises:
        ConfigError: If ``dataset`` is none or has no ``get_cat_ids``, this returned something else,
            or ``oversample_thr`` is no such share.

    Example:
        >>> class Labelled(list):
        ...     def get_cat_ids(self, index):
        ...         return [self[index]]
        >>> list(ClassBalancedDataset(Labelled("aaab"), oversample_thr=1.0))
        ['a', 'a', 'a', 'a', 'a', 'a', 'b', 'b']
    """

    def __init__(self, dataset: Any, oversample_thr: float, lazy_init: bool = False) -> None:  # noqa: FBT001, FBT002 - MMEngine's signature
        is_number = isinstance(oversample_thr, (int, float)) and not isinstance(
            oversample_thr, bool
        )
        if not is_number or not 0 < oversample_thr <= 1:
            raise ConfigError(
                f"oversample_thr: a share of the samples, above 0 and at most 1, is needed, got "
                f"{oversample_thr!r}. A category in fewer of them is repeated."
            )
        self.dataset = as_dataset(dataset, "dataset")
        ask(self.dataset, "get_cat_ids", type(self).__name__)
        self.oversample_thr = oversample_thr
        super().__init__(lazy_init=lazy_init)

    @override
    def _within(self) -> Sequence[Any]:
        return (self.dataset,)

    @override
    def _count(self) -> int:
        kind_of, kinds = self._kinds()
        repeats = _repeats(kinds, Counter(kind_of), len(kind_of), self.oversample_thr)
        # Not a list: workers would copy it page by page, as they count references to its numbers.
        self._indices = array("q")
        for index, kind in enumerate(kind_of):
            self._indices.extend([index] * repeats[kind])
        return len(self._indices)

    @override
    def _place(self, position: int) -> Place:
        return Place(self.dataset, self._indices[position])

    def _kinds(self) -> tuple[array[int], list[frozenset[Hashable]]]:
        """Return for each sample the number of its set of categories, and these sets.

        Most samples share theirs with others: much smaller than a set for each.
        """
        numbers: dict[frozenset[Hashable], int] = {}
        kind_of = array("q")
        for index in range(len(self.dataset)):
            categories = self._categories(index)
            kind_of.append(numbers.setdefault(categories, len(numbers)))
        return kind_of, list(numbers)

    def _categories(self, index: int) -> frozenset[Hashable]:
        found: Any = self.dataset.get_cat_ids(index)
        # Tensors of equal numbers are different keys.
        listed = found.tolist() if hasattr(found, "tolist") else found
        try:
            return frozenset(one.item() if hasattr(one, "item") else one for one in listed)
        except TypeError as error:
            raise ConfigError(
                f"dataset: {type(self.dataset).__name__}.get_cat_ids({index}) returned "
                f"{short_repr(found)}; a list of the categories in the sample is needed."
            ) from error


def _repeats(
    kinds: Sequence[frozenset[Hashable]], counts: Counter[int], size: int, threshold: float
) -> list[int]:
    """Return for each set of categories how often a sample that has it comes."""
    num_with: Counter[Hashable] = Counter()
    for kind, categories in enumerate(kinds):
        num_with.update(dict.fromkeys(categories, counts[kind]))
    factor = {one: math.sqrt(threshold * size / count) for one, count in num_with.items()}
    return [math.ceil(max([1.0, *(factor[one] for one in categories)])) for categories in kinds]

"""Datasets made of others: joined, repeated, balanced by category."""

from ._class_balanced import ClassBalancedDataset
from ._concat import ConcatDataset
from ._repeat import RepeatDataset

__all__ = ["ClassBalancedDataset", "ConcatDataset", "RepeatDataset"]

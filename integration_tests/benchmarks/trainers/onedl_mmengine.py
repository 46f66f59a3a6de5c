"""MMEngine's fork, imported by the same name; ``compare.py`` puts it first on the path."""

from .mmengine import train

__all__ = ["train"]

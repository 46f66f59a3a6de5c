"""How fast a run trains, and what holds it up."""

from ._hook import ThroughputHook

__all__ = ["ThroughputHook"]

"""Finds steps whose gradients are far larger than usual."""

from ._hook import GradientSpikeHook

__all__ = ["GradientSpikeHook"]

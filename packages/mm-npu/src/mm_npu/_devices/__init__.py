"""Ascend devices: what is installed, what it is switched to, and its profiler."""

"""Ascend devices: installation, switches and profiler."""

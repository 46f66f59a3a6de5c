"""What makes the host wait for the device in a training step, and where it is called."""

from ._hook import HostSyncHook

__all__ = ["HostSyncHook"]

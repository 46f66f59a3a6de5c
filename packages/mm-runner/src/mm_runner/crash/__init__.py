"""What is kept of a training that failed, and going back to the step that did."""

from ._batch import last_batch
from ._bundle import CRASH_FOLDER, keep_crash
from ._hook import CrashBundleHook
from ._replay import replay_crash

__all__ = ["CRASH_FOLDER", "CrashBundleHook", "keep_crash", "last_batch", "replay_crash"]

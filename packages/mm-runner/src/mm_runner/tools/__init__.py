"""Tools beside the core: they run a configuration and report on it."""

from ._run_comparison import ResumeDifference, ResumeReport
from ._verify_resume import verify_resume

__all__ = ["ResumeDifference", "ResumeReport", "verify_resume"]

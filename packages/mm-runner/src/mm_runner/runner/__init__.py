"""The Runner."""

from mm_amp import autocast

from ._runner import Runner
from .verification import ResumeDifference, ResumeReport, verify_resume

__all__ = ["ResumeDifference", "ResumeReport", "Runner", "autocast", "verify_resume"]

"""Proving on the user's own configuration that a resumed run takes the same steps."""

from ._report import ResumeDifference, ResumeReport
from ._verify import verify_resume

__all__ = ["ResumeDifference", "ResumeReport", "verify_resume"]

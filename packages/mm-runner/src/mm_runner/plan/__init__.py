"""What a run would do, told without data, devices or other processes."""

from ._plan import make_plan
from ._text import plan_as_text

__all__ = ["make_plan", "plan_as_text"]

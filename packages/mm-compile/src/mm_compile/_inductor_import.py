"""Importing torch's inductor in less time."""

import sys
from importlib.util import find_spec
from threading import Lock
from typing import Any

from ._garbage import imports_taken_for_old

_lock = Lock()


def import_inductor() -> None:
    """Import inductor, and leave its templates of kernels to be parsed when one is used.

    Its modules hold some twenty templates, of Triton kernels, and parse each while they are
    imported. That is a fifteenth of a warm start, for what only autotuning on a GPU looks at.
    """
    with _lock:
        if "torch._inductor.compile_fx" in sys.modules:
            return
        owner = _template_class()
        if owner is None:
            return  # whoever needs it imports it
        parse = owner._template_from_string  # noqa: SLF001
        owner._template_from_string = staticmethod(lambda text: _Template(text, parse))  # noqa: SLF001
        try:
            with imports_taken_for_old():
                import torch._inductor.compile_fx  # noqa: F401, PLC0415 - loaded only to compile
        finally:
            owner._template_from_string = staticmethod(parse)  # noqa: SLF001


def _template_class() -> Any:
    """Return the class of inductor that parses templates, if it does so in the way known here."""
    try:
        from torch._inductor.codegen.common import KernelTemplate  # noqa: PLC0415
    except ImportError:  # before torch 2.1 or so
        return None
    # Without jinja2 there are no templates, and inductor looks for that.
    has_parser = isinstance(vars(KernelTemplate).get("_template_from_string"), staticmethod)
    return KernelTemplate if has_parser and find_spec("jinja2") else None


class _Template:
    """A template that is parsed when something of it is asked for."""

    def __init__(self, text: str, parse: Any) -> None:
        self._text, self._parse = text, parse

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # what copies ask for before there is a text
            raise AttributeError(name)
        if "_parsed" not in vars(self):
            self._parsed = self._parse(self._text)
        return getattr(self._parsed, name)

"""The configuration that a command works with: the file, and what the command line changes."""

from __future__ import annotations

import os
import sys
import warnings
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mm_amp
import mm_compile
import mm_dist
import mm_npu
from mm_runner.config import Config
from mm_runner.errors import ComponentNotFoundError, ConfigError
from mm_runner.runner._checks import HOMES, refuse_misplaced

__all__ = ["load_config", "locating"]

# Their messages begin with the path of a key, whichever package reads it.
_CONFIG_ERRORS = (
    *(ConfigError, ComponentNotFoundError),
    *(mm_amp.ConfigError, mm_compile.ConfigError, mm_dist.ConfigError, mm_npu.ConfigError),
)


def load_config(options: Namespace) -> Config:
    """Read the configuration that ``options.config`` names, with what the command line changes.

    Its folder, and the current one, become places that modules are imported from.

    Raises:
        ConfigError: If it cannot be read, or a change does not fit it.
    """
    file = Path(options.config).absolute()
    for folder in (os.getcwd(), str(file.parent)):  # noqa: PTH109 - text, as in sys.path
        if folder not in sys.path:
            sys.path.insert(0, folder)
    cfg = Config.fromfile(file)
    for path in options.cfg_options or {}:
        name, _, rest = path.partition(".")
        if name in HOMES:  # what a file makes of a variable of this name is made already
            home = f"{HOMES[name]}.{rest}" if rest else HOMES[name]
            raise ConfigError(f"--cfg-options {path}: it sets nothing there. Give {home}=... .")
    if options.cfg_options:
        cfg.merge_from_dict(options.cfg_options)
    with locating(cfg):
        _apply(cfg, options)
        refuse_misplaced(cfg, cfg)
    return cfg


@contextmanager
def locating(cfg: Config) -> Iterator[None]:
    """Put file and line before the message of an error that begins with the path of a key."""
    try:
        yield
    except _CONFIG_ERRORS as error:
        raise cfg.located(error) from error


def _apply(cfg: Config, options: Namespace) -> None:
    if options.work_dir is not None:
        cfg.work_dir = options.work_dir
    elif cfg.get("work_dir") is None:
        cfg.work_dir = str(Path("work_dirs", Path(options.config).stem))
    if getattr(options, "launcher", None) is not None:
        cfg.launcher = options.launcher
    if getattr(options, "amp", None) is not None:
        cfg.optim_wrapper = _with_amp(cfg.get("optim_wrapper"), options.amp, "optim_wrapper")
    if getattr(options, "compile", False) and not cfg.get("compile"):
        cfg.compile = True
    if getattr(options, "auto_scale_lr", False):
        _enable_auto_scale(cfg)
    resume = getattr(options, "resume", None)
    if resume is not None:
        _resume(cfg, resume)
    if getattr(options, "overwrite", False):
        cfg.overwrite, cfg.resume = True, False
    if getattr(options, "no_resume_data", False):
        cfg.resume_data = False


def _resume(cfg: Config, resume: str) -> None:
    if resume == "auto" and cfg.get("load_from"):
        warnings.warn(
            f"--resume leaves load_from={cfg.load_from!r} out: it goes on from the newest "
            "checkpoint of work_dir. Give --resume FILE to go on from a file.",
            stacklevel=2,
        )
    cfg.resume, cfg.load_from = True, None if resume == "auto" else resume


def _with_amp(wrapper: Any, dtype: str, where: str) -> dict[str, Any]:
    if not isinstance(wrapper, Mapping):
        raise ConfigError(f"{where}: --amp was given; a dict is needed for it, got {wrapper!r}.")
    if "optimizer" not in wrapper and wrapper.get("constructor") is not None:
        return {
            name: _with_amp(part, dtype, f"{where}.{name}") if "optimizer" in part else part
            for name, part in wrapper.items()
        }
    kind = wrapper.get("type", "OptimWrapper")
    if kind not in {"OptimWrapper", "AmpOptimWrapper"}:
        raise ConfigError(
            f"{where}.type: --amp was given, which makes an AmpOptimWrapper of an OptimWrapper; "
            f"this is {kind!r}. Leave --amp out, or the type."
        )
    chosen = {} if dtype == "default" else {"dtype": dtype}
    return {**wrapper, "type": "AmpOptimWrapper", **chosen}


def _enable_auto_scale(cfg: Config) -> None:
    scale = cfg.get("auto_scale_lr")
    if not isinstance(scale, Mapping) or "base_batch_size" not in scale:
        raise ConfigError(
            "auto_scale_lr.base_batch_size: --auto-scale-lr was given, and this key is missing. It "
            "is the batch size that the learning rate was chosen for."
        )
    cfg.auto_scale_lr = {**scale, "enable": True}

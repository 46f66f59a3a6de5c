"""The configuration of a command: a file, and what the command line changes in it."""

from __future__ import annotations

import os
import sys
import warnings
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mm_runner.config import Config, DictAction, import_modules
from mm_runner.config._installed import find_file
from mm_runner.errors import ConfigError


def add_config_arguments(
    parser: ArgumentParser,
    *,
    work_dir: bool = True,
    launcher: bool = True,
    switches: bool = True,
) -> None:
    """Add ``CONFIG`` and the options that change it, for :func:`load_config`.

    Args:
        parser: Of a command.
        work_dir: Add ``--work-dir``.
        launcher: Add ``--launcher`` and ``--local-rank``.
        switches: Add ``--amp``, ``--compile`` and ``--auto-scale-lr``.
    """
    parser.add_argument(
        "config",
        metavar="CONFIG",
        help="a .yaml, .json or .py file; package::path is one that an installed package brings",
    )
    parser.add_argument(
        "--cfg-options",
        nargs="+",
        action=DictAction,
        metavar="PATH=VALUE",
        help="change single values: optim_wrapper.optimizer.lr=0.1 custom_hooks.0.interval=5",
    )
    if work_dir:
        parser.add_argument(
            "--work-dir",
            metavar="DIR",
            help="where checkpoints and logs go (default: as configured, else work_dirs/<name>)",
        )
    if launcher:
        add_launcher(parser)
    if switches:
        parser.add_argument(
            "--amp",
            nargs="?",
            const="default",
            choices=["default", "float16", "bfloat16", "auto"],
            metavar="DTYPE",
            help="mixed precision: float16, bfloat16, auto, or the device's default",
        )
        parser.add_argument("--compile", action="store_true", help="compile the model")
        parser.add_argument(
            "--auto-scale-lr",
            action="store_true",
            help="scale the learning rate by the batch; needs auto_scale_lr.base_batch_size",
        )


def add_launcher(parser: ArgumentParser) -> None:
    """Add ``--launcher`` and ``--local-rank``; by default the configuration's launcher is used."""
    from mm_dist import add_launcher_arguments  # noqa: PLC0415 - imports torch

    add_launcher_arguments(parser)
    parser.set_defaults(launcher=None)


def load_config(options: Namespace) -> Config:
    """Read the configuration that ``options.config`` names, with what the command line changes.

    Its folder, and the current one, become places that modules are imported from.

    Raises:
        ConfigError: If it cannot be read, or a change does not fit it.
    """
    file = find_file(options.config, Path.cwd())
    for folder in (os.getcwd(), str(file.parent)):  # noqa: PTH109 - text, as in sys.path
        if folder not in sys.path:
            sys.path.insert(0, folder)
    options.loaded = cfg = Config.fromfile(file, import_custom_modules=False)
    package, is_installed, _ = options.config.partition("::")
    if is_installed:
        cfg.setdefault("default_scope", package)
    if options.cfg_options:
        _check_keys(options.cfg_options)
        cfg.merge_from_dict(options.cfg_options)
    if "custom_imports" in cfg:
        import_modules(cfg["custom_imports"])
    _apply(cfg, {name: one for name, one in vars(options).items() if one not in (None, False)})
    return cfg


def _check_keys(changes: Mapping[str, Any]) -> None:
    from mm_runner.runner import Runner  # noqa: PLC0415 - imports torch
    from mm_runner.runner._checks import HOMES, unknown_keys  # noqa: PLC0415

    for key in unknown_keys({path.partition(".")[0] for path in changes}, Runner):
        if key in HOMES:
            raise ConfigError(
                f"--cfg-options {key}: nothing reads this key; it belongs to {HOMES[key]}. A "
                "variable of the file has been evaluated already."
            )
        warnings.warn(
            f"--cfg-options {key}: not an argument of the Runner. The file has been evaluated "
            "already, so that a variable of this name changes nothing else.",
            stacklevel=3,
        )


def located(error: Exception, options: Namespace) -> Exception:
    """Return an error of the configuration with file and line before its message."""
    cfg: Config | None = getattr(options, "loaded", None)
    kinds = {kind.__name__ for kind in type(error).__mro__}  # each of our packages has its own
    if cfg is None or not kinds & {"ConfigError", "ComponentNotFoundError"}:
        return error
    return cfg.located(error).with_traceback(error.__traceback__)


def _apply(cfg: Config, given: Mapping[str, Any]) -> None:
    if "work_dir" in given:
        cfg.work_dir = given["work_dir"]
    elif cfg.get("work_dir") is None:
        cfg.work_dir = str(Path("work_dirs", Path(given["config"]).stem))
    if "launcher" in given:
        cfg.launcher = given["launcher"]
    if "amp" in given:
        cfg.optim_wrapper = _with_amp(cfg.get("optim_wrapper"), given["amp"], "optim_wrapper")
    if "compile" in given:
        cfg.compile = cfg.get("compile") or True
    if "auto_scale_lr" in given:
        scale = cfg.get("auto_scale_lr")
        if not isinstance(scale, Mapping) or "base_batch_size" not in scale:
            raise ConfigError(
                "auto_scale_lr.base_batch_size: --auto-scale-lr was given, and this key is "
                "missing. It is the batch size that the learning rate was chosen for."
            )
        cfg.auto_scale_lr = {**scale, "enable": True}
    if "resume" in given:
        is_newest = given["resume"] == "auto"
        cfg.resume, cfg.load_from = True, None if is_newest else given["resume"]
    if "overwrite" in given:
        cfg.overwrite, cfg.resume = True, False


def _with_amp(wrapper: Any, dtype: str, where: str) -> dict[str, Any]:
    if not isinstance(wrapper, Mapping):
        raise ConfigError(f"{where}: --amp was given; a dict is needed for it, got {wrapper!r}.")
    if "optimizer" not in wrapper and wrapper.get("constructor") is not None:
        return {
            name: _with_amp(part, dtype, f"{where}.{name}") if "optimizer" in part else part
            for name, part in wrapper.items()
        }
    kind = wrapper.get("type", "OptimWrapper")
    name = str(getattr(kind, "__name__", kind)).removeprefix("mmengine.")
    if name not in {"OptimWrapper", "AmpOptimWrapper"}:
        raise ConfigError(
            f"{where}.type: --amp was given, which makes an AmpOptimWrapper of an OptimWrapper; "
            f"this is {kind!r}. Leave --amp out, or the type."
        )
    chosen = {} if dtype == "default" else {"dtype": dtype}
    return {**wrapper, "type": "AmpOptimWrapper", **chosen}

"""Find the launcher that was asked for, or the one that started this process."""

import argparse
import os
from collections.abc import Iterator, Mapping
from typing import ClassVar

from mm_dist._errors import ConfigError, MMDistError
from mm_dist._launchers._environment import LaunchEnvironment, Launcher
from mm_dist._launchers._misuse import check_agreement
from mm_dist._message import suggest_name, warn_caller
from mm_dist._plugins import find_plugins

GROUP = "mm.launchers"
# The order in which 'auto' asks; launchers of other distributions come next, 'none' last.
OWN_ORDER = ("pytorch", "slurm", "mpi")


class NoLauncher:
    """A single process, whatever the environment says."""

    name: ClassVar[str] = "none"

    def detect(self, env: Mapping[str, str]) -> bool:  # noqa: ARG002 (the Protocol's argument)
        """Return ``True``: a single process is always possible, so it is asked last."""
        return True

    def read(self, env: Mapping[str, str]) -> LaunchEnvironment:  # noqa: ARG002 (as above)
        """Return rank 0 of 1."""
        return LaunchEnvironment("none", 0, 0, 1, 1, 1, None, None, {})


def launcher_names() -> list[str]:
    """Return every value that ``launcher`` may have, ``'auto'`` first."""
    others = sorted(find_plugins(GROUP).keys() - {"auto", "none", *OWN_ORDER})
    return ["auto", "none", *OWN_ORDER, *others]


def select_launcher(name: str, env: Mapping[str, str]) -> Launcher:
    """Return the launcher called ``name``; for ``'auto'`` the one that ``env`` belongs to."""
    if name == "auto":
        check_agreement(env)
        return detect_launcher(env)
    check_launcher(name)
    entry = find_plugins(GROUP)[name]
    try:
        launcher: Launcher = entry.load()()
    except Exception as error:
        raise ConfigError(
            f"launcher={name!r} cannot be used: its plugin {entry.value} cannot be used here "
            f"({type(error).__name__}: {error}). Repair or uninstall its distribution."
        ) from error
    return launcher


def check_launcher(name: str) -> None:
    """Refuse what is no launcher's name."""
    names = launcher_names()
    if name not in names:
        raise ConfigError(
            f"launcher={name!r} is not known; there are: {', '.join(names)}."
            f"{suggest_name(str(name), names)} Another one is added by a distribution that "
            f"advertises it in the entry-point group {GROUP!r}."
        )


def detect_launcher(env: Mapping[str, str]) -> Launcher:
    """Return the first launcher that recognizes ``env``."""
    return next(launcher for launcher, is_found in ask_launchers(env) if is_found)


def ask_launchers(env: Mapping[str, str]) -> Iterator[tuple[Launcher, bool]]:
    """Yield the launchers in the order in which ``'auto'`` asks them, with their answers."""
    found = find_plugins(GROUP)
    for name in (*launcher_names()[2:], "none"):
        if name not in found:
            continue
        try:
            launcher: Launcher = found[name].load()()
            is_found = launcher.detect(env)
        except MMDistError:
            raise
        except Exception as error:  # noqa: BLE001 (a plugin may raise anything)
            warn_caller(
                f"Launcher {name!r} is not asked: its plugin {found[name].value} cannot be used "
                f"here ({type(error).__name__}: {error}). Repair or uninstall its distribution."
            )
        else:
            yield launcher, is_found


def infer_launcher() -> str:
    """Return the name of the launcher that ``launcher='auto'`` stands for in this process."""
    return detect_launcher(os.environ).name


def add_launcher_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--launcher`` and both spellings of ``--local_rank``.

    ``python -m torch.distributed.launch`` passes ``--local_rank=N`` or ``--local-rank=N``,
    depending on torch's version; a script without both dies in argparse on the other one. The
    default is the environment's ``LOCAL_RANK``, which the functions of this package read alone.

    Args:
        parser: The script's parser; changed in place.

    Example:
        >>> parser = argparse.ArgumentParser()
        >>> add_launcher_arguments(parser)
        >>> parser.parse_args(["--local-rank=1"]).local_rank
        1
    """
    parser.add_argument(
        "--launcher",
        choices=launcher_names(),
        default="auto",
        help="what started the processes (default: found out from the environment)",
    )
    parser.add_argument(
        "--local_rank",
        "--local-rank",
        type=int,
        default=os.environ.get("LOCAL_RANK") or 0,
        metavar="N",
        help="passed by torch.distributed.launch; need not be given by hand",
    )

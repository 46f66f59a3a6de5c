"""Launchers: how processes were started, read from the environment."""

from mm_dist._launchers._environment import LaunchEnvironment, Launcher
from mm_dist._launchers._misuse import describe_misuse
from mm_dist._launchers._mpi import MPILauncher
from mm_dist._launchers._pytorch import PyTorchLauncher
from mm_dist._launchers._selection import (
    NoLauncher,
    add_launcher_arguments,
    check_launcher,
    detect_launcher,
    infer_launcher,
    launcher_names,
    select_launcher,
)
from mm_dist._launchers._slurm import SlurmLauncher

__all__ = [
    "LaunchEnvironment",
    "Launcher",
    "MPILauncher",
    "NoLauncher",
    "PyTorchLauncher",
    "SlurmLauncher",
    "add_launcher_arguments",
    "check_launcher",
    "describe_misuse",
    "detect_launcher",
    "infer_launcher",
    "launcher_names",
    "select_launcher",
]

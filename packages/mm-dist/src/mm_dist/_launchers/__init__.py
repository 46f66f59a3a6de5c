"""Launchers: how processes were started, read from the environment."""

from mm_dist._launchers._environment import LaunchEnvironment, Launcher
from mm_dist._launchers._misuse import describe_misuse
from mm_dist._launchers._mpi import MPILauncher
from mm_dist._launchers._mpi_job import observe_job
from mm_dist._launchers._none import NoLauncher
from mm_dist._launchers._pytorch import PyTorchLauncher
from mm_dist._launchers._selection import (
    check_launcher,
    detect_launcher,
    launcher_names,
    select_launcher,
)
from mm_dist._launchers._slurm import SlurmLauncher
from mm_dist._launchers._windows import libuv_variables

__all__ = [
    "LaunchEnvironment",
    "Launcher",
    "MPILauncher",
    "NoLauncher",
    "PyTorchLauncher",
    "SlurmLauncher",
    "check_launcher",
    "describe_misuse",
    "detect_launcher",
    "launcher_names",
    "libuv_variables",
    "observe_job",
    "select_launcher",
]

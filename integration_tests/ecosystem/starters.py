"""Starts ``one_script.py`` as libraries do that start processes: ``starters.py HOW WORK_DIR``."""

import os
import runpy
import sys
from pathlib import Path

import torch.distributed as dist
import torch.multiprocessing as mp

SCRIPT = Path(__file__).with_name("one_script.py")


def spawn_with_variables(work_dir):
    """The starter sets torch's variables in each process."""
    mp.spawn(_run_with_variables, (str(work_dir),), nprocs=2)


def fork_with_variables(work_dir):
    mp.start_processes(_run_with_variables, (str(work_dir),), nprocs=2, start_method="fork")


def spawn_with_group(work_dir):
    """The starter creates the group, and sets no variable."""
    mp.spawn(_run_with_group, (str(work_dir), f"{work_dir}.store"), nprocs=2)


def notebook(work_dir):
    """Two processes from a cell, then one in the kernel itself."""
    import nbclient  # noqa: PLC0415 - of this one only
    import nbformat  # noqa: PLC0415

    two = f"debug_launcher(one_script.main, ([{str(work_dir)!r}],), num_processes=2)"
    cells = [
        f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r})",
        f"import one_script\nfrom accelerate import debug_launcher\n{two}",
        f"%run {SCRIPT} {work_dir}.alone",
    ]
    cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
    nbclient.execute(nbformat.v4.new_notebook(cells=cells))


def submitit_local(work_dir):
    _submit(work_dir, cluster="local", nodes=1, tasks_per_node=2)


def submitit_slurm(work_dir):
    _submit(work_dir, cluster="slurm", nodes=2, tasks_per_node=1)


def _submit(work_dir, cluster, **layout):
    import submitit  # noqa: PLC0415 - of this one only

    executor = submitit.AutoExecutor(f"{work_dir}.submitit", cluster=cluster)
    executor.update_parameters(timeout_min=10, **layout)
    function = run_with_torch_variables if cluster == "local" else run_script
    executor.submit(function, str(work_dir)).results()


def run_with_torch_variables(work_dir):
    """Run the script in a task of the local executor, which has no launcher of its own here."""
    import submitit  # noqa: PLC0415 - of this one only

    submitit.helpers.TorchDistributedEnvironment().export()
    run_script(work_dir)


def run_script(work_dir, *options):
    """Run the script in this process, as ``python`` would."""
    sys.argv = [str(SCRIPT), work_dir, *options]
    runpy.run_path(str(SCRIPT), run_name="__main__")


def _run_with_variables(rank, work_dir):
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1"}
    os.environ.update({name: str(value) for name, value in variables.items()})
    run_script(work_dir)


def _run_with_group(rank, work_dir, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    run_script(work_dir)
    dist.destroy_process_group()


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))

"""A real cluster of Slurm runs what the documents say."""

import shutil

import pytest
from places import RANKS, expected_places, read_places
from training import (
    CONFIG,
    FEW_EPOCHS,
    HERE,
    OPTIONS,
    SCRIPT,
    TEMPLATES,
    accuracy,
    assert_equal_runs,
    read_checkpoint,
)

# Word for word as in the documents.
DOCUMENTED = """srun -p mm_dev \\
    --job-name=test \\
    --gres=gpu:8 \\
    --ntasks=16 \\
    --ntasks-per-node=8 \\
    --cpus-per-task=5 \\
    --kill-on-bad-exit=1 \\
    python examples/distributed_training.py --launcher="slurm"
"""


def test_documented_command_trains_on_two_machines_with_eight_gpus_each(slurm, tmp_path):
    shutil.copytree(HERE / "examples", tmp_path / "examples")
    output = slurm.run("bash", "-c", DOCUMENTED, cwd=tmp_path)
    assert accuracy(output) > 90
    checkpoint = read_checkpoint(tmp_path / "work_dirs" / "distributed_training")
    assert checkpoint["meta"]["world_size"] == 16
    assert checkpoint["meta"]["epoch"] == 20


def test_two_machines_train_as_one_does(slurm, reference, tmp_path):
    task = ("srun", "--nodes=2", "--ntasks=2", "--kill-on-bad-exit=1", "python", SCRIPT)
    output = slurm.run(*task, "--launcher=slurm", *OPTIONS, "--work-dir", tmp_path, cwd=HERE)
    assert accuracy(output) > 50
    assert_equal_runs(tmp_path, reference)


@pytest.mark.cut
def test_every_task_knows_its_place(slurm, tmp_path):
    file = tmp_path / "places"
    layout = ("--nodes=2", "--ntasks=4", "--ntasks-per-node=2")
    slurm.run("srun", *layout, "python", RANKS, file, "auto")
    assert read_places(file) == expected_places("slurm", "n1", "n2")


def test_steps_of_one_job_run_side_by_side(slurm, tmp_path):
    steps = " & ".join(
        f"srun --exact --ntasks=2 python {RANKS} {tmp_path}/{name} slurm" for name in "ab"
    )
    slurm.run("salloc", "--nodelist=n1", "--ntasks=4", "bash", "-c", f"{steps} & wait")
    for name in "ab":
        assert read_places(tmp_path / name) == expected_places("slurm", "n1")


def test_elements_of_an_array_run_side_by_side_on_one_node(slurm, config_reference, tmp_path):
    shutil.copytree(HERE / "examples", tmp_path / "examples")
    options = (CONFIG, *FEW_EPOCHS)
    layout = ("--nodes=1", "--ntasks-per-node=2", "--nodelist=n1", "--gres=gpu:2", "--time=10")
    job = slurm.submit("--array=0-1", *layout, TEMPLATES / "train.sbatch", *options, cwd=tmp_path)
    elements = [slurm.wait_for(f"{job}_{number}", "COMPLETED") for number in range(2)]
    starts, ends = ([one[key] for one in elements] for key in ("StartTime", "EndTime"))
    assert max(starts) < min(ends), "they did not run side by side"
    assert {one["NodeList"] for one in elements} == {"n1"}
    for number in range(2):
        expected = config_reference(*FEW_EPOCHS, f"randomness.seed={number}")
        assert_equal_runs(tmp_path / "work_dirs" / f"train-{job}.{number}", expected)

"""What a newcomer sees who gets something wrong: one message that says what to do."""

from pathlib import Path

import pytest

SEEDS = Path(__file__).parent / "seeds"

PROGRAM = """
from small_resnet import ResNet18, train_dataloader_cfg
from mm_runner.runner import Runner

arguments = dict(
    model=ResNet18(),
    work_dir='./work_dir',
    train_dataloader=train_dataloader_cfg,
    optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.001, momentum=0.9)),
    train_cfg=dict(by_epoch=True, max_epochs=3),
)
arguments.update({change})
Runner(**arguments).train()
"""

MISTAKES = {
    "unknown-optimizer": (
        "optim_wrapper=dict(optimizer=dict(type='SDG', lr=0.1))",
        ["No optimizer named 'SDG'", "Did you mean 'SGD'?", "NpuFusedAdamW"],
    ),
    "unknown-optimizer-argument": (
        "optim_wrapper=dict(optimizer=dict(type='SGD', lrr=0.1))",
        ["optim_wrapper.optimizer.lrr", "unknown argument of SGD", "Did you mean 'lr'?"],
    ),
    "unknown-wrapper": (
        "optim_wrapper=dict(type='AmpWrapper', optimizer=dict(type='SGD', lr=0.1))",
        ["No optim wrapper named 'AmpWrapper'", "AmpOptimWrapper"],
    ),
    "missing-dataset": (
        "train_dataloader=dict(batch_size=4)",
        ["train_dataloader.dataset", "missing", "given: 'batch_size'"],
    ),
    "no-launcher": (
        "launcher='pytorch'",
        ["launcher", "RANK", "torchrun --nproc_per_node"],
    ),
    "unwritable-work-dir": (
        "work_dir=__file__ + '/work_dir'",
        ["work_dir=", "cannot be written", "Give a directory"],
    ),
    "unknown-compile-option": (
        "cfg=dict(compile=dict(backand='inductor'))",
        ["backand", "backend"],
    ),
    "cfg-slip": (
        "cfg=dict(model_wrapper=dict(type='MMDistributedDataParallel'))",
        ["cfg.model_wrapper", "Did you mean", "model_wrapper_cfg"],
    ),
}


@pytest.mark.parametrize(("change", "parts"), MISTAKES.values(), ids=MISTAKES)
def test_mistake_ends_in_a_message(change, parts, run_python, tmp_path):
    script = tmp_path / "script.py"
    source = f"import sys\nsys.path.insert(0, {str(SEEDS)!r})\n" + PROGRAM
    script.write_text(source.replace("{change}", f"dict({change})"))
    done = run_python(script, check=False)
    assert done.returncode == 1
    message = done.stderr.strip().splitlines()[-1]
    for part in parts:
        assert part in message, message

"""A library in OpenMMLab's style trains by its configuration; MMEngine itself is real."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

CONFIG = """
default_scope = "mmengine"
custom_imports = dict(imports=["birds"])
work_dir = "work"
model = dict(
    type="Bird",
    data_preprocessor=dict(type="Stack"),
    wing=dict(
        type="mmengine.Wing", width=16, init_cfg=dict(type="Constant", layer="Linear", val=0.1)
    ),
)
data = dict(type="Flights", size=64, pipeline=[dict(type="PackFlights")])
train_dataloader = dict(
    dataset=data, batch_size=8, sampler=dict(type="DefaultSampler", shuffle=True), num_workers=0
)
val_dataloader = dict(
    dataset=data, batch_size=8, sampler=dict(type="DefaultSampler", shuffle=False), num_workers=0
)
train_cfg = dict(type="EpochBasedTrainLoop", max_epochs=3)
val_cfg = dict(type="ValLoop")
val_evaluator = dict(type="HitRate")
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=0.05),
    clip_grad=dict(max_norm=1.0),
    constructor="SlowHead",
    paramwise_cfg=dict(head_scale=0.5),
)
param_scheduler = dict(type="mmengine.CosineAnnealingLR", T_max=3)
default_hooks = dict(
    checkpoint=dict(type="CheckpointHook", interval=1, save_best="birds/hits", rule="greater")
)
custom_hooks = [dict(type="Watcher")]
visualizer = dict(type="Visualizer", vis_backends=[dict(type="LocalVisBackend")])
randomness = dict(seed=0)
"""

PLAIN = """
import sys
import torch
from mm_runner import Runner
from mm_runner.model import Supervised

data = torch.utils.data.TensorDataset(torch.ones(4, 2), torch.zeros(4, dtype=torch.long))
loader = dict(dataset=data, batch_size=2, collate_fn="default_collate")
model = Supervised(torch.nn.Linear(2, 2), loss=torch.nn.functional.cross_entropy)
optim_wrapper = dict(optimizer=dict(type="SGD", lr=0.1))
train_cfg = dict(by_epoch=True, max_epochs=1)
Runner(model, "plain", loader, train_cfg=train_cfg, optim_wrapper=optim_wrapper).train()
assert not [name for name in sys.modules if name.startswith(("mmengine", "mm_runner.openmmlab"))]
"""


def run(folder, *arguments):
    command = [sys.executable, "-m", "mm_runner", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "birds.py").write_text(Path(__file__).with_name("birds.py").read_text())
    (tmp_path / "flights.py").write_text(CONFIG)
    return tmp_path


@pytest.mark.parametrize("loop", ["EpochBasedTrainLoop", "LoudLoop"])
def test_a_library_trains_validates_and_resumes(folder, loop):
    command = ["train", "flights.py", "--amp=bfloat16", f"--cfg-options=train_cfg.type={loop}"]
    told = run(folder, *command)
    assert "birds: 3 epochs, 8 batches" in told
    assert "birds: ['birds/hits']" in told
    assert told.count("birds: epoch") == (3 if loop == "LoudLoop" else 0)
    whole = torch.load(folder / "work" / "epoch_3.pth", weights_only=True)["state_dict"]
    assert list((folder / "work").glob("best_birds_hits*.pth"))
    assert list((folder / "work" / "vis_data").rglob("seen_*.png"))
    (folder / "work" / "epoch_3.pth").unlink()
    (folder / "work" / "last_checkpoint").write_text("epoch_2.pth")
    assert "Resumed after epoch 2, step 16." in run(folder, *command, "--resume")
    again = torch.load(folder / "work" / "epoch_3.pth", weights_only=True)["state_dict"]
    assert all(torch.equal(again[name], value) for name, value in whole.items())


def test_check_builds_it_on_the_meta_device(folder):
    told = run(folder, "check", "flights.py")
    assert "Bird: " in told
    assert "lr 0.025" in told


def test_nothing_of_mmengine_is_imported_without_need(folder):
    subprocess.run([sys.executable, "-c", PLAIN], cwd=folder, check=True)


def test_a_validation_loop_of_a_library(folder):
    changes = ["val_cfg.type=TwiceLoop", "train_cfg.max_epochs=1"]
    told = run(folder, "train", "flights.py", "--cfg-options", *changes)
    assert told.count("birds: ['birds/hits']") == 2
    assert told.count("Epoch(val)") == 2


def test_a_hook_that_needs_the_runner_of_mmengine_is_refused(folder):
    (folder / "birds.py").write_text(
        (folder / "birds.py").read_text()
        + "\n\nfrom mmengine.hooks import CheckpointHook\n\n"
        + "@HOOKS.register_module()\nclass Nest(CheckpointHook):\n    pass\n"
    )
    command = [sys.executable, "-m", "mm_runner", "train", "flights.py"]
    command += ["--cfg-options", "default_hooks.checkpoint.type=Nest"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode
    assert "derive it from mm_runner.hooks.CheckpointHook" in done.stderr


def test_an_evaluator_of_a_library(folder):
    changes = ["val_evaluator.type=Panel", "val_evaluator.metrics.type=HitRate"]
    changes += ["train_cfg.max_epochs=1", "default_hooks.checkpoint.save_best=panel/birds/hits"]
    run(folder, "check", "flights.py", "--cfg-options", *changes)
    assert "panel/birds/hits: " in run(folder, "train", "flights.py", "--cfg-options", *changes)

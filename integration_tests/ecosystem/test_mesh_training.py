"""A transformer split over processes, sharded over others, and the whole one train alike."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("mesh_steps.py")
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
pytestmark = pytest.mark.skipif(TORCH < (2, 8), reason="sharding on the CPU needs torch 2.8")


@pytest.fixture
def losses_of(tmp_path):
    def run(name, world_size, **options):
        ranks = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}"]
        done = subprocess.run(
            [sys.executable, *(ranks if world_size > 1 else ()), SCRIPT, name, json.dumps(options)],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return json.loads((tmp_path / name / "losses.json").read_text())

    return run


def test_meshes_are_one_process_and_resume_each_other(losses_of):
    # With accumulation and clipping; 2 epochs of 10 steps, each followed by an accuracy, which
    # is computed first in a run that resumes.
    expected = losses_of("alone", 1)
    assert len(expected) == 22
    for data in (1, 2, 4):
        whole = losses_of(f"mesh{data}", 4, data=data, tensor=4 // data)
        assert whole == pytest.approx(expected, abs=1e-6, rel=0)
        other = {1: 2, 2: 4, 4: 1}[data]
        options = {"data": other, "tensor": 4 // other, "load_from": f"mesh{data}/epoch_1.pth"}
        resumed = losses_of(f"resumed{data}", 4, **options)
        assert resumed == pytest.approx(expected[10:], abs=1e-6, rel=0)
    resumed = losses_of("resumed_alone", 1, load_from="mesh2/epoch_1.pth")
    assert resumed == pytest.approx(expected[10:], abs=1e-6, rel=0)


def test_mixed_precision_compiled_regions_and_dropout_run(losses_of):
    amp = {"type": "AmpOptimWrapper", "dtype": "bfloat16"}
    options = {"dtype": "float32", "tensor": 2, "optim_wrapper": amp, "epochs": 1}
    half = losses_of("half", 2, **options)
    regions = {"regions": ["layers.*"], "backend": "aot_eager"}
    compiled = losses_of("compiled", 2, **options, compile=regions)
    assert compiled == pytest.approx(half, abs=0.02)
    assert half == pytest.approx(losses_of("whole", 1, dtype="float32", epochs=1), abs=0.05)
    losses_of("dropout", 4, data=2, tensor=2, dropout=0.5, epochs=1)

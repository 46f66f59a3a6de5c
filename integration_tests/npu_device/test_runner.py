"""The Runner on NPUs: a model trained by names in a config, and checkpoints across devices."""

import json

import pytest
import torch
from conftest import HERE, TORCHRUN
from stand_in_site import has_device

needs_device = pytest.mark.needs_device
SCRIPT = HERE / "training.py"
NINE = {
    "NpuFusedAdadelta": {"lr": 1.0},
    "NpuFusedAdam": {"lr": 0.02, "weight_decay": 0.01},
    "NpuFusedAdamP": {"lr": 0.02},
    "NpuFusedAdamW": {"lr": 0.02, "amsgrad": True},
    "NpuFusedBertAdam": {"lr": 0.02, "warmup": 0.1, "t_total": 40},
    "NpuFusedLamb": {"lr": 0.05},
    "NpuFusedRMSprop": {"lr": 0.01, "momentum": 0.5},
    "NpuFusedRMSpropTF": {"lr": 0.02, "momentum": 0.5},
    "NpuFusedSGD": {"lr": 0.1, "momentum": 0.9},
}


@pytest.fixture
def train(run_python, tmp_path):
    """``train(*runs, with_npu=True)`` trains in a process of its own, and says how it ended."""

    def run(*runs, command=(), with_npu=True):
        outcome = tmp_path / "outcome.pth"
        outcome.unlink(missing_ok=True)
        done = run_python(*command, SCRIPT, outcome, json.dumps({"runs": runs}), with_npu=with_npu)
        return torch.load(outcome), done.stdout + done.stderr

    return run


def assert_close(found, expected, tolerance=1e-4):
    for name, value in expected["params"].items():
        torch.testing.assert_close(found["params"][name], value, rtol=0, atol=tolerance, msg=name)


def test_each_name_trains_as_it_does_without_an_npu(train):
    runs = [{"optimizer": {"type": name, **options}, "epochs": 4} for name, options in NINE.items()]
    if not has_device():  # the optimizers are the stand-in's all the same
        runs = [{**one, "device_type": "cpu"} for one in runs]
    device = "npu:0" if has_device() else "cpu"
    on_npu, _ = train(*runs)
    portable, output = train(
        *[{**one, "work_dir": f"cpu/{i}"} for i, one in enumerate(runs)], with_npu=False
    )
    assert "portable implementation" in output
    for name, fused, plain in zip(NINE, on_npu, portable, strict=True):
        assert fused["class"].startswith("torch_npu.optim.")
        assert fused["class"].endswith(f".{name}")
        assert plain["class"].startswith("mm_npu.")
        assert (fused["device"], plain["device"]) == (device, "cpu")
        assert fused["devices"] == [device]
        assert fused["accuracy"] > 0.8
        assert fused["accuracy"] == plain["accuracy"]
        assert_close(fused, plain)


@needs_device
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_mixed_precision_on_two_npus(train, dtype):
    """Two ranks by torchrun: hccl, DDP, autocast, and a scaler where there has to be one."""
    wrapper = {"type": "AmpOptimWrapper", "dtype": dtype, "clip_grad": {"max_norm": 1.0}}
    if dtype == "float16":
        wrapper["loss_scale"] = 512.0
    one = {"optimizer": {"type": "NpuFusedAdamW", "lr": 0.02}, "wrapper": wrapper, "epochs": 4}
    (found,), _ = train(one, command=TORCHRUN)
    assert found["class"].endswith(".NpuFusedAdamW")
    assert found["class"].startswith("torch_npu.")
    assert found["backend"] == "hccl"
    assert found["devices"] == ["npu:0"]
    assert found["scaler"] == (dtype == "float16")
    assert found["accuracy"] > 0.8


@needs_device
@pytest.mark.parametrize("first_with_npu", [True, False], ids=["npu to cpu", "cpu to npu"])
def test_a_checkpoint_goes_on_on_the_other_device(train, first_with_npu):
    names = ("NpuFusedAdamW", "NpuFusedSGD", "NpuFusedBertAdam")
    runs = [{"optimizer": {"type": name, **NINE[name]}} for name in names]
    train(*[{**one, "epochs": 1} for one in runs], with_npu=first_with_npu)
    resumed, _ = train(*[{**one, "resume": True} for one in runs], with_npu=not first_with_npu)
    apart = [{**one, "work_dir": f"whole/{name}"} for name, one in zip(names, runs, strict=True)]
    whole, _ = train(*apart, with_npu=first_with_npu)
    for half, expected in zip(resumed, whole, strict=True):
        assert half["device"] == ("cpu" if first_with_npu else "npu:0")
        assert expected["device"] == ("npu:0" if first_with_npu else "cpu")
        assert_close(half, expected)


@needs_device
def test_the_random_numbers_of_the_npu_come_back(train, tmp_path):
    one = {"optimizer": {"type": "NpuFusedAdam", "lr": 0.02}, "dropout": 0.5, "work_dir": "run"}
    train({**one, "epochs": 1})
    saved = torch.load(tmp_path / "run" / "epoch_1.pth", weights_only=False, map_location="cpu")
    assert "npu" in json.dumps(saved["rng"], default=repr)
    (resumed,), _ = train({**one, "resume": True})
    (whole,), _ = train({**one, "work_dir": "whole"})
    assert_close(resumed, whole, tolerance=0)


@needs_device
def test_hooks_ask_the_npu_for_its_memory(train, tmp_path):
    hooks = [
        {"type": "ThroughputHook", "interval": 3},
        {"type": "EmptyCacheHook", "before_epoch": True, "after_epoch": False},
    ]
    (found,), output = train(
        {"optimizer": {"type": "NpuFusedAdam"}, "work_dir": "run", "hooks": hooks}
    )
    (path,) = (tmp_path / "run").glob("*/scalars.jsonl")
    scalars = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    figures = [line["memory_mb"] for line in scalars if "memory_mb" in line]
    # Of the NPU, where there is next to nothing; the process takes a hundred times as much.
    assert len(figures) == 4
    assert all(0 < figure < 10 for figure in figures)
    assert "Throughput: " in output
    assert found["calls"].count("empty_cache") >= 2


@needs_device
def test_the_profiler_hook_takes_torch_npus_profiler(train, tmp_path):
    hook = {"type": "ProfilerHook", "by_epoch": False, "profile_times": 2}
    hooks = [{**hook, "activity_with_cuda": True}]
    (found,), _ = train({"optimizer": {"type": "NpuFusedAdam"}, "work_dir": "run", "hooks": hooks})
    assert found["calls"].count("profiler.profile") == 1
    (trace,) = (tmp_path / "run").rglob("trace*.json")
    assert "aten::" in trace.read_text(encoding="utf-8")


@needs_device
def test_compiling_for_an_npu_is_refused_or_left(train, run_python):
    one = {"optimizer": {"type": "NpuFusedAdam", "lr": 0.02}, "epochs": 1}
    (eager, left), output = train(one, {**one, "compile": {"on_error": "eager"}, "work_dir": "2"})
    assert "npu" in output
    assert_close(left, eager, tolerance=0)
    refused = run_python(
        SCRIPT, "none.pth", json.dumps({"runs": [{**one, "compile": True}]}), check=False
    )
    assert refused.returncode != 0
    assert "npu" in refused.stderr.splitlines()[-1] + refused.stderr


@needs_device
def test_gradient_views_are_refused_in_a_run(run_python):
    one = {
        "optimizer": {"type": "NpuFusedAdam"},
        "model_wrapper_cfg": {"gradient_as_bucket_view": True},
    }
    done = run_python(*TORCHRUN, SCRIPT, "none.pth", json.dumps({"runs": [one]}), check=False)
    assert done.returncode != 0
    assert "FusedOptimizerError" in done.stderr
    assert "gradient_as_bucket_view=False" in done.stderr

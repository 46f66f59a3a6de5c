"""``cfg['activation_checkpointing']``: equal training with fewer saved activations."""

import copy
import sys

import pytest
import torch
from blocks import (
    SHARDS,
    SINCE_2_6,
    Block,
    Counting,
    Dropless,
    Net,
    SavedNumbers,
    batch,
    replaced,
    through_pickle,
    whole,
)
from torch import nn
from toy import CPU_LOW_PRECISION, NO_VALIDATION, loader_cfg, needs_compile, runner_arguments

import mm_compile
from mm_runner import ConfigError, Runner
from mm_runner.model import apply_activation_checkpointing, unwrap_model
from mm_runner.tools import make_plan, verify_resume

# Dynamo looks at the gradient of a tensor that has none, such as a loss.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


def checkpointed(model, names="blocks.*"):
    copied = copy.deepcopy(model)
    apply_activation_checkpointing(copied, names)
    return copied


def trained(model, steps=3, context=torch.enable_grad):
    """Train, and return what came of it: losses, gradients, states, random numbers, saved."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses, saved = [], SavedNumbers()
    for _ in range(steps):
        optimizer.zero_grad()
        with context(), saved:
            loss = model(**batch(), mode="loss")["loss"]
        loss.backward()
        losses.append(loss.detach())
        optimizer.step()
    gradients = [parameter.grad for parameter in model.parameters()]
    return [*losses, *gradients, *model.state_dict().values(), torch.rand(1)], saved.count


def expect_same_training(model, other, **options):
    (expected, more), (got, fewer) = trained(model, **options), trained(other, **options)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    assert fewer < more


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("blocks.1", ["blocks.1"]),
        (["blocks.[02]", "blocks.0"], ["blocks.0", "blocks.2"]),
        ("blocks.*", ["blocks.0", "blocks.1", "blocks.2"]),
        (("stem", "blocks.2.conv"), ["stem", "blocks.2.conv"]),
        (None, []),
        ([], []),
    ],
)
def test_the_modules_named_are_checkpointed(names, expected):
    assert replaced(checkpointed(Net(), names)) == expected


def test_training_is_the_same_to_the_last_bit_and_keeps_less():
    model = Net()
    other = checkpointed(model)
    assert list(other.state_dict()) == list(model.state_dict())
    expect_same_training(model, other)
    assert other.blocks[0].norm.num_batches_tracked == 3


@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle])
def test_copies_and_pickles_are_checkpointed_independently(copied):
    model = Net()
    other = checkpointed(model)
    again = copied(other)
    assert replaced(again) == replaced(other)
    expect_same_training(copy.deepcopy(model), again)
    # The first one has not moved.
    torch.testing.assert_close(dict(other.state_dict()), dict(model.state_dict()))


def test_buffers_change_once_and_are_restored_for_the_recomputation():
    model = Net(last=lambda: nn.Sequential(nn.Conv1d(4, 4, 1), Counting(), nn.InstanceNorm1d(
        4, affine=True, track_running_stats=True
    )))  # fmt: skip
    other = checkpointed(model, ["blocks.*", "last"])
    expect_same_training(model, other)
    assert other.last[1].scale == pytest.approx(1.5**3)


def test_two_backward_passes_recompute_twice_and_change_no_buffer():
    other = checkpointed(Net())
    loss = other(**batch(), mode="loss")["loss"]
    loss.backward(retain_graph=True)
    first = [parameter.grad.clone() for parameter in other.parameters()]
    loss.backward()
    torch.testing.assert_close([one.grad for one in other.parameters()], [2 * one for one in first])
    assert other.blocks[0].norm.num_batches_tracked == 1


class Named(nn.Module):
    """Its arguments are named as those of torch's function."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, inputs, *, debug=False, use_reentrant=None, function=1, context_fn=None):
        assert (debug, use_reentrant, context_fn) == (True, 3, None)
        return self.linear(inputs) * function


def test_arguments_may_have_any_name():
    model = nn.Sequential(Named())
    found = []
    for one in (model, checkpointed(model, "0")):
        outputs = one[0](torch.ones(2, 4), debug=True, use_reentrant=3, function=torch.tensor(2.0))
        outputs.sum().backward()
        found.append([outputs, one[0].linear.weight.grad])
    torch.testing.assert_close(*found)


class Queue(nn.Module):
    """Changes a large buffer in its forward, and computes with it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("queue", torch.zeros(1 << 15, 4))

    def forward(self, inputs):
        self.queue[: len(inputs)] += inputs.detach()
        return self.linear(inputs) * self.queue[: len(inputs)].clone()


def test_a_large_buffer_that_a_forward_changes_changes_once():
    model = nn.Sequential(Queue())
    found = []
    for one in (model, checkpointed(model, "0")):
        one(torch.ones(2, 4)).sum().backward()
        found.append([one[0].queue, one[0].linear.weight.grad])
    torch.testing.assert_close(*found)


def test_without_gradients_nothing_is_recomputed(monkeypatch):
    other = checkpointed(Net())
    monkeypatch.setattr("mm_runner.model._checkpointing.checkpoint", None)
    with torch.no_grad():
        other(**batch(), mode="loss")
        other.eval()(**batch())
    with pytest.raises(TypeError):
        other(**batch())


def test_autocast_holds_in_the_recomputation():
    dtype = torch.bfloat16  # float16 on the CPU has no scaler here
    model = Net()
    expect_same_training(model, checkpointed(model), context=lambda: torch.autocast("cpu", dtype))


def test_a_second_run_undoes_the_settings_of_the_first():
    model = checkpointed(Net())
    apply_activation_checkpointing(model, "blocks.1")
    assert replaced(model) == ["blocks.1"]
    apply_activation_checkpointing(model, None)
    assert replaced(model) == []
    assert type(model.blocks[0]) is Block


@needs_compile
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.skipif(not hasattr(torch, "compiler"), reason="torch 2.0 cannot capture it")
def test_checkpointed_modules_are_compiled(make_runner):
    # Of those that generate no code, the one that knows of checkpointing.
    cfg = {"compile": {"backend": "aot_eager_decomp_partition", "regions": "auto"}}
    found = []
    for names in (None, "blocks.*"):
        torch.manual_seed(0)
        runner = make_runner(
            model=Dropless(), cfg={**cfg, "activation_checkpointing": names}, **NO_VALIDATION
        )
        runner.train()
        assert len(runner.compile_handle.report().regions) == 3
        found.append(runner.model.state_dict())
    sys.modules["torch._dynamo"].reset()
    torch.testing.assert_close(*map(dict, found))


class Holder(nn.Module):
    """Checkpointed as a whole, and compiled block by block."""

    def __init__(self):
        super().__init__()
        self.body = Dropless()

    def forward(self, **inputs):
        return self.body(**inputs)


@needs_compile
@pytest.mark.skipif(not SINCE_2_6, reason="torch before 2.6 cannot compile within what is repeated")
def test_statistics_of_compiled_blocks_in_what_is_checkpointed_change_once():
    torch.manual_seed(0)
    model = Holder()
    other = checkpointed(model, "body")
    handle = mm_compile.compile_model(other, {"backend": "aot_eager", "regions": "auto"})
    (expected, _), (got, _) = trained(model), trained(other)
    torch.testing.assert_close(got, expected)
    report = handle.report()
    assert [one.recompiles for one in report.regions] == [0, 0, 0]
    sys.modules["torch._dynamo"].reset()


def test_a_run_logs_the_modules_and_refuses_wrong_names(make_runner):
    def run(**options):
        torch.manual_seed(0)
        wrapper = {
            "type": "AmpOptimWrapper",
            "dtype": CPU_LOW_PRECISION,
            "optimizer": {"type": "SGD", "lr": 0.1},
            "accumulative_counts": 2,
        }
        runner = make_runner(
            model=Net(), optim_wrapper=wrapper, custom_hooks=[{"type": "EMAHook"}], cfg=options
        )
        runner.train()
        return runner

    plain, runner = run(), run(activation_checkpointing="blocks.*")
    for name, value in plain.model.state_dict().items():
        torch.testing.assert_close(runner.model.state_dict()[name], value, rtol=0, atol=0)
    text = (runner.log_dir / f"{runner.timestamp}.log").read_text(encoding="utf-8")
    assert "\n  checkpointed blocks.*\n" in text
    with pytest.raises(
        ConfigError, match=r"'bloks\.1' names no module of Net .*\. Did.*'blocks\.1'"
    ):
        run(activation_checkpointing=["blocks.0", "bloks.1"])


def test_a_resumed_run_is_exact(tmp_path):
    cfg = runner_arguments(tmp_path, model={"type": Net}, **NO_VALIDATION)
    cfg["optim_wrapper"] = {"optimizer": {"type": "SGD", "lr": 0.1}, "accumulative_counts": 2}
    report = verify_resume({**cfg, "activation_checkpointing": "blocks.*"})
    assert report.equal, str(report)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("block.1", r"^activation_checkpointing: 'block\.1' names no module of Net.*'blocks\.1'"),
        ("blocks", r"'blocks' names no module of Net with a forward\. Did.*'blocks\.0'"),
        (3, r"^activation_checkpointing: a name or a list of names.*got 3"),
        (True, r"^activation_checkpointing: a name or a list of names.*got True"),
        (["stem", 1], r"got \['stem', 1\]"),
    ],
)
def test_wrong_names_are_refused_before_training(tmp_path, value, message):
    cfg = runner_arguments(tmp_path, model={"type": Net}, activation_checkpointing=value)
    with pytest.raises(ConfigError, match=message):
        make_plan(cfg)


def test_the_plan_names_it(tmp_path):
    plan = make_plan(runner_arguments(tmp_path, model=Net(), activation_checkpointing="blocks.1"))
    assert "\ncheckpointed  blocks.1\n" in plan


def _train_on_ranks(rank, work_dir, cfgs):
    for cfg in cfgs:
        found = []
        for names in (None, "blocks.*"):
            torch.manual_seed(0)
            runner = Runner(
                **runner_arguments(
                    f"{work_dir}/{names}",
                    model=Dropless(),
                    train_dataloader=loader_cfg(size=12, batch_size=3),
                    optim_wrapper={
                        "optimizer": {"type": "SGD", "lr": 0.1}, "accumulative_counts": 2
                    },
                    cfg={**cfg, "activation_checkpointing": names},
                    **NO_VALIDATION,
                )
            )  # fmt: skip
            runner.train()
            assert (runner.rank, runner.world_size) == (rank, 2)
            found.append([whole(one) for one in runner.model.state_dict().values()])
        assert len(replaced(unwrap_model(runner.model))) == 3
        torch.testing.assert_close(*found, rtol=0, atol=0)


def test_processes_train_the_same(run_ranks, tmp_path):
    sharded = {"model_wrapper_cfg": {"type": "MMFullyShardedDataParallel"}}
    cfgs = [{"find_unused_parameters": True, "sync_bn": "torch"}]
    run_ranks(_train_on_ranks, 2, tmp_path, [*cfgs, *([sharded] if SHARDS else [])])

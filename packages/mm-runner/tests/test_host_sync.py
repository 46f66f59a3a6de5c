"""Which operations make the host wait for the device, and who calls them."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from toy import NO_VALIDATION, Classifier, needs_compile
from typing_extensions import override

from mm_runner import ConfigError
from mm_runner.diagnostics import HostSyncHook
from mm_runner.hooks import Hook
from mm_runner.loops import EpochBasedTrainLoop


class Reads(Classifier):
    """Reads one value per step, and counts what is above zero."""

    def forward(self, inputs, labels, mode="tensor"):
        if mode == "loss":
            float(inputs.sum())
            inputs[inputs > 0].sum()
        return super().forward(inputs, labels, mode)


class ReadsToo(Hook):
    @override
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        assert data_batch["inputs"].nonzero().numel()

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        _read(outputs["loss"])


def _read(loss):
    return loss.item()


def train_counting(make_runner, hook=None, **overrides):
    hook = HostSyncHook(begin=2, iters=4) if hook is None else hook
    overrides = {"default_hooks": {"logger": {"interval": 1000}}, **overrides}
    hooks = [*overrides.pop("custom_hooks", ()), hook]
    runner = make_runner(custom_hooks=hooks, **{**NO_VALIDATION, **overrides})
    runner.train()
    return hook, next(runner.log_dir.glob("*.log")).read_text()


def by_origin(hook):
    return {(sync.what, sync.origin): count for sync, count in hook.counts.items()}


def test_a_step_of_ours_waits_for_nothing(make_runner):
    adam = {"optimizer": {"type": "Adam", "lr": 0.1}}  # reads how many steps it has done
    hook, log = train_counting(make_runner, optim_wrapper=adam)
    assert hook.counts == {}
    assert "in steps 3 to 6 the host would wait for a device 0 times each." in log
    assert hook.steps == 4


class OwnStep(Classifier):
    """Has a step of its own, so that a line of the user's leads to the optimizer."""

    def train_step(self, data, optim_wrapper):
        loss, logs = self.parse_losses(self(**data, mode="loss"))
        optim_wrapper.update_params(loss)
        return logs


def test_counts_of_steps_in_optimizers_are_left_out_in_a_step_of_the_users_own(make_runner):
    wrapper = {"optimizer": {"type": "AdamW", "lr": 0.1}}
    hook, _ = train_counting(make_runner, model={"type": OwnStep}, optim_wrapper=wrapper)
    assert hook.steps == 4
    assert hook.counts == {}


def test_what_waits_in_comparisons_and_in_ctc_loss_is_known(make_runner):
    class Compares(Classifier):
        def forward(self, inputs, labels, mode="tensor"):
            torch.allclose(inputs, inputs)
            chances = torch.zeros(5, 2, 4).log_softmax(-1)
            targets, lengths = torch.ones(2, 2, dtype=torch.long), torch.tensor([5, 5])
            torch.nn.functional.ctc_loss(chances, targets, lengths, torch.tensor([2, 2]))
            torch.nn.functional.ctc_loss(chances, targets, (5, 5), (2, 2))
            return super().forward(inputs, labels, mode)

    hook, _ = train_counting(make_runner, model={"type": Compares})
    assert sorted(sync.what for sync in hook.counts) == [
        "allclose",
        "ctc_loss with lengths as tensors",
    ]
    assert set(hook.counts.values()) == {4}


def test_what_torch_does_itself_is_told_by_its_place(make_runner):
    clipping = {
        "optimizer": {"type": "SGD", "lr": 0.1},
        "clip_grad": {"max_norm": 1.0, "error_if_nonfinite": True},
    }
    hook, _ = train_counting(make_runner, optim_wrapper=clipping)
    places = {origin.partition(":")[0] for _, origin in by_origin(hook)}
    assert places <= {"torch/nn/utils/clip_grad.py", "mm_amp/_clipping.py"}
    assert sum(hook.counts.values()) >= 4


def test_each_wait_is_told_with_its_line_or_its_hook(make_runner):
    hook, log = train_counting(make_runner, model={"type": Reads}, custom_hooks=[ReadsToo()])
    here = "test_host_sync.py"
    found = {
        (what, origin.rpartition("/")[2].rpartition(":")[0], origin.rpartition(" in ")[2]): count
        for (what, origin), count in by_origin(hook).items()
        if not origin.startswith("ReadsToo")
    }
    assert found == {
        ("item, float, int or bool", here, "forward"): 4,
        ("an index that is a mask", here, "forward"): 4,
    }
    of_hook = {
        (what, origin.partition(",")[0], origin.rpartition(" in ")[2]): count
        for (what, origin), count in by_origin(hook).items()
        if origin.startswith("ReadsToo")
    }
    assert of_hook == {
        ("nonzero", "ReadsToo", "before_train_iter"): 4,
        ("item, float, int or bool", "ReadsToo", "_read"): 4,
    }
    assert "the host would wait for a device 4 times each" in log
    assert "per step  operation" in log
    assert "test_host_sync.py:" in log


def test_only_the_counted_steps_are_watched(make_runner):
    seen = []

    class Watched(Hook):
        @override
        def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
            seen.append(_get_current_dispatch_mode() is not None)

        @override
        def after_train_epoch(self, runner):
            seen.append(_get_current_dispatch_mode() is not None)

    train_counting(make_runner, custom_hooks=[Watched()])
    assert seen == [False, False, True, True, True, True, False, *[False] * 7]


def test_a_training_that_ends_early_tells_what_was_counted(make_runner):
    hook, log = train_counting(make_runner, HostSyncHook(begin=9, iters=10))
    assert hook.steps == 3
    assert "in steps 10 to 12 the host" in log
    hook, log = train_counting(make_runner, HostSyncHook(begin=12))
    assert hook.steps == 0
    assert "HostSyncHook: in" not in log
    told = "HostSyncHook: nothing was counted: training ended after 12 steps, and begin=12"
    assert log.count(told) == 1


def test_a_step_that_fails_leaves_nothing_behind(make_runner):
    class Fails(Hook):
        @override
        def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        train_counting(make_runner, HostSyncHook(begin=0), custom_hooks=[Fails()])
    assert _get_current_dispatch_mode() is None


class GoesOn(EpochBasedTrainLoop):
    """Passes over batches on which a step fails."""

    @override
    def run_iter(self, idx, data_batch):
        try:
            super().run_iter(idx, data_batch)
        except ArithmeticError:
            self.iter += 1


class FailsIn(Hook):
    def __init__(self, *steps):
        self.steps = steps
        self.modes = []

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.iter + 1 in self.steps:
            raise ArithmeticError

    @override
    def after_train_epoch(self, runner):
        self.modes.append(_get_current_dispatch_mode())


@pytest.mark.parametrize("steps", [(4,), (3, 4, 5, 6)], ids=["one", "all"])
def test_a_loop_that_goes_on_after_failing_steps_is_counted_as_any(make_runner, steps):
    fails = FailsIn(*steps)
    loop = {"type": GoesOn, "max_epochs": 2}
    model = {"type": Reads}
    hook, log = train_counting(make_runner, custom_hooks=[fails], train_cfg=loop, model=model)
    assert _get_current_dispatch_mode() is None
    assert fails.modes == [None, None]  # nothing of the end of an epoch is counted
    assert hook.steps == 4
    assert sorted(hook.counts.values()) == [4, 4]
    assert log.count("HostSyncHook: in steps 3 to 6") == 1


def test_what_is_kept_of_a_crash_is_not_counted(make_runner):
    hook = HostSyncHook(begin=2, iters=4)
    with pytest.raises(ArithmeticError):
        train_counting(make_runner, hook, custom_hooks=[FailsIn(4)])
    assert hook.steps == 2
    assert hook.counts == {}


def test_a_second_training_is_counted_anew(make_runner):
    hook = HostSyncHook(begin=0, iters=1)
    runner = make_runner(custom_hooks=[hook], **NO_VALIDATION)
    for _ in range(2):
        runner.train()
        assert hook.steps == 1
    assert sum(type(one).__name__ == "_EndOfStep" for one in runner.hooks) == 1


needs_counting = pytest.mark.skipif(
    not hasattr(TorchDispatchMode, "ignore_compile_internals"), reason="torch is older than that"
)


class Graphs(Hook):
    """Keeps in which steps a graph ran; also the backend that runs it as it is."""

    priority = "LOWEST"

    def __init__(self):
        self.calls, self.per_step = 0, []

    def __call__(self, graph_module, _example_inputs):
        def run(*args):
            self.calls += 1
            return graph_module.forward(*args)

        return run

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.per_step.append(self.calls)
        self.calls = 0


class ReadsWithin(Classifier):
    """Breaks its graph, to read a value, and once more after the break."""

    def forward(self, inputs, labels, mode="tensor"):  # noqa: ARG002 - as a model is called
        inputs.sum().item()
        scores = self.layers(inputs)
        scores.mean().item()
        return {"loss": torch.nn.functional.cross_entropy(scores, labels)}


@needs_counting
@needs_compile
def test_compiled_graphs_run_in_the_counted_steps_and_after_them(make_runner):
    graphs, counting = Graphs(), HostSyncHook(begin=1, iters=2)
    cfg = {"compile": {"backend": graphs, "fullgraph": True}}
    train_counting(make_runner, counting, custom_hooks=[graphs], cfg=cfg)
    assert graphs.per_step == [1] * 12
    assert counting.steps == 2
    assert counting.counts == {}


@needs_counting
@needs_compile
@pytest.mark.filterwarnings("ignore:Graph break", "ignore:The .grad attribute of a Tensor")
def test_lines_of_compiled_code_are_named(make_runner):
    counting = HostSyncHook(begin=3, iters=2)
    cfg = {"compile": {"backend": "eager"}}
    train_counting(make_runner, counting, model={"type": ReadsWithin}, cfg=cfg)
    found = sorted(sync.origin.rpartition("/")[2].partition(" in ")[0] for sync in counting.counts)
    first = ReadsWithin.forward.__code__.co_firstlineno
    name = "test_host_sync.py"
    assert found == [f"{name}:{first + line}" for line in (1, 3)]
    assert set(counting.counts.values()) == {2}


@pytest.mark.skipif(not hasattr(torch, "compiler"), reason="stand-ins need a driver before 2.1")
def test_copies_between_host_and_device_wait_unless_they_need_not():
    # Fake tensors stand in for those of a device: they say that they are there, and hold nothing.
    from torch._subclasses import FakeTensorMode  # noqa: PLC0415 - see above

    from mm_runner.diagnostics._sync_counter import _waiting_copy  # noqa: PLC0415

    with FakeTensorMode():
        there, here = torch.empty(2, device="cuda"), torch.empty(2)
    to_copy, copy = "aten::_to_copy", "aten::copy_"
    assert _waiting_copy(to_copy, (there,), {"device": torch.device("cpu")}) == "copy to the host"
    assert _waiting_copy(to_copy, (here,), {"device": "cuda:0"}) == "copy to the device"
    assert _waiting_copy(copy, (here, there), {}) == "copy to the host"
    assert _waiting_copy(copy, (there, here, False), {}) == "copy to the device"
    assert _waiting_copy(copy, (there, here, True), {}) is None
    assert _waiting_copy(to_copy, (here,), {"device": "cuda", "non_blocking": True}) is None
    assert _waiting_copy(to_copy, (there,), {"dtype": torch.float16}) is None
    assert _waiting_copy(copy, (there, there), {}) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"begin": -1}, r"HostSyncHook\.begin: an integer >= 0 is needed, got -1"),
        ({"iters": 0}, r"HostSyncHook\.iters: an integer >= 1 is needed, got 0"),
        ({"iters": True}, r"HostSyncHook\.iters: .* got True"),
    ],
    ids=["begin", "iters", "flag"],
)
def test_wrong_arguments_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        HostSyncHook(**options)

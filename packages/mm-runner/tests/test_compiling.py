"""A run that compiles: what, in which order, and what it tells of it."""

import re
import sys

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from toy import NO_VALIDATION, Classifier, loader_cfg, log_of, needs_compile

import mm_compile
from mm_runner.hooks import CompileReportHook

pytestmark = [
    needs_compile,
    # Dynamo looks at the gradient of a tensor that has none, such as a loss.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    # torch's inductor uses it when it is first imported.
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
]
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


@pytest.fixture(autouse=True)
def _fresh():
    yield
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()


class CountingBackend:
    """Runs graphs as they are, and counts how often."""

    def __init__(self):
        self.calls = 0

    def __call__(self, graph_module, _example_inputs):
        def run(*args):
            self.calls += 1
            return graph_module.forward(*args)

        return run

    def count(self, function):
        before = self.calls
        function()
        return self.calls - before


def test_training_validation_and_test_run_compiled_code(make_runner):
    backend = CountingBackend()
    runner = make_runner(
        cfg={"compile": {"backend": backend}},
        train_cfg={"max_epochs": 2, "val_interval": 2},
        test_dataloader=loader_cfg(size=6, batch_size=2),
        test_cfg={},
        test_evaluator={"type": "Accuracy"},
    )
    num_train, num_val, num_test = 2 * 6, 3, 3
    assert backend.count(runner.train) == num_train + num_val
    assert backend.count(runner.val) == num_val
    assert backend.count(runner.test) == num_test


def test_the_report_is_logged_once_and_by_a_run_that_compiles_only(make_runner, tmp_path):
    runner = make_runner(cfg={"compile": {"backend": "eager"}}, train_cfg={"max_epochs": 3})
    runner.train()
    text = log_of(runner)
    assert text.count("compile: forward by eager") == 1
    assert "graph breaks" in text
    plain = make_runner(work_dir=tmp_path / "plain", train_cfg={"max_epochs": 1})
    plain.train()
    assert not any(isinstance(hook, CompileReportHook) for hook in plain.hooks)
    assert "  compile      off\n" in log_of(plain)


@pytest.mark.skipif(TORCH < (2, 4), reason="this torch compiles no optimizer")
def test_the_optimizer_is_compiled_if_asked_for_and_once(make_runner):
    backend = CountingBackend()
    runner = make_runner(
        cfg={"compile": {"backend": backend, "optimizer": True}},
        train_cfg={"max_epochs": 1},
        **NO_VALIDATION,
    )
    assert backend.count(runner.train) == 6 + 6
    assert backend.count(runner.train) == 6 + 6


def test_auto_knows_the_number_of_steps_and_says_what_it_decided(make_runner):
    runner = make_runner(cfg={"compile": "auto"}, train_cfg={"max_epochs": 2}, **NO_VALIDATION)
    runner.train()
    done, left = re.search(
        r"auto, after (\d+) steps: not compiled: (\d+) steps", log_of(runner)
    ).groups()
    assert int(done) + int(left) == 2 * 6


def test_the_cache_of_true_lies_beside_the_work_directory(make_runner, tmp_path):
    (tmp_path / "compile_cache").touch()
    with pytest.raises(mm_compile.ConfigError, match=rf"{tmp_path / 'compile_cache'} is a file"):
        make_runner(cfg={"compile": {"cache": True}})


class Noting(DistributedDataParallel):
    """A wrapper that notes whether it was given a compiled model."""

    def __init__(self, module):
        super().__init__(module)
        self.is_compiled = "forward" in vars(module)


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize(
    ("target", "is_before"), [("forward", True), ("train_step", False)], ids=["forward", "steps"]
)
def test_the_model_is_compiled_before_it_is_wrapped_but_for_steps(make_runner, target, is_before):
    backend = CountingBackend()
    runner = make_runner(
        cfg={
            "compile": {"backend": backend, "target": target},
            "model_wrapper_cfg": {"type": Noting if is_before else "MMDistributedDataParallel"},
        },
        train_cfg={"max_epochs": 1},
    )
    if is_before:
        assert runner.model.is_compiled
    else:
        assert "forward" not in vars(runner.model.module)
    assert ("train_step" in vars(runner.model)) is not is_before
    assert backend.count(runner.train) >= 6


@pytest.mark.usefixtures("group_of_one")
def test_a_model_that_cannot_be_wrapped_is_left_as_it_was(make_runner):
    model = Classifier()
    before = dict(vars(model))
    cfg = {"compile": {"backend": "eager"}, "model_wrapper_cfg": {"bucket_cap_nb": 1}}
    with pytest.raises(Exception, match="bucket_cap_nb"):
        make_runner(model=model, cfg=cfg)
    assert vars(model) == before
    make_runner(model=model, cfg={"compile": {"backend": "eager"}})

"""A crash bundle never hides the error, and says nothing that is not of the failing step."""

import json

import pytest
import torch
from toy import NO_VALIDATION, Blobs, Classifier, loader_cfg
from typing_extensions import override

from mm_runner._out_of_memory import is_out_of_memory
from mm_runner.crash._bundle import _environment
from mm_runner.crash._rng import rng_digests
from mm_runner.hooks import Hook
from mm_runner.loops import EpochBasedTrainLoop


class MuteError(RuntimeError):
    """Cannot say what it is."""

    def __str__(self):
        raise KeyError("no text")


class Raises(Hook):
    """Fails at a stage, when so many steps are done."""

    priority = "VERY_LOW"

    def __init__(self, stage, steps, error=ArithmeticError):
        self.steps, self.error = steps, error
        setattr(self, stage, self._fail)

    def _fail(self, runner, *_, **__):
        if runner.iter == self.steps:
            raise self.error

    @override
    def before_train_iter(self, runner, batch_idx, data_batch=None): ...

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None): ...

    @override
    def after_train_epoch(self, runner): ...

    @override
    def before_save_checkpoint(self, runner, checkpoint): ...


def facts_of_crash(make_runner, error=ArithmeticError, **overrides):
    runner = make_runner(**{**NO_VALIDATION, **overrides})
    with pytest.raises(error):
        runner.train()
    return json.loads((runner.log_dir / "crash" / "rank0.json").read_text())


def test_an_error_without_a_text_is_raised_and_leaves_a_bundle(make_runner):
    hook = Raises("after_train_iter", 3, MuteError)
    facts = facts_of_crash(make_runner, MuteError, custom_hooks=[hook])
    assert facts["error"] == {
        "type": "MuteError",
        "message": "<its text cannot be had: KeyError>",
    }
    assert facts["place"] == "step 4"
    assert "_fail" in facts["traceback"]
    assert len(facts["samples"]) == 4


class MuteData(Blobs):
    def __getitem__(self, index):
        if index == 5:
            raise MuteError
        return super().__getitem__(index)


def test_a_dataset_whose_error_has_no_text_is_told_with_its_sample(make_runner):
    loader = {**loader_cfg(), "dataset": MuteData()}
    facts = facts_of_crash(make_runner, MuteError, train_dataloader=loader)
    assert facts["sample"] == "sample 5 of MuteData"


class MuteModel(Classifier):
    def forward(self, **_):
        raise MuteError


def test_a_model_given_lists_whose_error_has_no_text_raises_that(make_runner):
    loader = {"dataset": Blobs(), "batch_size": 4}  # whose samples are not stacked
    runner = make_runner(model={"type": MuteModel}, train_dataloader=loader, **NO_VALIDATION)
    with pytest.raises(MuteError):
        runner.train()


@pytest.mark.parametrize(
    "name", ["failing_sample", "last_batch", "describe_batch", "_environment", "recent_lines"]
)
def test_what_cannot_be_found_out_takes_nothing_else_with_it(make_runner, monkeypatch, name):
    def fails(*_):
        raise LookupError

    monkeypatch.setattr(f"mm_runner.crash._bundle.{name}", fails)
    facts = facts_of_crash(make_runner, custom_hooks=[Raises("after_train_iter", 3)])
    assert facts["error"]["type"] == "ArithmeticError"
    assert facts["place"] == "step 4"


@pytest.mark.parametrize("name", ["_place", "_facts", "is_out_of_memory", "_tell"])
def test_whatever_fails_while_a_crash_is_kept_does_not_hide_the_error(
    make_runner, monkeypatch, name
):
    def fails(*_):
        raise LookupError

    monkeypatch.setattr(f"mm_runner.crash._bundle.{name}", fails)
    runner = make_runner(custom_hooks=[Raises("after_train_iter", 3)], **NO_VALIDATION)
    with pytest.raises(ArithmeticError):
        runner.train()


class Broken(Blobs):
    """Cannot read one sample; which batch it is in goes by the seed."""

    def __getitem__(self, index):
        if index == 5:
            raise ArithmeticError
        return super().__getitem__(index)


_LENGTHS = [{"by_epoch": True, "max_epochs": 2}, {"by_epoch": False, "max_iters": 12}]
by_either = pytest.mark.parametrize("train_cfg", _LENGTHS, ids=["epochs", "steps"])


@by_either
@pytest.mark.parametrize("workers", [0, 1])
def test_data_that_fails_between_steps_has_no_batch(make_runner, workers, train_cfg):
    loader = {**loader_cfg(), "dataset": Broken(), "num_workers": workers}
    facts = facts_of_crash(
        make_runner,
        train_dataloader=loader,
        train_cfg=train_cfg,
        randomness={"seed": 1},
    )
    assert facts["iter"] > 0  # there was a batch before
    assert (facts["batch"], facts["samples"]) == ("NoneType", None)
    assert facts["sample"] == "sample 5 of Broken"


@by_either
def test_a_collate_function_that_fails_has_no_samples_of_the_batch_before(make_runner, train_cfg):
    def collate(batch):
        if any(torch.equal(one["inputs"], Blobs().inputs[5]) for one in batch):
            raise ArithmeticError
        return torch.utils.data.default_collate(batch)

    loader = {**loader_cfg(), "collate_fn": collate}
    facts = facts_of_crash(
        make_runner, train_dataloader=loader, train_cfg=train_cfg, randomness={"seed": 1}
    )
    assert facts["iter"] > 0
    assert (facts["batch"], facts["samples"]) == ("NoneType", None)


@pytest.mark.parametrize(
    ("stage", "steps"), [("after_train_epoch", 6), ("before_save_checkpoint", 6)]
)
def test_what_fails_after_an_epoch_has_no_batch(make_runner, stage, steps):
    facts = facts_of_crash(make_runner, custom_hooks=[Raises(stage, steps)])
    assert (facts["batch"], facts["samples"]) == ("NoneType", None)


@pytest.mark.parametrize("stage", ["before_train_iter", "after_train_iter"])
def test_hooks_in_a_step_have_its_batch(make_runner, stage):
    facts = facts_of_crash(make_runner, custom_hooks=[Raises(stage, 3)])
    assert set(facts["batch"]) == {"inputs", "labels"}
    assert len(facts["samples"]) == 4


class OwnLoop(EpochBasedTrainLoop):
    """Keeps its batch in a variable, as loops of users' own do."""

    fails_in_step = True

    @override
    def run_epoch(self):
        self.runner.call_hook("before_train_epoch")
        for _, batch in enumerate(self.batches.begin(self.epoch)):
            outputs = self.runner.model.train_step(batch, optim_wrapper=self.runner.optim_wrapper)
            self._step_done(outputs)
        self.runner.call_hook("after_train_epoch")
        self.epoch += 1

    def _step_done(self, _outputs):
        self.iter += 1
        if self.iter == 3 and self.fails_in_step:
            raise ArithmeticError


class OwnLoopOfEpochs(OwnLoop):
    fails_in_step = False


@pytest.mark.parametrize("is_in_step", [True, False])
def test_a_loop_of_the_users_own_has_a_batch_in_its_steps_only(make_runner, is_in_step):
    loop = OwnLoop if is_in_step else OwnLoopOfEpochs
    facts = facts_of_crash(
        make_runner,
        train_cfg={"type": loop, "max_epochs": 1},
        custom_hooks=[Raises("after_train_epoch", 6)],
    )
    assert (facts["batch"] != "NoneType") == is_in_step
    assert (facts["samples"] is not None) == is_in_step


def test_secrets_by_any_of_their_names_are_left_out_and_what_torch_reads_is_kept(monkeypatch):
    secret = ("MASTER_PW", "MM_PASS", "SLURM_JWT", "NCCL_AUTH", "MM_CREDENTIALS", "MM_password")
    kept = (
        *("CUDA_VISIBLE_DEVICES", "CUBLAS_WORKSPACE_CONFIG", "NCCL_DEBUG", "OMP_NUM_THREADS"),
        *("PYTORCH_CUDA_ALLOC_CONF", "MASTER_ADDR", "MASTER_PORT", "TORCH_LOGS", "LOCAL_RANK"),
        *("TORCHINDUCTOR_CACHE_DIR", "SLURM_PROCID", "WORLD_SIZE", "ASCEND_RT_VISIBLE_DEVICES"),
    )
    for name in (*secret, *kept):
        monkeypatch.setenv(name, "x")
    found = _environment()
    assert not set(secret) & set(found)
    assert set(kept) <= set(found)


def _run_out():
    raise MemoryError


def _retry(*, suppressed):
    try:
        _run_out()
    except MemoryError:
        if suppressed:
            raise ValueError("x") from None
        raise ValueError("x")  # noqa: B904 - that is what is looked at


@pytest.mark.parametrize("suppressed", [True, False])
def test_memory_is_no_cause_where_the_error_says_so(suppressed):
    with pytest.raises(ValueError, match="x") as caught:
        _retry(suppressed=suppressed)
    assert is_out_of_memory(caught.value) == (not suppressed)


def test_a_cause_behind_an_error_without_a_text_is_seen():
    error = MuteError()
    error.__cause__ = MemoryError()
    assert is_out_of_memory(error)


def test_a_device_that_answers_nothing_leaves_the_other_generators_digests(monkeypatch):
    def fails(_):
        raise RuntimeError("the device does not answer")

    monkeypatch.setattr(torch.cuda, "get_rng_state", fails)
    assert {"python", "torch"} <= set(rng_digests(torch.device("cuda")))

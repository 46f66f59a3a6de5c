"""Averages of the weights, by themselves and in a run."""

import pytest
import torch
from test_no_host_sync import CountScalarReads
from test_several_optimizers import BOTH, Pair
from torch import nn
from toy import (
    NO_VALIDATION,
    Classifier,
    Killed,
    Scripted,
    StopBeforeEpoch,
    loader_cfg,
    runner_arguments,
)
from typing_extensions import override

from mm_runner import ComponentNotFoundError, ConfigError, Runner
from mm_runner.checkpoint import load_checkpoint_file
from mm_runner.errors import CheckpointError
from mm_runner.hooks import EMAHook, Hook
from mm_runner.model import (
    AveragedWeights,
    BaseModel,
    ExponentialMovingAverage,
    MomentumAnnealingEMA,
    StochasticWeightAverage,
)

VALUES = [1.0, 5.0, 3.0, 11.0, 7.0, 2.0, 9.0]


def averages_of(kind, steps=VALUES, stepped=None, **options):
    """The average after each update of a model that is one number."""
    model = nn.Linear(1, 1, bias=False)
    average = kind(model, **options)
    found = []
    for index, value in enumerate(steps):
        nn.init.constant_(model.weight, value)
        average.update(True if stepped is None else stepped[index])
        found.append(average.tensors()["weight"].item() if average.averages else None)
    return found


def by_hand(momentum_at, interval=1):
    mean, found = VALUES[0], [VALUES[0]]
    for steps, value in enumerate(VALUES[1:], start=1):
        if steps % interval == 0:
            mean += momentum_at(steps) * (value - mean)
        found.append(mean)
    return found


@pytest.mark.parametrize(
    ("kind", "options", "momentum_at"),
    [
        (ExponentialMovingAverage, {"momentum": 0.1}, lambda _: 0.1),
        (ExponentialMovingAverage, {"momentum": 0.1, "interval": 3}, lambda _: 0.1),
        (
            MomentumAnnealingEMA,
            {"momentum": 0.3, "gamma": 2},
            lambda steps: max(0.3, 2 / (2 + steps)),
        ),
        (StochasticWeightAverage, {}, lambda steps: 1 / (steps + 1)),
        (StochasticWeightAverage, {"interval": 2}, lambda steps: 1 / (steps // 2 + 1)),
    ],
    ids=["ema", "ema-interval", "annealing", "swa", "swa-interval"],
)
def test_each_average_follows_its_formula(kind, options, momentum_at):
    expected = by_hand(momentum_at, options.get("interval", 1))
    assert averages_of(kind, **options) == pytest.approx(expected, rel=1e-6)
    # The same where only the device knows whether a step was done.
    stepped = [torch.tensor(data=True)] * len(VALUES)
    assert averages_of(kind, stepped=stepped, **options) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("known", [bool, torch.tensor], ids=["host", "device"])
@pytest.mark.parametrize("kind", [StochasticWeightAverage, MomentumAnnealingEMA])
def test_a_step_that_was_not_done_does_not_count(kind, known):
    options = {"interval": 2}
    flags = [True, False, True, False, True, True, True]
    done = [value for value, flag in zip(VALUES, flags, strict=True) if flag]
    found = averages_of(kind, stepped=[known(flag) for flag in flags], **options)
    assert found[-1] == pytest.approx(averages_of(kind, steps=done, **options)[-1])


def test_averages_are_applied_and_restored():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[0].bias.requires_grad_(requires_grad=False)
    average = ExponentialMovingAverage(model, momentum=0.5, update_buffers=True)
    average.apply()
    assert not average.is_applied  # there is no average yet
    average.update()
    statistics = ["1.running_mean", "1.running_var", "1.num_batches_tracked"]
    assert list(average.tensors()) == ["0.weight", "1.weight", "1.bias", *statistics]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model(torch.randn(8, 2))
    nn.init.constant_(model[1].weight, 3.0)
    average.update()
    own = {name: value.clone() for name, value in model.state_dict().items()}
    average.apply()
    average.apply()  # again changes nothing
    held = model.state_dict()
    for name in ("1.weight", "1.running_mean"):
        torch.testing.assert_close(held[name], (before[name] + own[name]) / 2)
    assert held["1.num_batches_tracked"] == own["1.num_batches_tracked"] == 1
    average.restore()
    assert all(torch.equal(value, own[name]) for name, value in model.state_dict().items())


def test_an_update_reads_nothing_from_the_device():
    model = Classifier()
    for kind in (ExponentialMovingAverage, MomentumAnnealingEMA, StochasticWeightAverage):
        average = kind(model)
        with CountScalarReads() as counter:
            for stepped in (True, *torch.tensor([True, False, True]).unbind()):
                average.update(stepped)
        assert counter.reads == 0


class KeepsWeights(Hook):
    """The weights after each step, and those that validations see."""

    priority = "LOWEST"

    def __init__(self):
        self.trained, self.validated = [], []

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.trained.append(weights_of(runner.model))

    @override
    def before_val_iter(self, runner, batch_idx, data_batch=None):
        self.validated.append(weights_of(runner.model))


def weights_of(model):
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0, msg=name)


def average_by_hand(weights, momentum, begin=0):
    mean = {name: value.clone() for name, value in weights[begin].items()}
    for later in weights[begin + 1 :]:
        for name, value in later.items():
            mean[name].lerp_(value, momentum)
    return mean


def test_a_run_validates_and_saves_the_average_and_trains_on_its_own_weights(make_runner):
    kept, plain = KeepsWeights(), KeepsWeights()
    make_runner(custom_hooks=[plain], work_dir="plain_run").train()
    runner = make_runner(
        custom_hooks=[{"type": "EMAHook", "momentum": 0.1, "begin_iter": 3}, kept],
        default_hooks={"checkpoint": {"interval": 1, "save_best": "accuracy"}},
        val_evaluator=Scripted(values=[0.1, 0.5, 0.5]),
    )
    runner.train()
    for found, expected in zip(kept.trained, plain.trained, strict=True):
        assert_equal(found, expected)
    means = [average_by_hand(kept.trained[:end], 0.1, begin=2) for end in (6, 12)]
    assert_equal(kept.validated[0], means[0])
    assert_equal(kept.validated[-1], means[1])
    last = load_checkpoint_file(runner.work_dir / "epoch_2.pth")
    assert_equal(last["state_dict"], means[1])
    own = {name: last["ema_state_dict"][f"module.{name}"] for name in means[1]}
    assert_equal(own, kept.trained[-1])
    best = load_checkpoint_file(runner.work_dir / "best_accuracy.pth")
    assert_equal(best["state_dict"], means[1])
    assert "ema_state_dict" not in best
    assert_equal(weights_of(runner.model), kept.trained[-1])


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "ema",
    [
        {"momentum": 0.1, "begin_epoch": 2, "interval": 2},
        {"ema_type": "StochasticWeightAverage", "update_buffers": True},
        {"ema_type": "MomentumAnnealingEMA", "gamma": 5},
    ],
    ids=["ema", "swa", "annealing"],
)
def test_a_resumed_average_equals_an_uninterrupted_one_bit_by_bit(make_runner, tmp_path, ema):
    class Normed(Classifier):
        def __init__(self):
            super().__init__()
            self.layers[1] = nn.BatchNorm1d(8)
            self.twin = nn.Linear(8, 3)
            self.twin.weight = self.layers[3].weight  # a shared parameter

    def make(part, *hooks, **options):
        cfg = {"type": "EMAHook", "strict_load": True, **ema}
        return make_runner(
            model={"type": Normed},
            work_dir=tmp_path / part,
            train_cfg={"max_epochs": 4},
            custom_hooks=[cfg, *hooks],
            **options,
        )

    whole = make("whole")
    whole.train()
    with pytest.raises(Killed):
        make("parts", StopBeforeEpoch(2)).train()
    resumed = make("parts", resume=True)
    resumed.train()
    files = [load_checkpoint_file(tmp_path / part / "epoch_4.pth") for part in ("whole", "parts")]
    assert files[0]["state_dict"]["twin.weight"].equal(files[0]["state_dict"]["layers.3.weight"])
    assert_equal(files[1]["state_dict"], files[0]["state_dict"])
    assert int(files[1]["ema_state_dict"].pop("steps")) == int(
        files[0]["ema_state_dict"].pop("steps")
    )
    assert_equal(files[1]["ema_state_dict"], files[0]["ema_state_dict"])
    assert not files[0]["state_dict"]["layers.0.weight"].equal(
        files[0]["ema_state_dict"]["module.layers.0.weight"]
    )


def test_a_bfloat16_model_resumes_its_float32_average(make_runner, tmp_path):
    class Half(Classifier):
        def __init__(self):
            super().__init__()
            self.to(torch.bfloat16)

        def forward(self, inputs, labels, mode="tensor"):
            return super().forward(inputs.to(torch.bfloat16), labels, mode)

    def make(part, *hooks, **options):
        cfg = {"type": "EMAHook", "momentum": 0.01}
        return make_runner(
            model={"type": Half}, work_dir=tmp_path / part, custom_hooks=[cfg, *hooks], **options
        )

    make("whole").train()
    with pytest.raises(Killed):
        make("parts", StopBeforeEpoch(1)).train()
    make("parts", resume=True).train()
    files = [load_checkpoint_file(tmp_path / part / "epoch_2.pth") for part in ("whole", "parts")]
    means = [file["ema_state_dict"]["average.layers.0.weight"] for file in files]
    assert means[0].dtype == torch.float32
    assert means[0].equal(means[1])
    assert files[0]["state_dict"]["layers.0.weight"].dtype == torch.bfloat16


class StopBeforeStep(Hook):
    """Ends a run as a kill would, in the middle of an epoch."""

    def __init__(self, step):
        self.step = step

    @override
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter == self.step:
            raise Killed


def test_a_run_resumes_exactly_in_the_middle_of_an_epoch(make_runner, tmp_path):
    def make(part, *hooks, **options):
        return make_runner(
            work_dir=tmp_path / part,
            model={"type": Classifier, "dropout": 0.3},
            train_cfg={"max_epochs": 4},
            optim_wrapper={
                "optimizer": {"type": "SGD", "lr": 0.1, "momentum": 0.9},
                "paramwise_cfg": {"bias_lr_mult": 2},
                "accumulative_counts": 2,
            },
            param_scheduler=[
                {"type": "LinearLR", "by_epoch": False, "end": 5},
                {"type": "CosineAnnealingLR", "begin": 1, "convert_to_iter_based": True},
                {"type": "CosineAnnealingMomentum", "eta_min": 0.5},
                {"type": "ReduceOnPlateauLR", "monitor": "accuracy", "patience": 0},
            ],
            default_hooks={"checkpoint": {"by_epoch": False, "interval": 4}},
            custom_hooks=[
                {"type": "EMAHook", "ema_type": "MomentumAnnealingEMA", "strict_load": True},
                {"type": "EarlyStoppingHook", "monitor": "accuracy", "patience": 9},
                *hooks,
            ],
            **options,
        )

    make("whole").train()
    for step in (9, 15):
        with pytest.raises(Killed):
            make("parts", StopBeforeStep(step), resume=True).train()
    make("parts", resume=True).train()
    files = [load_checkpoint_file(tmp_path / part / "iter_24.pth") for part in ("whole", "parts")]
    assert_equal(files[1]["state_dict"], files[0]["state_dict"])
    steps = [int(file["ema_state_dict"].pop("steps")) for file in files]
    assert steps == [12, 12]
    assert_equal(files[1]["ema_state_dict"], files[0]["ema_state_dict"])
    assert files[1]["optimizer"]["param_groups"] == files[0]["optimizer"]["param_groups"]
    assert files[1]["param_schedulers"] == files[0]["param_schedulers"]
    seen = [file["hooks"]["EarlyStoppingHook"] for file in files]
    assert seen[0] == seen[1]


def test_a_checkpoint_from_within_a_validation_holds_the_same(make_runner, tmp_path):
    class SaveWithin(Hook):
        @override
        def before_val_iter(self, runner, batch_idx, data_batch=None):
            if batch_idx == 1 and runner.epoch == 1:
                runner.save_checkpoint(tmp_path, "within.pth")

    make_runner(custom_hooks=[{"type": "EMAHook", "momentum": 0.1}, SaveWithin()]).train()
    files = [
        load_checkpoint_file(path)
        for path in (tmp_path / "within.pth", tmp_path / "run" / "epoch_1.pth")
    ]
    assert_equal(files[0]["state_dict"], files[1]["state_dict"])
    assert int(files[0]["ema_state_dict"].pop("steps")) == 6
    assert int(files[1]["ema_state_dict"].pop("steps")) == 6
    assert_equal(files[0]["ema_state_dict"], files[1]["ema_state_dict"])


class Spoil(Hook):
    """Makes the gradients of some steps overflow."""

    priority = "HIGHEST"

    def __init__(self, *steps):
        self.steps = steps

    @override
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if batch_idx in self.steps:
            data_batch["inputs"].fill_(float("inf"))


@pytest.mark.parametrize(
    "wrapper",
    [
        {"type": "AmpOptimWrapper", "dtype": "bfloat16", "max_skips": 3},
        {"max_skips": 3, "optimizer": {"type": "SGD", "lr": 0.1}},
        {"accumulative_counts": 2},
    ],
    ids=["amp", "guarded", "accumulating"],
)
def test_only_steps_of_the_optimizer_are_averaged(make_runner, wrapper):
    kept = KeepsWeights()
    skipped = () if "accumulative_counts" in wrapper else (1, 4)
    runner = make_runner(
        train_cfg={"max_epochs": 1},
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.1}, **wrapper},
        custom_hooks=[
            {"type": "EMAHook", "ema_type": "StochasticWeightAverage"},
            kept,
            Spoil(*skipped),
        ],
        **NO_VALIDATION,
    )
    runner.train()
    done = [1, 3, 5] if not skipped else [0, 2, 3, 5]
    mean = {
        name: torch.stack([kept.trained[index][name] for index in done]).mean(0)
        for name in kept.trained[0]
    }
    saved = load_checkpoint_file(runner.work_dir / "epoch_1.pth")
    assert int(saved["ema_state_dict"]["steps"]) == len(done)
    for name, value in mean.items():
        torch.testing.assert_close(saved["state_dict"][name], value)


def test_of_several_optimizers_the_average_moves_with_any(make_runner):
    kept = KeepsWeights()
    runner = make_runner(
        model={"type": Pair},
        optim_wrapper=BOTH,
        train_cfg={"max_epochs": 1},
        custom_hooks=[{"type": "EMAHook", "ema_type": "StochasticWeightAverage"}, kept],
        **NO_VALIDATION,
    )
    runner.train()
    saved = load_checkpoint_file(runner.work_dir / "epoch_1.pth")
    assert int(saved["ema_state_dict"]["steps"]) == 6
    for name, value in saved["state_dict"].items():
        torch.testing.assert_close(value, torch.stack([one[name] for one in kept.trained]).mean(0))


def test_a_checkpoint_without_an_average_or_with_another_logs_a_warning(make_runner, tmp_path):
    work_dir = tmp_path / "run"
    make_runner(train_cfg={"max_epochs": 1}).train()
    ema = {"type": "EMAHook", "momentum": 0.1}
    resumed = make_runner(resume=True, custom_hooks=[ema])
    resumed.train()
    log = "".join(path.read_text() for path in work_dir.glob("*/*.log"))
    assert "EMAHook: the checkpoint has no average; it restarts" in log
    strict = {**ema, "strict_load": True}
    path = work_dir / "epoch_2.pth"
    content = load_checkpoint_file(path)
    content["ema_state_dict"].pop("module.layers.0.bias")
    torch.save(content, work_dir / "other.pth")
    for hook, error in ((strict, True), (ema, False)):
        runner = make_runner(
            resume=True,
            load_from=str(work_dir / "other.pth"),
            train_cfg={"max_epochs": 3},
            custom_hooks=[hook],
        )
        if error:
            with pytest.raises(CheckpointError, match=r"average of layers\.0\.bias is nothing"):
                runner.train()
        else:
            runner.train()
            assert "The average restarts" in next(runner.log_dir.glob("*.log")).read_text()


class Doubled(AveragedWeights):
    """A custom average."""

    @override
    def momentum_at(self, steps):
        return 1.0


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"ema_type": "ExponentialMovingAvg"}, ComponentNotFoundError, "ExponentialMovingAverage"),
        ({"momentum": 2}, ConfigError, r"momentum: a number between 0 and 1.*got 2"),
        ({"momentom": 0.1}, ConfigError, r"EMAHook\.momentom: unknown argument.*'momentum'"),
        ({"interval": 0}, ConfigError, r"interval: an integer >= 1 is needed, got 0"),
        ({"begin_iter": -1}, ConfigError, r"EMAHook\.begin_iter: an integer >= 0.*got -1"),
        ({"begin_iter": 1, "begin_epoch": 1}, ConfigError, r"begin_iter and begin_epoch were"),
        (
            {"ema_type": "MomentumAnnealingEMA", "gamma": 0},
            ConfigError,
            r"gamma: an integer >= 1 is needed, got 0",
        ),
    ],
    ids=["type", "momentum", "argument", "interval", "begin", "both", "gamma"],
)
def test_wrong_arguments_are_named(make_runner, options, error, message):
    with pytest.raises(error, match=message):
        make_runner(custom_hooks=[{"type": "EMAHook", **options}]).train()


def test_a_validation_that_fails_leaves_the_model_its_own_weights(make_runner):
    class Fails(KeepsWeights):
        @override
        def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None):
            raise Killed

    kept = Fails()
    runner = make_runner(custom_hooks=[{"type": "EMAHook", "momentum": 0.1}, kept])
    with pytest.raises(Killed):
        runner.train()
    assert_equal(weights_of(runner.model), kept.trained[-1])
    assert not kept.validated[0]["layers.0.weight"].equal(kept.trained[-1]["layers.0.weight"])


def test_a_custom_average_is_used(make_runner):
    runner = make_runner(custom_hooks=[EMAHook(ema_type=Doubled)])
    runner.train()
    saved = load_checkpoint_file(runner.work_dir / "epoch_2.pth")
    assert_equal(saved["state_dict"], weights_of(runner.model))


class Flat(BaseModel):
    """Small and even, so that it shards."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 5)  # of which two ranks have unequal parts
        self.second = nn.Linear(5, 3)

    def forward(self, inputs, labels, mode="tensor"):
        scores = self.second(self.first(inputs).relu())
        if mode == "loss":
            return {"loss": nn.functional.cross_entropy(scores, labels)}
        return (scores, labels)


def _run_on_ranks(rank, work_dir, wrappers):
    del rank
    for wrapper in wrappers:
        _run_with(f"{work_dir}/{wrapper}", wrapper)


def _run_with(work_dir, wrapper):
    options = {} if wrapper is None else {"cfg": {"model_wrapper_cfg": {"type": wrapper}}}

    def make(part, *hooks, **more):
        ema = {"type": "EMAHook", "momentum": 0.1, "strict_load": True}
        arguments = runner_arguments(
            f"{work_dir}/{part}",
            model={"type": Flat},
            custom_hooks=[ema, {"type": "SyncBuffersHook"}, *hooks],
            train_dataloader=loader_cfg(batch_size=3),
            launcher="none",
            **options,
            **more,
        )
        return Runner(**arguments)

    make("whole").train()
    with pytest.raises(Killed):
        make("parts", StopBeforeEpoch(1)).train()
    make("parts", resume=True).train()


def test_ranks_keep_one_average_through_a_resume(run_ranks, tmp_path):
    """On two ranks; of a sharded model each has a part, and checkpoints the whole."""
    shards = tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) >= (2, 8)  # on the CPU
    wrappers = [None, *["MMFullyShardedDataParallel"] * shards]
    run_ranks(_run_on_ranks, 2, str(tmp_path), wrappers)
    for wrapper in wrappers:
        paths = [tmp_path / str(wrapper) / part / "epoch_2.pth" for part in ("whole", "parts")]
        files = [load_checkpoint_file(path) for path in paths]
        assert_equal(files[1]["state_dict"], files[0]["state_dict"])
        for file in files:
            assert int(file["ema_state_dict"].pop("steps")) == 8
        assert_equal(files[1]["ema_state_dict"], files[0]["ema_state_dict"])

"""What log lines say: means, statistics of ``custom_cfg``, learning rates by name."""

import statistics
from math import nan
from typing import ClassVar

import pytest
import torch
from test_several_optimizers import Pair, scalars_of
from toy import NO_VALIDATION, Killed, StopBeforeEpoch
from typing_extensions import override

from mm_runner import ConfigError
from mm_runner.hooks import Hook
from mm_runner.reporting import LogProcessor, MessageHub


def entry(source="loss", method="mean", name=None, window=None, **arguments):
    found = {"data_src": source, "method_name": method, **arguments}
    found.update({} if name is None else {"log_name": name})
    found.update({} if window is None else {"window_size": window})
    return found


def hub_of(*entries, window_size=2):
    return LogProcessor(window_size=window_size, custom_cfg=list(entries)).message_hub()


ALL = [
    entry(method="min", name="min3", window=3),
    entry(method="max", name="max3", window=3),
    entry(method="mean", name="mean3", window=3),
    entry(method="current", name="now", window=3),
]


def expected(values):
    """What :data:`ALL` says of ``values``."""
    return {
        "loss": statistics.fmean(values[-2:]),
        "min3": min(values[-3:]),
        "max3": max(values[-3:]),
        "mean3": statistics.fmean(values[-3:]),
        "now": values[-1],
    }


@pytest.mark.parametrize("kind", [float, torch.tensor], ids=["numbers", "tensors"])
@pytest.mark.parametrize("interval", [1, 3, 7])
def test_statistics_are_of_the_values_that_they_name(kind, interval):
    hub = hub_of(*ALL)
    values = []
    for step in range(24):
        values.append(float((step * 37) % 11))
        hub.update_scalar("train/loss", kind(values[-1]))
        if step % interval == interval - 1:
            assert hub.means("train") == pytest.approx(expected(values))
            assert hub.means("train") == pytest.approx(expected(values))  # asked twice


@pytest.mark.parametrize("values", [(nan, 1.0, 2.0), (1.0, nan, 2.0), (2.0, 1.0, nan)])
def test_what_is_not_a_number_is_neither_least_nor_greatest(values):
    cfg = [entry(method=name, name=name) for name in ("min", "max")]
    hub = LogProcessor(custom_cfg=cfg).message_hub()
    for value in values:
        hub.update_scalar("train/loss", value)
    means = hub.means("train")
    assert (means["min"], means["max"]) == (1.0, 2.0)


def test_an_entry_without_a_name_takes_the_place_of_the_mean():
    hub = hub_of(entry("time", "max", window=3))
    for seconds in (5.0, 1.0, 3.0, 2.0):
        hub.update_scalars({"train/time": seconds, "train/loss": seconds, "val/time": 7.0})
    assert hub.means("train") == {"time": 3.0, "loss": 2.5}
    assert hub.means("val") == {"time": 7.0}


def test_a_checkpoint_holds_numbers_also_where_a_step_logs_truth_values():
    hub = MessageHub()
    for value in (True, *torch.tensor([True, False]), torch.tensor(2)):
        hub.update_scalar("train/is_small", value)
    (values,) = hub.state_dict().values()
    assert values == [1.0, 1.0, 0.0, 2.0]
    assert {type(one) for one in values} == {float}


class OnAccelerator(torch.Tensor):
    """A tensor that says that it is not on the CPU, and keeps what is asked of torch, by name."""

    device = torch.device("cuda")
    called: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.called.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_nothing_is_read_or_computed_until_a_line_is_due_and_all_in_one_transfer():
    hub = hub_of(*ALL, entry("norm", "max", "norm_max"))
    values = [torch.tensor(float(step)).as_subclass(OnAccelerator) for step in range(10)]
    OnAccelerator.called.clear()
    for value in values:
        hub.update_scalar("train/loss", value)
        hub.update_scalar("train/norm", value)
    assert set(OnAccelerator.called) == {"detach", "__get__"}  # of ndim
    OnAccelerator.called.clear()
    assert hub.means("train")["norm_max"] == 9.0
    asked = [name for name in OnAccelerator.called if name != "__get__"]
    assert asked == ["stack", "tolist"]
    assert hub.means("train")["norm_max"] == 9.0
    assert OnAccelerator.called.count("tolist") == 1  # not read again


@pytest.mark.parametrize(
    ("custom_cfg", "message"),
    [
        ({"data_src": "loss"}, r"custom_cfg: a list of dicts is needed, got \{'data_src'"),
        ([{"data_src": "loss"}], r"custom_cfg\[0\]\.method_name: an entry needs this argument"),
        ([entry(method="maxx")], r"\[0\]\.method_name: 'mean' or .* is needed, got 'maxx'"),
        ([entry(window_sise=3)], r"\[0\]\.window_sise: unknown argument.*mean 'window_size'"),
        ([entry(window=-1)], r"\[0\]\.window_size: an integer >= 1 is needed, got -1"),
        ([entry(window="epoch")], r"\[0\]\.window_size: an integer is needed, got 'epoch'"),
        ([entry(), entry()], r"custom_cfg\[1\]\.log_name: 'loss' is the name of another"),
        (
            [entry(name="a"), entry("time"), entry("norm", name="a")],
            r"custom_cfg\[2\]\.log_name: 'a' is the name of another",
        ),
        ([entry("aux", name="loss")], r"\[0\]\.log_name: 'loss' is the name of another"),
    ],
)
def test_what_is_wrong_with_an_entry_is_said_by_its_path(custom_cfg, message):
    with pytest.raises(ConfigError, match=r"^log_processor\..*" + message):
        LogProcessor(custom_cfg=custom_cfg)


class KeepLosses(Hook):
    def __init__(self):
        self.losses = []

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.losses.append(outputs["loss"].item())


def test_lines_of_a_run_have_the_statistics_also_after_it_was_resumed(make_runner, tmp_path):
    options = {
        "train_cfg": {"max_epochs": 3},
        "default_hooks": {"logger": {"interval": 4, "ignore_last": False}},
        "log_processor": {"type": "LogProcessor", "window_size": 2, "custom_cfg": ALL},
        **NO_VALIDATION,
    }
    seen = KeepLosses()
    whole = make_runner(work_dir=tmp_path / "whole", custom_hooks=[seen], **options)
    whole.train()
    records = scalars_of(whole)
    assert [record["step"] for record in records] == [4, 6, 10, 12, 16, 18]
    for record in records:
        step = record["step"]
        truth = expected(seen.losses[:step])
        assert {name: record[name] for name in truth} == pytest.approx(truth, rel=1e-5)
    stopped = make_runner(work_dir=tmp_path / "parts", custom_hooks=[StopBeforeEpoch(2)], **options)
    with pytest.raises(Killed):
        stopped.train()
    resumed = make_runner(work_dir=tmp_path / "parts", resume=True, **options)
    resumed.train()
    names = [name for name in records[-1] if not name.endswith("time")]
    for again, record in zip(scalars_of(resumed), records[-2:], strict=True):
        assert [again[name] for name in names] == [record[name] for name in names]


def _groups(optimizer="SGD", **paramwise):
    return {
        "optimizer": {"type": optimizer, "lr": 0.1},
        "paramwise_cfg": {"custom_keys": paramwise},
    }


@pytest.mark.parametrize(
    ("optim_wrapper", "rates"),
    [
        ({"optimizer": {"type": "SGD", "lr": 0.1}}, {"lr": 0.05}),
        (_groups(**{"layers.0": {"lr_mult": 0.5}}), {"lr": 0.025, "base_lr": 0.05}),
        (_groups(**{"layers.3": {"lr_mult": 0.5}}), {"lr": 0.05, "base_lr": 0.05}),
        (_groups(**{"layers.3": {"decay_mult": 0}}), {"lr": 0.05}),
        (_groups(layers={"lr_mult": 0.5}, bias={"lr_mult": 0.1}), {"lr": 0.025}),
    ],
    ids=["one", "first-differs", "last-differs", "decay", "no-base"],
)
def test_several_learning_rates_have_names_of_their_own(make_runner, optim_wrapper, rates):
    runner = make_runner(
        train_cfg={"max_epochs": 1},
        default_hooks={"logger": {"interval": 6}},
        optim_wrapper=optim_wrapper,
        auto_scale_lr={"base_batch_size": 8, "enable": True},  # the batch has 4: half of it
        param_scheduler={"type": "LinearLR", "start_factor": 0.5, "by_epoch": False, "end": 3},
        **NO_VALIDATION,
    )
    runner.train()
    (record,) = scalars_of(runner)
    assert {name: record[name] for name in record if name.endswith("lr")} == pytest.approx(rates)
    shown = "  ".join(f"{name}: {rate:.4e}" for name, rate in rates.items())
    log = next(runner.log_dir.glob("*.log")).read_text()
    assert f"[6/6]  {shown}  eta: " in log


def test_rates_of_several_optimizers_are_named_by_them(make_runner):
    runner = make_runner(
        train_cfg={"max_epochs": 1},
        model={"type": Pair},
        optim_wrapper={
            "constructor": "MultiOptimWrapperConstructor",
            "fast": _groups(bias={"lr_mult": 2}),
            "slow": {"optimizer": {"type": "SGD", "lr": 0.3}},
        },
        **NO_VALIDATION,
    )
    runner.train()
    rates = {k: v for k, v in scalars_of(runner)[0].items() if k.endswith("lr")}
    assert rates == {"fast.lr": 0.1, "fast.base_lr": 0.1, "slow.lr": 0.3}


def test_a_hub_continues_from_a_state():
    values = [3.0, 9.0, 1.0, 4.0, 2.0, 8.0]
    whole = hub_of(*ALL)
    part = hub_of(*ALL)
    for step, value in enumerate(values):
        if step == 4:
            state = part.state_dict()
            assert all(isinstance(v, (int, float)) for one in state.values() for v in one)
            part = hub_of(*ALL)
            part.load_state_dict(state)
        for hub in (whole, part):
            hub.update_scalar("train/loss", value)
    assert part.means("train") == whole.means("train") == pytest.approx(expected(values))
    # What is no longer asked for, or was not asked for before, is no matter.
    other = MessageHub()
    other.load_state_dict(part.state_dict())
    assert other.means("train") == {"loss": pytest.approx(statistics.fmean(values[-3:]))}
    part.load_state_dict(MessageHub().state_dict())
    assert part.means("train") == {}
    part.update_scalar("train/loss", 5.0)
    assert set(part.means("train").values()) == {5.0}

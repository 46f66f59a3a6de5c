"""``cfg['efficient_conv_bn_eval']``: convolutions whose output is kept, wherever that is."""

import gc
from types import SimpleNamespace

import pytest
import torch
from test_folded_pairs import KEY, Head, Model, Watched, folded_twin, some_inputs
from torch import nn

from mm_runner import ConfigError
from mm_runner.model import apply_module_settings
from mm_runner.model._conv_bn import folded_names


@pytest.fixture
def watched(monkeypatch):
    return Watched(monkeypatch)


class Keeping(Head):
    """Keeps what its convolution gives, for losses or to look at it."""

    seen = []  # noqa: RUF012 - of all of its kind, as some note things

    def __init__(self, keep):
        super().__init__()
        self.keep = keep

    def forward(self, inputs):
        hidden = self.conv(inputs)
        self.keep(self, hidden)
        return self.norm(hidden)


def _keep_nothing(*_):
    return None


def _keep_in_attribute(head, hidden):
    head.hidden = hidden


def _keep_in_cycle(_, hidden):
    cycle = [hidden]
    cycle.append(cycle)


def expect_no_pair(head):
    with pytest.raises(ConfigError, match="no convolution in it gives its output to a batch norm"):
        apply_module_settings(Model(head), {KEY: "heads.0"})


@pytest.mark.parametrize(
    "keep",
    [
        _keep_in_attribute,
        lambda head, hidden: head.seen.append(hidden),
        lambda head, hidden: setattr(head.conv.weight, "hidden", hidden),
        lambda head, hidden: setattr(head.norm.running_mean, "hidden", hidden),
    ],
    ids=["attribute", "list", "attribute-of-a-parameter", "attribute-of-a-buffer"],
)
def test_a_convolution_whose_output_is_kept_is_no_pair(keep):
    expect_no_pair(Keeping(keep))


def test_a_convolution_whose_output_was_kept_in_a_cycle_only_is_one_of_a_pair(watched):
    model, folded = folded_twin(Model(Keeping(_keep_in_cycle)))
    inputs = some_inputs()
    torch.testing.assert_close(folded(inputs), model(inputs))
    assert watched.count == 1


class OfBatch(Head):
    """Is given a batch, or a list of them, and does something to it."""

    def __init__(self, use):
        super().__init__()
        self.use = use

    def forward(self, batch):
        return self.use(self, batch)


def _set(batch, value):
    batch.hidden = value


def _set_by_name(batch, value):
    vars(batch)["hidden"] = value


def _set_in_list(batch, value):
    batch.hidden = [{"of": (value,)}]


def _set_in_function(batch, value):
    batch.later = lambda: value


def _set_within(batch, value):
    batch.inner.hidden = value


def _set_deep_within(batch, value):
    batch.inner.inner.hidden = value


def _set_in_item(batch, value):
    batch.parts[0].hidden = value


def _set_in_what_is_got(batch, value):
    batch.by_name.get("part").hidden = value


def _give(batch, value):
    batch.parts.append(value)


def _add(batch, value):
    batch.parts += [value]


def _update(batch, value):
    batch.by_name.update(hidden=value)


@pytest.mark.parametrize(
    "keep",
    [
        _set,
        _set_by_name,
        _set_in_list,
        _set_in_function,
        _set_within,
        _set_deep_within,
        _set_in_item,
        _set_in_what_is_got,
        _give,
        _add,
        _update,
    ],
)
def test_a_convolution_whose_output_is_kept_in_an_input_is_no_pair(keep):
    def use(head, batch):
        hidden = head.conv(batch.inputs)
        keep(batch, hidden)
        return head.norm(hidden)

    expect_no_pair(OfBatch(use))


def _kept_in_what_was_computed(head, inputs):
    inputs = torch.tanh(inputs)
    inputs.hidden = head.conv(inputs)
    return head.norm(inputs.hidden), inputs


def test_a_convolution_whose_output_is_kept_in_another_value_is_no_pair():
    expect_no_pair(OfBatch(_kept_in_what_was_computed))


def _replaced(head, batch):
    batch.inputs = head.conv(batch.inputs)
    batch.inputs = head.norm(batch.inputs)
    return batch.inputs


def _replaced_within(head, batch):
    inner = batch.inner
    inner.inputs = head.conv(batch.inputs)
    inner.inputs = head.norm(inner.inputs)
    return inner.inputs


def _deleted(head, batch):
    batch.hidden = head.conv(batch.inputs)
    outputs = head.norm(batch.hidden)
    del batch.hidden
    return outputs


def _asked(head, batch):
    hidden = head.conv(batch.inputs)
    hidden.is_hidden = True
    getattr(hidden, "other", None)
    batch.inner.outputs = batch.outputs = head.norm(hidden)
    return batch.outputs


@pytest.mark.parametrize("use", [_replaced, _replaced_within, _deleted, _asked])
def test_a_convolution_whose_output_an_input_holds_no_longer_is_one_of_a_pair(use, watched):
    model, folded = folded_twin(Model(OfBatch(use)))
    inputs = some_inputs()
    batches = [SimpleNamespace(inputs=inputs, inner=SimpleNamespace()) for _ in range(2)]
    expected, found = (
        one.heads[0](batch)
        for one, batch in zip((model, folded), batches)  # noqa: B905 - two each
    )
    torch.testing.assert_close(found, expected)
    left = [
        {**vars(one), "inner": vars(one.inner), "inputs": one.inputs.detach()} for one in batches
    ]
    torch.testing.assert_close(left[1], left[0])
    assert watched.count == 1


def _set_item(head, batch):
    batch["hidden"] = head.conv(batch["inputs"])
    return head.norm(batch["hidden"])


def test_items_of_inputs_that_are_set_are_refused():
    with pytest.raises(ConfigError, match="does not support item assignment"):
        apply_module_settings(Model(OfBatch(_set_item)), {KEY: "heads.0"})


@pytest.fixture
def collected(monkeypatch):
    """The generations that were collected on request."""
    generations, collect = [], gc.collect

    def note(generation=2):
        generations.append(generation)
        return collect(generation)

    monkeypatch.setattr(gc, "collect", note)
    return generations


class Heads(nn.Module):
    def __init__(self, *keeps):
        super().__init__()
        self.parts = nn.ModuleList(
            nn.ModuleList([Keeping(keep), Keeping(_keep_nothing)]) for keep in keeps
        )

    def forward(self, inputs):
        return sum(part(inputs) for parts in self.parts for part in parts)


@pytest.mark.parametrize(
    ("keep", "is_pair", "most"),
    [(_keep_nothing, True, 0), (_keep_in_attribute, False, 1), (_keep_in_cycle, True, 4 * 4)],
)
def test_only_what_was_made_in_a_trace_is_collected(keep, is_pair, most, collected):
    model = Model(Heads(*[keep] * 3))
    apply_module_settings(model, {KEY: "heads.0"})
    folded = folded_names(model)
    assert [f"heads.0.parts.{i}.0.conv" in folded for i in range(3)] == [is_pair] * 3
    assert set(collected) <= {0}  # of the youngest
    assert len(collected) <= most  # with four traces of each part, and of the whole


@pytest.fixture
def _collected_all_the_time():
    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("_collected_all_the_time")
def test_garbage_of_a_trace_is_found_however_often_it_is_collected(collected):
    model = Model(Heads(_keep_in_cycle))
    apply_module_settings(model, {KEY: "heads.0"})
    assert folded_names(model) == ["heads.0.parts.0.0.conv", "heads.0.parts.0.1.conv"]
    assert set(collected) == {0}


class Untraceable(Head):
    def forward(self, inputs):
        return super().forward(inputs) if inputs.sum() > 0 else inputs


@pytest.mark.parametrize("is_enabled", [True, False])
def test_garbage_is_collected_after_tracing_as_before(is_enabled):
    was_enabled = gc.isenabled()
    try:
        (gc.enable if is_enabled else gc.disable)()
        apply_module_settings(Model(), {KEY: "heads.0"})
        assert gc.isenabled() == is_enabled
        with pytest.raises(ConfigError, match="cannot trace"):
            apply_module_settings(Model(Untraceable()), {KEY: "heads.0"})
        assert gc.isenabled() == is_enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()

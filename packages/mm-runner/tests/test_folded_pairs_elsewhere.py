"""``cfg['efficient_conv_bn_eval']``: what is traced, and calls of it from elsewhere."""

import copy
import threading
import warnings

import pytest
import torch
from test_folded_pairs import KEY, Head, Model, Watched, folded_twin, gradients, some_inputs
from torch import nn

from mm_runner import ConfigError
from mm_runner.model import apply_module_settings, told_module_settings


@pytest.fixture
def watched(monkeypatch):
    return Watched(monkeypatch)


class Within(nn.Module):
    """Calls its head in one way."""

    def __init__(self, head, call):
        super().__init__()
        self.head, self.call = head, call

    def forward(self, inputs):
        return self.call(self.head, inputs)


class Residual(Head):
    def forward(self, inputs, residual=None):
        hidden = self.conv(inputs)
        return self.norm(hidden) + (hidden if residual is None else residual)


class Telling(Head):
    def forward(self, inputs):
        hidden = self.conv(inputs)
        return self.norm(hidden), hidden


@pytest.mark.parametrize(
    ("head", "call", "other"),
    [
        (Residual, lambda head, inputs: head(inputs, torch.ones(())), lambda head, one: head(one)),
        (Telling, lambda head, inputs: head(inputs)[0], lambda head, one: head(one)[1]),
    ],
    ids=["form", "outputs"],
)
def test_a_caller_that_is_called_in_another_way_from_elsewhere_computes_two(
    head, call, other, watched
):
    model, folded = folded_twin(Model(Within(head(), call)))
    for one in (model, folded):
        one.use = lambda model, inputs: other(model.heads[0].head, inputs)
    inputs = some_inputs()
    with pytest.warns(UserWarning, match=r"is called without optional arguments\. Of such calls"):
        torch.testing.assert_close(gradients(folded, inputs), gradients(model, inputs))
    assert watched.count == 1


def test_a_caller_that_is_called_from_elsewhere_as_it_was_traced_computes_one(watched):
    model, folded = folded_twin(Model(Within(Head(), lambda head, inputs: head(inputs))))
    for one in (model, folded):
        one.use = lambda model, inputs: model.heads[0].head(inputs)
    inputs = some_inputs()
    torch.testing.assert_close(gradients(folded, inputs), gradients(model, inputs))
    assert watched.count == 2


class Scaled(Head):
    def forward(self, inputs, scale=1.0):
        return scale * self.norm(self.conv(inputs))


class Activated(Head):
    """Cannot be traced by itself."""

    def forward(self, inputs, activate):
        hidden = self.norm(self.conv(inputs))
        return torch.tanh(hidden) if activate else hidden


@pytest.mark.parametrize(("head", "argument"), [(Scaled, 2.0), (Activated, True)])
def test_a_call_that_was_traced_within_what_is_named_computes_one(head, argument, watched):
    model, folded = folded_twin(Model(Within(head(), lambda one, inputs: one(inputs, argument))))
    inputs = some_inputs()
    torch.testing.assert_close(gradients(folded, inputs), gradients(model, inputs))
    assert watched.count == 1


class Required(Head):
    def forward(self, inputs, residual):
        hidden = self.conv(inputs)
        return self.norm(hidden) + (hidden if residual is None else residual)


class RequiredWithin(Head):
    def forward(self, inputs, others):
        hidden, residual = self.conv(inputs), others[0]
        return self.norm(hidden) + (hidden if residual is None else residual)


class AnyNames(Head):
    """Folds in calls without arguments of any name, for those may be anything."""

    def forward(self, inputs, scale=1.0, **others):
        hidden, shift = self.conv(inputs), others.get("shift")
        return scale * self.norm(hidden) + (0 if shift is None else hidden)


_ONE = torch.ones(())


@pytest.mark.parametrize(
    ("head", "others", "count"),
    [
        (Required, {"residual": None}, 0),
        (Required, {"residual": _ONE}, 1),
        (RequiredWithin, {"others": [None]}, 0),
        (RequiredWithin, {"others": [_ONE]}, 1),
        (AnyNames, {"shift": _ONE}, 0),
        (AnyNames, {}, 1),
        (AnyNames, {"scale": _ONE}, 1),
    ],
)
@pytest.mark.filterwarnings("ignore:efficient_conv_bn_eval. .* is called with:UserWarning")
def test_a_call_with_another_required_argument_than_was_traced_computes_two(
    head, others, count, watched
):
    model, folded = folded_twin(Model(head()))
    inputs = some_inputs()
    results = [one.heads[0](inputs, **others) for one in (folded, model)]
    torch.testing.assert_close(*results)
    assert watched.count == count


class Both(Head):
    def forward(self, both):
        hidden, residual = self.conv(both[0]), both[1]
        return self.norm(hidden) + (hidden if residual is None else residual)


@pytest.mark.parametrize(("residual", "count"), [(None, 0), (_ONE, 1)])
@pytest.mark.filterwarnings("ignore:efficient_conv_bn_eval. .* is called with:UserWarning")
def test_none_in_the_only_argument_is_none_that_was_traced(residual, count, watched):
    model, folded = folded_twin(Model(Both()))
    both = (some_inputs(), residual)
    torch.testing.assert_close(folded.heads[0](both), model.heads[0](both))
    assert watched.count == count


class OthersAlone(Head):
    def forward(self, inputs, **others):
        hidden, residual = self.conv(inputs), others.get("residual")
        return self.norm(hidden) + (hidden if residual is None else residual)


def test_arguments_of_any_name_are_left_out_while_a_forward_is_traced():
    with pytest.raises(ConfigError, match="no convolution in it gives its output to a batch norm"):
        apply_module_settings(Model(OthersAlone()), {KEY: "heads.0"})


class Flagged(Head):
    def forward(self, inputs, with_hidden=False, **_):  # noqa: FBT002 - as users write
        hidden = torch.tanh(self.norm(self.conv(inputs)))
        return (hidden, hidden) if with_hidden else hidden


def test_a_call_that_was_not_traced_is_told_once(watched):
    model, folded = folded_twin(Model(Flagged()))
    inputs = some_inputs()
    expected = (
        r"Flagged is called with with_hidden=True, more=3\. Of such calls.*'conv' gives.*'norm' al"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copy.deepcopy(folded).train().heads[0](inputs, with_hidden=True)  # two in each case
    with pytest.warns(UserWarning, match=expected):
        folded.heads[0](inputs, with_hidden=True, more=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = [one.heads[0](inputs, with_hidden=True) for one in (model, folded)]
    torch.testing.assert_close(*results)
    assert watched.count == 0


_NOTHING: list = []


class WithSentinel(Head):
    def forward(self, inputs, shift=_NOTHING):
        hidden = torch.tanh(self.norm(self.conv(inputs)))
        return hidden if shift is _NOTHING else hidden + shift


def test_a_default_is_known_by_its_identity_in_a_copy(watched):
    model, folded = folded_twin(Model(WithSentinel()))
    inputs = some_inputs()
    for one in (folded, copy.deepcopy(folded)):
        torch.testing.assert_close(one.heads[0](inputs, _NOTHING), model.heads[0](inputs))
    assert watched.count == 2


class Freezing(Head):
    """Trains its parameters in training mode only."""

    def train(self, mode=True):  # noqa: FBT002 - as torch has it
        super().train(mode)
        for parameter in self.parameters():
            parameter.requires_grad_(mode)
        return self


class Momentum(Head):
    def forward(self, inputs):
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.mul_(0.5)
                parameter.data = parameter.data * 0.5
        return super().forward(inputs)


@pytest.mark.parametrize("head", [Freezing, Momentum])
def test_parameters_stay_what_they_are_while_they_are_traced(head):
    model = Model(head())
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    apply_module_settings(model, {KEY: "heads.0"})
    torch.testing.assert_close({n: p.detach() for n, p in model.named_parameters()}, before)
    assert all(parameter.requires_grad for parameter in model.parameters())


class Noting:
    """Checks and notes what a module gives, and cannot be copied."""

    def __init__(self):
        self.lock, self.seen = threading.Lock(), []

    def __call__(self, module, inputs, outputs):  # noqa: ARG002 - as torch calls it
        if outputs.isnan().any():
            raise ValueError("not a number")
        self.seen.append(outputs)


def test_hooks_are_not_called_while_a_forward_is_traced(watched):
    model = Model(Within(Head(), lambda head, inputs: head(inputs)))
    noting = Noting()
    model.eval().heads[0].head.register_forward_hook(noting)
    apply_module_settings(model, {KEY: "heads.0"})
    assert not noting.seen
    outputs = model.double()(some_inputs())
    torch.testing.assert_close(noting.seen, [outputs])
    assert watched.count == 1


@pytest.mark.skipif(not torch.distributed.is_available(), reason="processes are needed")
def test_a_group_of_processes_is_none_that_has_to_be_copied():
    group = torch.distributed.ProcessGroup(0, 1)  # has no __deepcopy__
    model = Model(Head(norm=nn.SyncBatchNorm(4, process_group=group)))
    apply_module_settings(model, {KEY: "heads.0"})
    assert told_module_settings(model) == {KEY: "heads.0.conv"}
    assert model.heads[0].norm.process_group is group


class Stopping(Head):
    """Records gradients as it is told, in its norm and in its convolution."""

    modes = (True, True)

    def forward(self, inputs):
        with torch.set_grad_enabled(self.modes[0]):
            hidden = self.conv(inputs)
        with torch.set_grad_enabled(self.modes[1]):
            return self.norm(hidden)


class Stopped(Stopping):
    modes = (True, False)


def test_a_norm_without_the_gradients_of_its_convolution_is_no_pair():
    with pytest.raises(ConfigError, match="no convolution in it gives its output to a batch norm"):
        apply_module_settings(Model(Stopped()), {KEY: "heads.0"})


class Partly(Head):
    """Records gradients around its pair unless it is told not to, later."""

    norm_records = None

    def forward(self, inputs):
        hidden = self.conv(inputs)
        has_grad = torch.is_grad_enabled() if self.norm_records is None else self.norm_records
        with torch.set_grad_enabled(has_grad):
            return self.norm(hidden)


def test_a_norm_that_is_later_without_gradients_gives_none(watched):
    model, folded = folded_twin(Model(Partly(), Head()))
    for one in (model, folded):
        one.heads[0].norm_records = False
    inputs = some_inputs()
    torch.testing.assert_close(gradients(folded, inputs), gradients(model, inputs))
    assert watched.count == 1
    assert folded.heads[0].conv.weight.grad is None


def test_a_norm_that_is_later_alone_with_gradients_is_told():
    _, folded = folded_twin(Model(Partly(), Head()))
    folded.heads[0].norm_records = True
    with torch.no_grad(), pytest.raises(ConfigError, match="went without gradients to 'norm' in"):
        folded(some_inputs())


class OnlyEvaluating(Head):
    def forward(self, inputs):
        hidden = self.conv(inputs)
        is_plain = self.training or torch.is_grad_enabled()
        return self.norm(hidden) if is_plain else self.norm(hidden) + hidden


def test_what_goes_elsewhere_in_evaluation_without_gradients_is_no_pair():
    with pytest.raises(ConfigError, match="no convolution in it gives its output to a batch norm"):
        apply_module_settings(Model(OnlyEvaluating()), {KEY: "heads.0"})


class Neck(nn.Module):
    """Cannot be traced, nor can one of its parts; what they hold can."""

    def __init__(self, *parts):
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, inputs):
        return [self.parts[number](one) for number, one in enumerate(inputs)]


def test_a_refusal_names_what_can_be_traced_within_parts_that_cannot():
    model = Model(Neck(Head(), Neck(Head(), nn.Identity())))
    with pytest.raises(
        ConfigError, match=r"\['heads\.0\.parts\.0', 'heads\.0\.parts\.1\.parts\.0'\]"
    ):
        apply_module_settings(model, {KEY: "heads.0"})
    names = ["heads.0.parts.0", "heads.0.parts.1.parts.0"]
    apply_module_settings(model, {KEY: names})
    assert told_module_settings(model) == {KEY: ", ".join(f"{name}.conv" for name in names)}

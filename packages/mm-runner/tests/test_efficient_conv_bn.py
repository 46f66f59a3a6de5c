"""``cfg['efficient_conv_bn_eval']``: a convolution that computes its batch normalisation too."""

import copy
import sys

import pytest
import torch
from blocks import SHARDS, Net, SavedNumbers, replaced, through_pickle, whole
from torch import nn
from toy import NO_VALIDATION, needs_compile, runner_arguments
from typing_extensions import override

from mm_runner import ConfigError, Runner
from mm_runner.model import apply_module_settings, unwrap_model

KEY = "efficient_conv_bn_eval"
CONVOLUTIONS = [
    (nn.Conv1d, nn.BatchNorm1d, {"padding": 1}),
    (nn.Conv2d, nn.BatchNorm2d, {"padding": 1, "groups": 2, "bias": False}),
    (nn.Conv2d, nn.BatchNorm2d, {"padding": 1, "padding_mode": "circular", "stride": 2}),
    (nn.Conv3d, nn.BatchNorm3d, {"dilation": 2}),
]


class Pair(nn.Module):
    """One convolution and its normalisation, in a module that is named."""

    def __init__(self, kind, norm, norm_options=None, **options):
        super().__init__()
        self.body = nn.Sequential(kind(4, 8, 3, **options), norm(8, **(norm_options or {})))
        self.dims = int(kind.__name__[-2])

    def forward(self, inputs):
        return torch.tanh(self.body(inputs)).square().sum()

    def inputs(self):
        return torch.randn(2, 4, *[6] * self.dims, requires_grad=True)


def made(model, names="body"):
    """Return the model with other statistics and weights than a new one, and a folded copy."""
    torch.manual_seed(0)
    model.double()
    for norm in model.modules():
        if isinstance(norm, nn.modules.batchnorm._BatchNorm):
            for tensor in (norm.running_mean, norm.running_var, norm.weight, norm.bias):
                if tensor is not None:
                    tensor.data.uniform_(0.5, 2)
    folded = copy.deepcopy(model)
    apply_module_settings(folded, {"efficient_conv_bn_eval": names})
    assert list(folded.state_dict()) == list(model.state_dict())
    return model, folded


def computed(model, inputs):
    inputs = inputs.detach().requires_grad_()
    model.zero_grad()
    with SavedNumbers() as saved:
        outputs = model(inputs)
    outputs.backward()
    return [outputs, inputs.grad, *[one.grad for one in model.parameters()]], saved.count


@pytest.fixture(autouse=True)
def _in_double_precision():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("norm_options", [{}, {"affine": False, "eps": 1e-3}])
@pytest.mark.parametrize(("kind", "norm", "options"), CONVOLUTIONS)
def test_outputs_and_gradients_are_those_of_the_two(kind, norm, options, norm_options):
    model, folded = made(Pair(kind, norm, norm_options, **options))
    inputs = model.inputs()
    (expected, more), (got, fewer) = computed(model.eval(), inputs), computed(folded.eval(), inputs)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
    # What the convolution gives is not kept; the kernel, once more, is.
    assert fewer - more <= 2 * folded.body[0].weight.numel() + 32
    (expected, _), (got, _) = computed(model.train(), inputs), computed(folded.train(), inputs)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    torch.testing.assert_close(dict(folded.state_dict()), dict(model.state_dict()))


@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle])
def test_a_copy_is_a_pair_of_its_own(copied):
    model, folded = made(Pair(nn.Conv1d, nn.BatchNorm1d))
    again = copied(folded)
    for one in (model, again):
        one.eval().body[1].running_mean.fill_(3)
    inputs = model.inputs()
    torch.testing.assert_close(computed(again, inputs)[0], computed(model, inputs)[0])
    more = torch.randn(20, 4, 50)
    assert computed(again, more)[1] < computed(model, more)[1]
    assert not torch.allclose(again(inputs), folded.eval()(inputs))


def test_a_pair_may_be_checkpointed_too():
    model = Pair(nn.Conv1d, nn.BatchNorm1d).eval()
    both = copy.deepcopy(model)
    names = {"efficient_conv_bn_eval": "body", "activation_checkpointing": "body"}
    apply_module_settings(both, names)
    inputs = model.inputs()
    for one in (both, copy.deepcopy(both), through_pickle(both)):
        assert replaced(one) == ["body", "body.0", "body.1"]
        torch.testing.assert_close(computed(one, inputs)[0], computed(model, inputs)[0])
    apply_module_settings(both, {})
    assert [type(part) for part in both.body] == [nn.Conv1d, nn.BatchNorm1d]


class Wandering(nn.Module):
    """Uses the output of the convolution as its attribute says."""

    use = "norm"

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv1d(4, 8, 1), nn.BatchNorm1d(8)

    def forward(self, inputs, scale=None):
        hidden = self.conv(inputs)
        if scale is not None:
            hidden = hidden * scale
        if self.use == "scaled":
            hidden = hidden * 2
        return hidden if self.use == "nothing" else self.norm(hidden)


def test_an_output_that_goes_elsewhere_is_an_error_once():
    model, folded = made(nn.Sequential(Wandering()).eval(), "0")
    inputs = torch.randn(2, 4, 5)
    torch.testing.assert_close(folded(inputs), model(inputs))
    with pytest.raises(ConfigError, match=r"the output of '0\.conv' did not go to its batch norm"):
        folded[0](inputs, scale=2.0)
    folded[0].use = "scaled"
    with pytest.raises(ConfigError, match="did not go to"):
        folded(inputs)
    folded[0].use = "nothing"
    folded(inputs)
    with pytest.raises(ConfigError, match="did not go to"):  # seen in the next forward
        folded(inputs)
    folded[0].use = "norm"
    torch.testing.assert_close(folded(inputs), model(inputs))


def test_finding_pairs_changes_no_random_numbers_and_no_attributes():
    class Drawing(Wandering):
        calls = 0

        def forward(self, inputs):
            self.calls += 1
            return super().forward(inputs) + torch.rand(1)

    model = nn.Sequential(Drawing())
    before = torch.get_rng_state()
    apply_module_settings(model, {KEY: "0"})
    assert torch.equal(torch.get_rng_state(), before)
    assert model[0].calls == 0


class Branching(nn.Module):
    """Pairs that are none: two users, two calls, another path in evaluation, no statistics."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv1d(2, 2, 1) for _ in range(6)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(2) for _ in range(5)])
        self.norms.append(nn.BatchNorm1d(2, track_running_stats=False))

    def forward(self, inputs):
        hidden = self.convs[0](inputs)
        hidden = self.norms[0](hidden) + hidden
        hidden = self.norms[1](self.convs[1](self.norms[1](self.convs[1](hidden))))
        hidden = self.convs[2](hidden)
        hidden = self.norms[2](hidden) if self.training else self.norms[2](hidden * 2)
        hidden = self.norms[3](torch.relu(self.convs[3](hidden)))
        hidden = self.norms[4](self.convs[4](hidden))
        return self.norms[5](self.convs[5](hidden)).square().sum()


def test_only_a_convolution_whose_output_goes_to_one_norm_is_folded():
    model, folded = made(nn.Sequential(Branching()), "0")
    # The last one computes statistics of its batch.
    assert [name for name in replaced(folded) if "convs" in name] == ["0.convs.4", "0.convs.5"]
    inputs = torch.randn(3, 2, 5)
    torch.testing.assert_close(
        computed(folded.eval(), inputs)[0], computed(model.eval(), inputs)[0]
    )


class Deciding(nn.Module):
    """Cannot be traced, but its body can."""

    def __init__(self, **options):
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(1, 4, 1), nn.BatchNorm1d(4), **options)

    def forward(self, inputs):
        if inputs.sum() > 0:
            return self.body(inputs)
        return inputs


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            "net",
            r"torch\.fx cannot trace 'net' \(Deciding\): .* Name parts .*\['net\.body'\]",
        ),
        ("nett", r"^efficient_conv_bn_eval: 'nett' names no module of ModuleDict.*'net'"),
        ("linear", r"'linear' \(Linear\) holds no convolution whose output"),
        ([3], r"^efficient_conv_bn_eval: the name of a module"),
    ],
)
def test_modules_without_pairs_are_refused(names, message):
    model = nn.ModuleDict({"net": Deciding(), "linear": nn.Linear(2, 2)})
    with pytest.raises(ConfigError, match=message):
        apply_module_settings(model, {"efficient_conv_bn_eval": names})
    assert replaced(model) == []


class FrozenNorms(Net):
    """A model whose normalisations stay in eval mode while it trains."""

    @override
    def train(self, mode=True):
        super().train(mode)
        for block in self.blocks:
            block.norm.eval()
        return self


@pytest.fixture
def trained(make_runner):
    """``trained(**cfg)`` trains, and returns the run."""

    def train(**cfg):
        torch.set_default_dtype(torch.float32)
        torch.manual_seed(0)
        runner = make_runner(model=FrozenNorms(dropout=0.0), cfg=cfg, **NO_VALIDATION)
        runner.train()
        return runner

    return train


def test_a_run_logs_the_modules(trained):
    plain, runner = (
        trained(),
        trained(efficient_conv_bn_eval="blocks.*", activation_checkpointing="blocks.*"),
    )
    torch.testing.assert_close(dict(runner.model.state_dict()), dict(plain.model.state_dict()))
    text = (runner.log_dir / f"{runner.timestamp}.log").read_text(encoding="utf-8")
    assert "\n  conv-bn-eval blocks.*\n" in text


@needs_compile
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.parametrize("regions", [{}, {"regions": "auto"}])
def test_it_is_compiled(trained, regions):
    plain = trained()
    compiled = {"backend": "aot_eager", **regions}
    runner = trained(efficient_conv_bn_eval="blocks.*", compile=compiled)
    # torch 2.0 reports no graph breaks, or wrong ones.
    if hasattr(torch, "compiler"):
        assert not runner.compile_handle.report().graph_breaks
    sys.modules["torch._dynamo"].reset()
    torch.testing.assert_close(dict(runner.model.state_dict()), dict(plain.model.state_dict()))


def _train_on_ranks(rank, work_dir, cfgs):
    for cfg in cfgs:
        found = []
        for names in (None, "blocks.*"):
            torch.manual_seed(0)
            arguments = runner_arguments(
                f"{work_dir}/{names is None}",
                model=FrozenNorms(dropout=0.0),
                cfg={**cfg, "efficient_conv_bn_eval": names},
                **NO_VALIDATION,
            )
            runner = Runner(**arguments)
            runner.train()
            assert (runner.rank, runner.world_size) == (rank, 2)
            found.append([whole(one) for one in runner.model.state_dict().values()])
        assert len(replaced(unwrap_model(runner.model))) == 6
        torch.testing.assert_close(*found)


def test_processes_train_the_same(run_ranks, tmp_path):
    sharded = {"model_wrapper_cfg": {"type": "MMFullyShardedDataParallel"}}
    cfgs = [{"sync_bn": "torch"}, *([sharded] if SHARDS else [])]
    run_ranks(_train_on_ranks, 2, tmp_path, cfgs)

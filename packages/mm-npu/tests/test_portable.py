"""What all nine portable optimizers do alike."""

import copy
import pickle

import pytest
import torch
from formulas import RULES
from test_formulas import all_options, relative_error

import mm_npu
from mm_npu import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore::mm_npu.PortableOptimizerWarning")

# Options under which each keeps every kind of state that it has.
OPTIONS = {
    "NpuFusedAdadelta": {"weight_decay": 0.1},
    "NpuFusedAdam": {"amsgrad": True, "weight_decay": 0.1},
    "NpuFusedAdamP": {"lr": 0.01, "weight_decay": 0.1, "nesterov": True},
    "NpuFusedAdamW": {"amsgrad": True},
    "NpuFusedBertAdam": {"lr": 0.01, "warmup": 0.3, "t_total": 20, "schedule": "warmup_cosine"},
    "NpuFusedLamb": {"lr": 0.01, "weight_decay": 0.1, "use_global_grad_norm": True},
    "NpuFusedRMSprop": {"momentum": 0.9, "centered": True, "eps": 1e-3, "weight_decay": 0.1},
    "NpuFusedRMSpropTF": {"momentum": 0.9, "centered": True, "eps": 1e-3, "weight_decay": 0.1},
    "NpuFusedSGD": {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.1},
}
HAS_FUSED_KERNELS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 4)
OWN_RULES = sorted(set(RULES) - {"NpuFusedAdam", "NpuFusedAdamW", "NpuFusedSGD"})
each_name = pytest.mark.parametrize("name", sorted(RULES))
each_own_rule = pytest.mark.parametrize("name", OWN_RULES)

SMALL = [(4, 3), (3,), (4, 3), ()]


def make(name, params, **options):
    return getattr(mm_npu, name)(params, **{**OPTIONS[name], **options})


def make_params(shapes=SMALL, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes
    ]


def give_gradients(params, step):
    generator = torch.Generator().manual_seed(100 + step)
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)


def train(optimizer, params, steps):
    for step in steps:
        give_gradients(params, step)
        optimizer.step()


def detached(params):
    return [p.detach().clone() for p in params]


def expect_formula(name, params, start, steps, tolerance):
    """Compare with each tensor's rule in float64, and the one norm of all gradients."""
    values, states = [p.double() for p in start], [{} for _ in start]
    o = all_options(name, OPTIONS[name])
    for t in steps:
        give_gradients(params, t)
        grads = [p.grad.double() for p in params]
        norm = torch.cat([g.flatten() for g in grads]).norm()
        factor = 1.0
        if name == "NpuFusedBertAdam":
            factor = min(1, o["max_grad_norm"] / (norm + 1e-6))
        elif name == "NpuFusedLamb":
            factor = 1 / max(1, norm)
        for i, g in enumerate(grads):
            values[i] = RULES[name](values[i], factor * g, states[i], t, o)
    assert relative_error([p.detach().double() for p in params], values) < tolerance


LARGE = [(300, 301), (9000,), (1, 70000), (64, 32, 6, 6)]


@each_name
def test_large_tensors_follow_the_formula(name):
    params = make_params([*LARGE, (3, 5), (4, 3, 2, 2), (4, 3, 2, 2)])
    for index in (3, 5, 6):
        params[index].data = params[index].data.contiguous(memory_format=torch.channels_last)
    start = detached(params)
    optimizer = make(name, params)
    for step in range(1, 5):
        give_gradients(params, step)
        if step > 2:  # as convolutions in channels_last give it
            for index in (3, 5):
                grad = params[index].grad.contiguous(memory_format=torch.channels_last)
                params[index].grad = grad
        optimizer.step()
    expect_formula(name, params, start, range(1, 5), 1e-5)


@each_own_rule
def test_a_gradient_that_is_not_finite_spoils_its_own_elements_only(name):
    params = make_params([(300, 301), (300, 301), (4, 3), (4, 3)])
    optimizer = make(name, params, **no_common_norm(name))
    give_gradients(params, 1)
    for p in (params[0], params[2]):
        p.grad[0, 0], p.grad[0, 1] = float("inf"), float("nan")
    optimizer.step()
    train(optimizer, params, [2])
    assert all(torch.isfinite(p).all() for p in (params[1], params[3]))
    assert not torch.isfinite(params[0]).all()
    if name.startswith("NpuFusedRMSprop") or name == "NpuFusedBertAdam":  # without norms
        assert all((~torch.isfinite(p)).sum() == 2 for p in (params[0], params[2]))


@each_own_rule
def test_gradients_that_are_repeated_or_spaced_in_memory_follow_the_rule(name):
    params, reference = make_params([(300, 301), (90000,)]), make_params([(300, 301), (90000,)])
    options = no_common_norm(name)
    optimizer, twin = make(name, params, **options), make(name, reference, **options)
    for _ in range(3):
        params[0].grad = torch.ones(()).expand(300, 301)
        params[1].grad = torch.linspace(-1, 1, 180000)[::2]
        for p, twin_p in zip(params, reference, strict=True):
            twin_p.grad = p.grad.clone(memory_format=torch.contiguous_format)
        optimizer.step()
        twin.step()
    torch.testing.assert_close(params, reference, rtol=0, atol=0)


@each_name
def test_autograd_notices_that_parameters_were_changed(name):
    params = make_params([(4, 3), (100, 100), (3, 5)])
    optimizer = make(name, params)
    for step in (1, 2):  # torch's own step, and then its kernel, of Adam, AdamW and SGD
        *products, untouched = [(p * p).sum() for p in params]
        give_gradients(params, step)
        params[2].grad = None
        optimizer.step()
        for product in products:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                product.backward()
        untouched.backward()
        torch.testing.assert_close(params[2].grad, 2 * params[2].detach())


@each_name
def test_tensors_that_are_not_dense_follow_the_formula(name):
    params = make_params([(4, 6), (100, 200), (3, 5)])
    params[0].data = params[0].data[:, ::2]
    params[1].data = params[1].data.t()
    start = detached(params)
    train(make(name, params), params, range(1, 5))
    expect_formula(name, params, start, range(1, 5), 1e-5)


@each_name
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_halves_are_rounded_once_a_step(name, dtype):
    if name in {"NpuFusedAdam", "NpuFusedSGD", "NpuFusedAdamW"} and not HAS_FUSED_KERNELS:
        pytest.skip("torch without fused kernels for the CPU computes in half precision")
    params = make_params([*SMALL, (300, 301)], dtype)
    start = detached(params)
    train(make(name, params), params, [1])
    # torch's SGD of halves, whose fused kernel is wrong, rounds after each operation.
    roundings = 4 if name == "NpuFusedSGD" else 1
    expect_formula(name, params, start, [1], roundings * float(torch.finfo(dtype).eps))
    assert all(p.dtype == dtype for p in params)


@each_name
def test_a_learning_rate_may_be_a_tensor(name):
    params, reference = make_params(), make_params()
    rate = torch.tensor(0.01)
    optimizer, twin = make(name, params, lr=rate), make(name, reference, lr=0.01)
    for step in range(1, 6):
        rate.fill_(0.01 / step)
        twin.param_groups[0]["lr"] = 0.01 / step
        train(optimizer, params, [step])
        train(twin, reference, [step])
    torch.testing.assert_close(params, reference)
    assert optimizer.param_groups[0]["lr"] is rate


@each_name
def test_a_closure_computes_gradients_and_its_value_is_returned(name):
    params, reference = make_params(), make_params()
    optimizer, twin = make(name, params), make(name, reference)

    def closure():
        optimizer.zero_grad()
        loss = sum((p**2).sum() for p in params)
        loss.backward()
        return loss

    for _ in range(3):
        expected = sum((p.detach() ** 2).sum() for p in params)
        torch.testing.assert_close(optimizer.step(closure).detach(), expected)
        for p in reference:
            p.grad = 2 * p.detach()
        twin.step()
    torch.testing.assert_close(params, reference)


@each_name
def test_step_hooks_run_once(name):
    params = make_params()
    optimizer = make(name, params)
    if not hasattr(optimizer, "register_step_post_hook"):
        pytest.skip("torch 1.13 has no step hooks")
    # torch wraps a class's step when the first of it is made.
    for torchs in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD):
        torchs(make_params(), lr=0.1)
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    train(optimizer, params, [1])
    assert calls == [1]


@each_name
def test_a_gradient_that_comes_late_starts_its_own_count(name):
    params, late = make_params(), make_params()
    optimizer = make(name, params, **no_common_norm(name))
    give_gradients(params, 1)
    params[2].grad = params[3].grad = None
    before = detached(params)
    optimizer.step()
    assert torch.equal(params[2], before[2])
    # Those that come late do as if the optimizer were new then.
    alone = make(name, late, **no_common_norm(name))
    for step in (2, 3):
        train(optimizer, params, [step])
        give_gradients(late, step)
        late[0].grad = late[1].grad = None
        alone.step()
    torch.testing.assert_close(params[2:], late[2:])
    counts = [entry.get("step") for entry in optimizer.state_dict()["state"].values()]
    assert counts in ([3, 3, 2, 2], [None] * 4)


def no_common_norm(name):
    return {
        "NpuFusedBertAdam": {"max_grad_norm": -1},
        "NpuFusedLamb": {"use_global_grad_norm": False},
    }.get(name, {})


@each_name
def test_gradients_may_come_and_go_and_be_dropped(name):
    params, reference = make_params(), make_params()
    optimizer, twin = make(name, params), make(name, reference)
    for step in range(1, 7):
        for both, each in ((params, optimizer), (reference, twin)):
            give_gradients(both, step)
            both[step % 3].grad = None
            each.step()
            if each is optimizer:
                each.zero_grad(set_to_none=True)
                assert all(p.grad is None for p in both)
                each.step()  # nothing to do
            else:
                each.zero_grad()
                for p in both:
                    p.grad = None
    torch.testing.assert_close(params, reference, rtol=0, atol=0)


@each_name
def test_a_group_may_be_added_later(name):
    params, reference = make_params(), make_params()
    optimizer = make(name, params[:2], **no_common_norm(name))
    train(optimizer, params[:2], [1, 2])
    optimizer.add_param_group({"params": params[2:], "lr": 0.05})
    fresh = make(name, reference[2:], lr=0.05, **no_common_norm(name))
    for step in (3, 4):
        give_gradients(params, step)
        give_gradients(reference, step)
        optimizer.step()
        fresh.step()
    torch.testing.assert_close(params[2:], reference[2:])


@each_name
def test_gradients_and_parameters_may_be_laid_out_anew_between_steps(name):
    shapes = [(100, 200), (16, 8, 24, 24), (6, 5)]
    params, reference = make_params(shapes), make_params(shapes)
    optimizer, twin = make(name, params), make(name, reference)
    for step in range(1, 9):
        give_gradients(params, step)
        give_gradients(reference, step)
        if step in (3, 4):  # as torch.autograd.grad gives that of a linear layer
            for index in (0, 2):
                params[index].grad = params[index].grad.t().contiguous().t()
        if step == 5:  # as model.to(memory_format=torch.channels_last) does it
            params[1].data = params[1].data.contiguous(memory_format=torch.channels_last)
        if step > 5:
            params[1].grad = params[1].grad.contiguous(memory_format=torch.channels_last)
        optimizer.step()
        twin.step()
    torch.testing.assert_close(params, reference)


@each_name
def test_a_state_dict_stays_what_it_was_after_it_was_loaded(name):
    params = make_params([*SMALL, (100, 100)])
    optimizer = make(name, params)
    train(optimizer, params, [1, 2])
    saved, weights = copy.deepcopy(optimizer.state_dict()), detached(params)
    results = []
    for _ in range(2):
        optimizer.load_state_dict(saved)
        for p, weight in zip(params, weights, strict=True):
            p.data.copy_(weight)
        train(optimizer, params, [3, 4])
        results.append(detached(params))
    torch.testing.assert_close(*results, rtol=0, atol=0)


@each_name
@pytest.mark.parametrize("key", ["maximize", "capturable", "differentiable"])
def test_groups_that_ask_for_another_rule_are_refused(name, key):
    with pytest.raises(ConfigError, match=f"{name} was given a group with {key}=True"):
        make(name, [{"params": make_params(), key: True}])
    make(name, [{"params": make_params(), key: False}])


@each_name
def test_what_is_refused_is_not_added(name):
    params = make_params()
    optimizer = make(name, params)
    with pytest.raises(ConfigError, match="complex64"):
        optimizer.add_param_group({"params": [torch.ones(3, dtype=torch.complex64)]})
    assert len(optimizer.param_groups) == 1
    train(optimizer, params, [1])


@each_name
def test_a_factor_is_a_number(name):
    make(name, make_params(), lr=torch.tensor([0.01]))
    for value in (torch.tensor([0.1]), "0.1", None):
        with pytest.raises(ConfigError, match=f"weight_decay of {name} is .* takes a number >= 0"):
            make(name, make_params(), weight_decay=value)


@pytest.mark.parametrize(
    ("key", "value"), [("t_total", 0), ("t_total", -2), ("t_total", "9"), ("max_grad_norm", None)]
)
def test_what_bert_adam_could_not_divide_by_is_refused(key, value):
    with pytest.raises(ConfigError, match=f"{key} of NpuFusedBertAdam is {value!r}; it takes"):
        mm_npu.NpuFusedBertAdam(make_params(), lr=0.1, **{key: value})


@each_name
def test_a_group_for_each_parameter_changes_nothing(name):
    shapes = [*SMALL, (100, 100), *SMALL]
    params, reference = make_params(shapes), make_params(shapes)
    options = no_common_norm(name)
    optimizer = make(name, [{"params": [p]} for p in params], **options)
    twin = make(name, reference, **options)
    for step in range(1, 7):
        train(optimizer, params, [step])
        train(twin, reference, [step])
    torch.testing.assert_close(params, reference)
    # Groups that become different are told apart, and those that become alike again joined.
    for factor in (0.5, 1.0):
        for each in (optimizer, twin):
            each.param_groups[0]["lr"] = 0.01
        for group in optimizer.param_groups[1:]:
            group["lr"] = 0.01 * factor
        train(optimizer, params, [7])
        train(twin, reference, [7])
        torch.testing.assert_close(params[0], reference[0])
        assert factor == 1.0 or not any(map(torch.equal, params[4:6], reference[4:6]))


@each_name
def test_sparse_and_complex_are_refused(name):
    embedding = torch.nn.Embedding(4, 3, sparse=True)
    optimizer = make(name, embedding.parameters())
    embedding(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(ConfigError, match=f"{name} found a gradient of layout torch.sparse_coo"):
        optimizer.step()
    for dtype in (torch.complex64, torch.int64):
        tensor = torch.ones(3, dtype=dtype)
        with pytest.raises(ConfigError, match=f"{name} was given a parameter of shape .*{dtype}"):
            make(name, [tensor])


@each_name
def test_a_gradient_that_turns_sparse_is_refused(name):
    params = make_params([(4, 3), (100, 100)])
    optimizer = make(name, params)
    train(optimizer, params, [1])
    for index in (0, 1):
        give_gradients(params, 2)
        dense = params[index].grad
        params[index].grad = None
        params[index].grad = dense.to_sparse()
        with pytest.raises(ConfigError, match=r"found a gradient of layout torch\.sparse_coo"):
            optimizer.step()


@each_name
@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))],  # noqa: S301 - our own bytes
    ids=["deepcopy", "pickle"],
)
def test_a_copy_goes_on_like_the_original(name, copied):
    params = make_params([*SMALL, (100, 100)])
    optimizer = make(name, params)
    train(optimizer, params, range(1, 4))
    twin_params, twin = copied((params, optimizer))
    train(optimizer, params, range(4, 7))
    train(twin, twin_params, range(4, 7))
    torch.testing.assert_close(twin_params, params, rtol=0, atol=0)


@each_own_rule
def test_states_that_were_exchanged_are_used(name):
    params, reference = make_params([*SMALL, (100, 100)]), make_params([*SMALL, (100, 100)])
    optimizer, twin = make(name, params), make(name, reference)
    for step in range(1, 7):
        train(twin, reference, [step])
        train(optimizer, params, [step])
        # As tools do that move states between devices, or restore them one by one.
        for p, entry in optimizer.state.items():
            for key, value in entry.items():
                if isinstance(value, torch.Tensor):
                    entry[key] = value.clone()
            if step % 2:
                optimizer.state[p] = dict(entry)
    torch.testing.assert_close(params, reference, rtol=0, atol=0)


@pytest.mark.skipif(not hasattr(torch, "set_default_device"), reason="since torch 2.0")
@pytest.mark.parametrize("is_plain", [False, True], ids=["all options", "defaults"])
@each_name
def test_another_default_device_changes_nothing(name, is_plain):
    if name not in OWN_RULES and not HAS_FUSED_KERNELS:
        pytest.skip("an older torch's own step, which puts its count on the default device")
    options = {"lr": 0.01} if is_plain else OPTIONS[name]
    trained = []
    for device in ("cpu", "meta"):
        params = make_params()
        optimizer = getattr(mm_npu, name)(params, **options)
        for p in params:
            p.grad = torch.ones_like(p)
        with torch.device(device):
            optimizer.step()
        trained.append(params)
    assert all(map(torch.equal, *trained))


def test_in_a_fresh_momentum_dampening_does_not_count():
    params, reference = make_params(), make_params()
    options = {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}
    optimizer = mm_npu.NpuFusedSGD(params, **options)
    twin = torch.optim.SGD(reference, foreach=False, **options)
    for step in range(1, 6):
        for both, each in ((params, optimizer), (reference, twin)):
            give_gradients(both, step)
            if step < 3:
                both[0].grad = None
            each.step()
    torch.testing.assert_close(params, reference)
    assert optimizer.param_groups[0].get("fused") is (True if HAS_FUSED_KERNELS else None)


@pytest.mark.parametrize("name", ["NpuFusedRMSprop", "NpuFusedLamb"])
def test_temporaries_are_those_of_one_parameter(name):
    params = make_params([*[(1000, 500)] * 5, *[(16, 16)] * 500])
    optimizer = make(name, params)
    train(optimizer, params, [1, 2])
    now = largest = 0
    with torch.profiler.profile(profile_memory=True) as profile:
        optimizer.step()
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            largest = max(largest, now)
    assert 0 < largest < 2.1 * 4 * params[0].numel()

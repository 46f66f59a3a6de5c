"""torch without one of its private names: mm_amp still imports and trains, only slower."""

import copy
import importlib
import sys

import pytest
import torch
from conftest import needs_cpu_float16
from torch import nn

import mm_amp


class _Hidden:
    """Class attribute that mm_amp does not see, and torch itself does."""

    def __init__(self, owner, name):
        self._value, self._name = getattr(owner, name), name

    def __get__(self, instance, owner=None):
        if sys._getframe(1).f_globals["__name__"].startswith("mm_amp"):
            raise AttributeError(self._name)
        return self._value if instance is None else self._value.__get__(instance, owner)


class _Without:
    """torch, as a module that lacks a name."""

    def __init__(self, name):
        self._name = name

    def __getattr__(self, name):
        if name == self._name:
            raise AttributeError(name)
        return getattr(torch, name)


_NAMES = [
    (torch.autograd, "_profiler_enabled"),
    (torch, "_foreach_norm"),
    (torch, "_foreach_mul_"),
    (getattr(torch.amp, "GradScaler", None), "_get_scale_async"),
    (getattr(torch.amp, "GradScaler", None), "_found_inf_per_device"),
]


def _train(package, *, fused=False):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, **({"fused": True} if fused else {}))
    options = {"accumulative_counts": 2, "clip_grad": {"max_norm": 0.1}, "fp32_modules": ["2"]}
    wrapper = package.AmpOptimWrapper(optimizer, {"init_scale": 64.0}, "float16", **options)
    for index in range(8):
        with wrapper.optim_context(model):
            loss = model(torch.full((2, 4), float(index))).float().mean()
        bad = float("inf") if index == 2 else 1.0
        wrapper.update_params(loss * bad, weight=index + 1)
    assert wrapper.num_skipped == 1
    return copy.deepcopy(model.state_dict())


@pytest.fixture
def _import_anew():
    """Let ``import mm_amp`` run again, and restore the modules afterwards."""
    loaded = {name: one for name, one in sys.modules.items() if name.partition(".")[0] == "mm_amp"}
    for name in loaded:
        del sys.modules[name]
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "mm_amp"]:
        del sys.modules[name]
    sys.modules.update(loaded)


@needs_cpu_float16
@pytest.mark.usefixtures("_import_anew")
@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize(("owner", "name"), _NAMES, ids=[name for _, name in _NAMES])
def test_training_without_a_private_name_is_the_same(monkeypatch, owner, name, fused):
    expected = _train(mm_amp, fused=fused)
    if isinstance(owner, type):
        monkeypatch.setattr(owner, name, _Hidden(owner, name))
    elif owner is not torch:
        monkeypatch.delattr(owner, name)
    package = importlib.import_module("mm_amp")
    assert package is not mm_amp
    if owner is torch:  # which cannot do without it itself
        private = importlib.import_module("mm_amp._torch_private")
        monkeypatch.setattr(private, "torch", _Without(name))
    torch.testing.assert_close(_train(package, fused=fused), expected)


def test_other_private_names_may_be_missing_too():
    private = importlib.import_module("mm_amp._torch_private")

    class Bare:
        """Stands in for an object of torch without any private name."""

        def coalesce(self):
            return self

        def values(self):
            return "values"

    assert private.stored_values(Bare()) == "values"
    assert not private.is_fused(Bare())
    assert not private.is_compiled_in_place(Bare())

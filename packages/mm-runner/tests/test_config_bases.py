"""Configurations in Python that change in place what they inherit."""

import sys

import pytest
from located import expect_places

from mm_runner import ConfigError
from mm_runner.config import Config, ConfigDict

_BASE = """
width = 8
def doubled(x):
    return 2 * x
nine = doubled(4) + 1
model = dict(type='M', w=width, layers=[dict(k=1), dict(k=2)], head=dict(type='H', n=3))
pipeline = [dict(type='Load'), dict(type='Resize', scale=(32, 64)), dict(type='Pack')]
loader = dict(dataset=dict(pipeline=pipeline, root='data/'), batch_size=2)
custom_hooks = [dict(type='A')]
auto_scale_lr = dict(base_batch_size=16)
nothing = None
"""
_HEAD = {"type": "H", "n": 3}
_LAYERS = [{"k": 1}, {"k": 2}]
_MODEL = {"type": "M", "w": 8, "layers": _LAYERS, "head": _HEAD}
_PIPELINE = [{"type": "Load"}, {"type": "Resize", "scale": (32, 64)}, {"type": "Pack"}]
_LOADER = {"dataset": {"pipeline": _PIPELINE, "root": "data/"}, "batch_size": 2}
_CONTENT = {
    "width": 8,
    "nine": 9,
    "model": _MODEL,
    "pipeline": _PIPELINE,
    "loader": _LOADER,
    "custom_hooks": [{"type": "A"}],
    "auto_scale_lr": {"base_batch_size": 16},
    "nothing": None,
}
_ABSENT = object()


# What differs from the base, as with MMEngine 0.10.7.
@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("_base_.model.w = 77", {"model": {**_MODEL, "w": 77}}),
        ("_base_['model']['head']['n'] = 5", {"model": {**_MODEL, "head": {**_HEAD, "n": 5}}}),
        ("_base_.pop('nine')", {"nine": _ABSENT}),
        ("_base_.pop('never_there')", {}),
        ("del _base_.model.head['n']", {"model": {**_MODEL, "head": {"type": "H"}}}),
        ("delattr(_base_, 'auto_scale_lr')", {"auto_scale_lr": _ABSENT}),
        (
            "for key in list(_base_):\n    if key != 'width':\n        del _base_[key]\ndel key",
            {key: _ABSENT for key in _CONTENT if key != "width"},
        ),
        ("_base_.custom_hooks = []", {"custom_hooks": []}),
        (
            "_base_.custom_hooks += [dict(type='B')]",
            {"custom_hooks": [{"type": "A"}, {"type": "B"}]},
        ),
        ("_base_.custom_hooks[0].type = 'B'", {"custom_hooks": [{"type": "B"}]}),
        ("_base_.pipeline.pop(0)", {"pipeline": _PIPELINE[1:]}),
        (
            "pipeline = _base_.pipeline\npipeline.pop()\n_base_.loader.dataset.pipeline = pipeline",
            {
                "pipeline": _PIPELINE[:2],
                "loader": {**_LOADER, "dataset": {"pipeline": _PIPELINE[:2], "root": "data/"}},
            },
        ),
        (
            "model = _base_.model\nmodel.pop('head')",
            {"model": {"type": "M", "w": 8, "layers": _LAYERS}},
        ),
        (
            "model = _base_.model\nmodel.layers.pop()\nmodel = dict(w=1)",
            {"model": {**_MODEL, "w": 1, "layers": _LAYERS[:1]}},
        ),
        ("model = _base_.model.copy()\nmodel.pop('head')", {}),
        ("_base_.model = dict(type='Z')\nmodel = dict(w=1)", {"model": {"type": "Z", "w": 1}}),
        ("_base_.model.update(head=dict(n=9))", {"model": {**_MODEL, "head": {**_HEAD, "n": 9}}}),
        (
            "_base_.model.update(dict(head=dict(_delete_=True, n=9), w=3))",
            {"model": {**_MODEL, "head": {"n": 9}, "w": 3}},
        ),
        (
            "_base_.model.head = dict(_delete_=True, type='Q')",
            {"model": {**_MODEL, "head": {"type": "Q"}}},
        ),
        (
            "_base_.model.merge(dict(_delete_=True, w=3, head=dict(_delete_=True, n=1)))",
            {"model": {"w": 3, "head": {"n": 1}}},
        ),
        (
            "_base_.auto_scale_lr |= dict(on=True, sub=dict(q=1))\n_base_.auto_scale_lr.sub.q = 2",
            {"auto_scale_lr": {"base_batch_size": 16, "on": True, "sub": {"q": 2}}},
        ),
        (
            "model = _base_.model | dict(head=dict(n=5))\nmodel.head.m = 6",
            {"model": {**_MODEL, "head": {**_HEAD, "n": 5, "m": 6}}},
        ),
        ("_base_.new = dict(a=1)\n_base_.new.b = 2", {"new": {"a": 1, "b": 2}}),
        ("_base_.nothing = dict(a=1)", {"nothing": {"a": 1}}),
        (
            "_base_.model.w = 5\nhead = dict(m={{_base_.model.w}}, n='{{ _base_.model.type }}')",
            {"model": {**_MODEL, "w": 5}, "head": {"m": 5, "n": "M"}},
        ),
        (
            "_base_.model.name = '{{ fileBasename }}'",
            {"model": {**_MODEL, "name": "child.py"}},
        ),
        ("_base_.width *= 2\nwider = _base_.width + 1", {"width": 16, "wider": 17}),
        ("_base_.width = 5\nwidth = 6", {"width": 6}),
        ("_base_._own = 5\ndel _base_", {"_own": 5}),
    ],
    ids=lambda value: value.partition("\n")[0] if isinstance(value, str) else "",
)
def test_what_a_file_changes_in_place_counts(write, text, changed):
    base = write("base.py", _BASE)
    expected = {k: v for k, v in {**_CONTENT, **changed}.items() if v is not _ABSENT}
    assert Config.fromfile(write("child.py", f"_base_ = ['base.py']\n{text}\n")) == expected
    assert Config.fromfile(base) == _CONTENT


def test_the_path_of_a_base_may_be_put_together(write):
    write("a_base.py", "model = dict(\n    w=1)\n")
    cfg = Config.fromfile(write("child.py", "_base_ = ['a_' + 'base.py']\nmodel = dict(v=2)\n"))
    assert cfg == {"model": {"w": 1, "v": 2}}
    assert "a_base.py:2: " in str(cfg.located(ConfigError("model.w: wrong")))


def test_changes_reach_through_several_bases_of_any_form(write):
    write("base.py", _BASE)
    write("b.yaml", "sched: {lr: 0.1, steps: [1, 2]}")
    write("c.json", '{"opt": {"lr": 0.1, "m": null}}')
    write(
        "middle.py",
        "_base_ = ['base.py', 'b.yaml', 'c.json']\n_base_.model.w = 20\n"
        "_base_.sched.steps.append(3)\n_base_.opt.m = 1\nmodel = dict(middle=1)\n",
    )
    last = write(
        "last.py",
        "_base_ = 'middle.py'\n_base_.model.w += 1\n_base_.model.pop('middle')\n"
        "_base_.sched.steps.append(4)\nsched = dict(lr={{_base_.opt.m}})\n",
    )
    cfg = Config.fromfile(last)
    assert (cfg.model.w, "middle" in cfg.model, cfg.opt) == (21, False, {"lr": 0.1, "m": 1})
    assert cfg.sched == {"lr": 1, "steps": [1, 2, 3, 4]}
    assert Config.fromfile(last) == cfg


def test_nothing_is_shared_between_keys_or_with_the_next_reading(write):
    write("shared_by_bases.py", "OPTIONS = dict(sizes=[1], names={'a'})")
    base = write("base.py", "from shared_by_bases import OPTIONS as options\n")
    child = write(
        "child.py",
        "_base_ = 'base.py'\n_base_.options.sizes.append(2)\n_base_.options.names.add('b')\n"
        "first = _base_.options\nsecond = _base_.options\n",
    )
    cfg = Config.fromfile(child)
    cfg.first.sizes.append(3)
    assert (cfg.second.sizes, cfg.options.sizes) == ([1, 2], [1, 2])
    for _ in range(2):
        again = Config.fromfile(base)
        assert again == {"options": {"sizes": [1], "names": {"a"}}}
        again.options.sizes.append(4)
    assert Config.fromfile(child).options.sizes == [1, 2]
    del sys.modules["shared_by_bases"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "del _base_.absent",
            r"child\.py:2: AttributeError: the configuration has no key 'absent'\.$",
        ),
        ("del _base_['absent']", r"child\.py:2: KeyError: 'absent'"),
        ("x = _base_.widht", r"child\.py:2: .*no key 'widht'; .*Did you mean 'width'\?"),
        (
            "_base_.model = 5\nmodel = dict(w=1)",
            r"child\.py:3: model: a dict stands over the inherited 5\. Add _de",
        ),
        ("_base_.a = '{{ _base_.b }}'", r"child\.py:2: a: .*no 'b' there"),
    ],
    ids=lambda value: value.partition("\n")[0],
)
def test_what_cannot_be_changed_is_named_with_its_line(write, text, message):
    write("base.py", _BASE)
    with pytest.raises(ConfigError, match=message):
        Config.fromfile(write("child.py", f"_base_ = 'base.py'\n{text}\n"))


def test_a_key_is_located_where_it_was_changed_in_place(write):
    base = write("base.py", _BASE)
    child = write(
        "child.py",
        "_base_ = 'base.py'\n_base_.model.depht = 3\n_base_['model'].layers[1] = dict(\n    kk=1)\n"
        "_base_.width += 1\nmodel = dict(w=1)\nother = _base_.nine\n",
    )
    cfg = Config.fromfile(child)
    expect_places(
        cfg,
        [
            ("model.depht: wrong", f"{child}:2"),
            ("model.layers[1].kk: wrong", f"{child}:4"),
            ("width: wrong", f"{child}:5"),
            ("model.w: wrong", f"{child}:6"),
            ("model.head.n: wrong", f"{base}:6"),
            ("nine: wrong", f"{base}:5"),
        ],
    )


def test_update_goes_key_by_key_and_pop_needs_no_key():
    cfg = ConfigDict(model={"type": "M", "head": {"n": 1, "m": 2}}, a=1)
    cfg.update({"model": {"head": {"n": 3}}, "a": {"b": 1}}, c=[{"d": 1}])
    assert cfg.model == {"type": "M", "head": {"n": 3, "m": 2}}
    assert (cfg.a.b, cfg.c[0].d) == (1, 1)
    cfg.update(model={"_delete_": True, "type": "N", "head": {"_delete_": True, "n": 1}})
    assert cfg.model == {"type": "N", "head": {"n": 1}}
    cfg.update(model=cfg.model)
    assert (cfg.pop("absent"), cfg.pop("absent", 5), cfg.pop("a")) == (None, 5, {"b": 1})


def test_merge_replaces_by_a_dict_what_is_none():
    cfg = ConfigDict(model={"init": [{"type": "A"}], "act": "gelu", "norm": None})
    cfg.merge(
        {"model": {"init": {"type": "B"}, "act": {"p": 1}, "norm": {"_delete_": True, "q": 2}}}
    )
    assert cfg == {"model": {"init": {"type": "B"}, "act": {"p": 1}, "norm": {"q": 2}}}


def test_delete_at_the_top_replaces_all_keys_and_is_kept_until_then():
    replacing = ConfigDict(_delete_=True, q=2, sub={"_delete_": True, "r": 1})
    assert replacing["_delete_"]
    for method in ("merge", "update", "__ior__"):
        cfg = ConfigDict(a=1, q=ConfigDict(b=1))
        getattr(cfg, method)(replacing)
        assert cfg == {"q": 2, "sub": {"r": 1}}, method
    cfg.update(_delete_=False, s=1)
    cfg.merge({"_delete_": False, "t": 1})
    assert cfg == {"q": 2, "sub": {"r": 1}, "s": 1, "t": 1}


def test_dicts_are_united_key_by_key_and_stay_as_they_were():
    cfg, more = ConfigDict(a={"b": 1, "items": [1]}), {"a": {"c": {"d": 2}}, "e": 3}
    for united, order in [(cfg | more, ["a", "e"]), (more | cfg, ["a", "e"])]:
        assert united == {"a": {"b": 1, "items": [1], "c": {"d": 2}}, "e": 3}
        assert (list(united), united.a.c.d) == (order, 2)
        united.a.c.d = 4
        united.a["items"].append(2)
    assert (cfg, more) == ({"a": {"b": 1, "items": [1]}}, {"a": {"c": {"d": 2}}, "e": 3})
    assert (cfg | {"_delete_": True, "e": 3}) == {"e": 3}
    with pytest.raises(TypeError, match="unsupported operand"):
        cfg | 5


def test_objects_that_cannot_be_copied_are_inherited_as_they_are(write):
    write(
        "base.py",
        "import threading, torch\nlock = threading.Lock()\nnumbers = (i for i in range(3))\n"
        "weight = torch.ones(2, requires_grad=True) * 2\n"
        "class Data:\n    def __init__(self):\n        self.lock = threading.Lock()\n"
        "loader = dict(dataset=Data(), batch_size=2, parts=[lock])\n",
    )
    child = write(
        "child.py",
        "_base_ = 'base.py'\n_base_.loader.batch_size = 4\nloader = dict(again='{{_base_.lock}}')\n"
        "_base_.loader.merge(dict(merged=True))\n",
    )
    cfg = Config.fromfile(write("last.py", "_base_ = 'child.py'\nloader = dict(last=1)\n"))
    cfg.merge_from_dict({"loader.parts.0": 1, "loader.n": 2})
    assert cfg.loader.again is cfg.lock
    assert (cfg.loader.batch_size, cfg.loader.parts, cfg.loader.merged) == (4, [1], True)
    assert (list(cfg.numbers), cfg.weight.requires_grad) == ([0, 1, 2], True)
    assert cfg.to_dict()["loader"]["dataset"] is cfg.loader.dataset
    assert Config.fromfile(child).loader.dataset.lock is not cfg.loader.dataset.lock

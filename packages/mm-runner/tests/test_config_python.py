"""Configurations that inherit by imports, variables of the environment, and text without a file."""

import collections

import pytest
import torch

from mm_runner import ConfigError
from mm_runner.config import Config, read_base
from mm_runner.registry import OPTIMIZERS, build_from_cfg

_MODEL = """
from torch.nn import Linear
_hidden = 1
model = dict(type=Linear, in_features=4, out_features=[1, 2], head=dict(depth=18, width=3))
data_root = 'data'
"""
_SCHEDULE = """
from torch.optim import SGD
from mm_runner.hooks import EMAHook
optim_wrapper = dict(optimizer=dict(type=SGD, lr=0.1))
custom_hooks = [dict(type=EMAHook)]
"""


@pytest.fixture
def bases(write):
    write("bases/model.py", _MODEL)
    write("bases/schedules/sgd.py", _SCHEDULE)


@pytest.mark.usefixtures("bases")
@pytest.mark.parametrize("home", ["mm_runner.config", "mmengine.config"])
def test_imports_under_read_base_inherit_values_and_others_give_types(write, home):
    path = write(
        "runs/a.py",
        f"from {home} import read_base\n"
        "from torch.optim import AdamW\n"
        "with read_base():\n"
        "    from ..bases.model import *\n"
        "    from ..bases.schedules.sgd import optim_wrapper, custom_hooks as hooks\n"
        "model.head.depth = 50\n"
        "model.update(dict(in_features=8))\n"
        "model.merge(dict(head=dict(width=5), extra=dict(_delete_=True, a=1)))\n"
        "optim_wrapper.merge(dict(optimizer=dict(_delete_=True, type=AdamW, lr=1e-3)))\n"
        "hooks.append(dict(type='EarlyStoppingHook', monitor='accuracy'))\n"
        "train_file = data_root + '/train.json'\n",
    )
    cfg = Config.fromfile(path)
    assert list(cfg) == ["model", "data_root", "optim_wrapper", "hooks", "train_file"]
    assert cfg.model == {
        "type": torch.nn.Linear,
        "in_features": 8,
        "out_features": [1, 2],
        "head": {"depth": 50, "width": 5},
        "extra": {"a": 1},
    }
    assert cfg.optim_wrapper == {"optimizer": {"type": torch.optim.AdamW, "lr": 1e-3}}
    assert [str(getattr(hook.type, "__name__", hook.type)) for hook in cfg.hooks] == [
        "EMAHook",
        "EarlyStoppingHook",
    ]
    assert cfg.train_file == "data/train.json"
    parameters = {"params": [torch.nn.Parameter(torch.ones(1))]}
    built = build_from_cfg(cfg.optim_wrapper.optimizer, OPTIMIZERS, parameters, where="o")
    assert type(built) is torch.optim.AdamW
    # The base is as it was, and what was resolved is written with the paths of the classes.
    assert Config.fromfile(path.parent.parent / "bases/model.py").model.head.depth == 18
    text = cfg.dump(path.with_name("resolved.py"))
    assert "'torch.optim.adamw:AdamW'" in text
    assert Config.fromfile(path.with_name("resolved.py")).model.head == {"depth": 50, "width": 5}


@pytest.mark.usefixtures("bases")
def test_a_base_may_inherit_and_its_keys_are_located(write):
    write(
        "middle.py",
        "from mm_runner.config import read_base\nwith read_base():\n"
        "    from .bases.model import *\nnumber = 3\n",
    )
    path = write(
        "last.py",
        "from mm_runner.config import read_base\nwith read_base():\n    from .middle import *\n"
        "number += 1\n",
    )
    cfg = Config.fromfile(path)
    assert (cfg.number, cfg.model.head.depth) == (4, 18)
    located = str(cfg.located(ConfigError("model.head.depth: too deep")))
    assert located.startswith(f"{path.parent / 'bases/model.py'}:4: ")


@pytest.mark.usefixtures("bases")
def test_what_a_base_imports_and_defines_serves_as_a_type_in_what_inherits_it(write):
    write(
        "middle.py",
        "from mm_runner.config import read_base\nwith read_base():\n"
        "    from .bases.model import *\n    from .bases.schedules.sgd import SGD as Plain\n"
        "def doubled(x):\n    return 2 * x\nmodel = dict(type=Linear, in_features=doubled(2))\n",
    )
    path = write(
        "last.py",
        "from mm_runner.config import read_base\nwith read_base():\n    from .middle import *\n"
        "head = dict(type=Linear, size=doubled(3))\noptimizer = dict(type=Plain, lr=1)\n",
    )
    cfg = Config.fromfile(path)
    assert list(cfg) == ["model", "data_root", "head", "optimizer"]
    assert cfg.model == {"type": torch.nn.Linear, "in_features": 4}
    assert cfg.head == {"type": torch.nn.Linear, "size": 6}
    assert cfg.optimizer.type is torch.optim.SGD


def test_files_of_an_installed_package_are_inherited(write, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    write("birds/__init__.py", "raise RuntimeError('nothing of it is run')")
    write("birds/configs/base.py", "lr = 0.1\nseed = 3")
    write("birds/.mim/configs/old.py", "lr = 0.5")
    assert Config.fromfile("birds::base.py") == {"lr": 0.1, "seed": 3}
    assert Config.fromfile("birds::old.py").filename.endswith("birds/.mim/configs/old.py")
    cfg = Config.fromfile(write("a.py", "_base_ = 'birds::base.py'\nlr = 0.2"))
    assert cfg == {"lr": 0.2, "seed": 3}
    imported = "with read_base():\n    from birds.configs.base import *\nlr = 0.3"
    assert Config.fromfile(write("b.py", _READ + imported)) == {"lr": 0.3, "seed": 3}
    with pytest.raises(ConfigError, match=r"birds is installed, and has no bsae\.py.*'base\.py'"):
        Config.fromfile("birds::bsae.py")


_READ = "from mm_runner.config import read_base\n"


@pytest.mark.usefixtures("bases")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("with read_base():\n    import bases.model", r"a\.py:3: import bases\.model stands in"),
        ("with read_base():\n    from absent.x import *", r"no package 'absent' is installed"),
        ("_base_ = 'absent::x.py'", r"absent::x\.py was given; no package 'absent' is installed"),
        ("with read_base():\n    from . import bases", r"a\.py:3: .*stands in"),
        ("with read_base():\n    x = 1", r"a\.py:3: x = 1 stands in a block of read_base\(\)"),
        ("with read_base():\n    from .basis import *", r"basis\.py does not exist"),
        (
            "with read_base():\n    from .bases.model import modle",
            r"a\.py:3: modle is imported from bases/model\.py, which sets model, data_root\. Did",
        ),
        (
            "with read_base():\n    from .bases.model import *\nmodel.updaet(in_features=8)",
            r"a\.py:4: AttributeError: .*no key 'updaet'; there are type, .*head\.$",
        ),
        (
            "_base_ = 'data.yaml'\nwith read_base():\n    from .bases.model import *",
            r"a\.py:2: _base_ and read_base\(\) both say what is inherited",
        ),
        ("with read_base():\n    from .a import *", r"the files inherit each other"),
        ("def f():\n    with read_base():\n        pass\nf()", r"a\.py:3: NameError: .*top level"),
        ("from mmengine.hooks import EMAHook", r"a\.py:2: .*under their names: write type='EMA"),
    ],
    ids=lambda value: "case" if "\n" in value or "\\" in value else value,
)
def test_what_is_not_supported_is_named_with_what_to_write_instead(write, text, message):
    write("data.yaml", "data_root: x")
    with pytest.raises(ConfigError, match=message):
        Config.fromfile(write("a.py", _READ + text))


def test_read_base_is_for_files_of_configuration():
    with pytest.raises(ConfigError, match=r"called by a program; .*Config\.fromfile"), read_base():
        pass


def test_variables_of_the_environment_are_text_in_quotes_and_else_what_they_look_like(
    write, monkeypatch
):
    monkeypatch.setenv("MM_TEST_ROOT", "/data/my 'set'")
    monkeypatch.setenv("MM_TEST_BATCH", "32")
    monkeypatch.delenv("MM_TEST_NONE", raising=False)
    expected = {
        "root": "/data/my 'set'/train",
        "batch": 32,
        "text": "32",
        "rate": 0.001,
        "flag": True,
        "sizes": [1, 2],
        "name": "resnet",
        "nested": {"a": ["x", 7]},
    }
    python = write(
        "a.py",
        "# {{$MM_TEST_NONE}} is not asked for in a comment\n"
        "root = '{{$MM_TEST_ROOT:/nowhere}}' + '/train'\n"
        "assert root.startswith('/data')\n"
        'batch = {{$MM_TEST_BATCH:16}}\ntext = "{{$MM_TEST_BATCH:16}}"\n'
        "rate = {{ $MM_TEST_NONE : 1e-3 }}\nflag = {{'$MM_TEST_NONE:True'}}\n"
        "sizes = {{$MM_TEST_NONE:[1, 2]}}\nname = {{$MM_TEST_NONE:resnet}}\n"
        "nested = dict(a=['x', {{$MM_TEST_NONE:7}}])\n",
    )
    yaml = write(
        "a.yaml",
        "# a: {{$MM_TEST_NONE}} is not asked for in a comment\n"
        "root: '{{$MM_TEST_ROOT:/nowhere}}/train'\n"
        "batch: {{$MM_TEST_BATCH:16}}\ntext: '{{$MM_TEST_BATCH:16}}'\n"
        "rate: {{ $MM_TEST_NONE : 1e-3 }}\nflag: {{$MM_TEST_NONE:true}}\n"
        "sizes: {{$MM_TEST_NONE:[1, 2]}}  # two\nname: {{$MM_TEST_NONE:resnet}}\n"
        "nested: {a: [x, {{$MM_TEST_NONE:7}}]}\n",
    )
    json = write(
        "a.json",
        '{"root": "{{$MM_TEST_ROOT:/nowhere}}/train", "batch": {{$MM_TEST_BATCH:16}},'
        '"text": "{{$MM_TEST_BATCH:16}}", "rate": {{$MM_TEST_NONE:1e-3}},'
        '"flag": {{$MM_TEST_NONE:true}}, "sizes": {{$MM_TEST_NONE:[1, 2]}},'
        '"name": {{$MM_TEST_NONE:resnet}}, "nested": {"a": ["x", {{$MM_TEST_NONE:7}}]}}',
    )
    for path in (python, yaml, json):
        assert Config.fromfile(path) == expected, path.name
    for path, text, place in [
        ("b.py", "a = 1\nb = {{$MM_TEST_NONE}}", r"b\.py:2"),
        ("b.py", "b = 'x{{$MM_TEST_NONE:}}'", r"b\.py:1"),
        ("b.yaml", "b: [{{$MM_TEST_NONE:}}]", r"b\.yaml:1"),
        ("b.yaml", "b: 'x{{$MM_TEST_NONE}}'", r"b\.yaml:1"),
    ]:
        with pytest.raises(ConfigError, match=rf"{place}: .*the environment has no MM_TEST_NONE"):
            Config.fromfile(write(path, text))


def test_a_configuration_may_be_text(write, monkeypatch):
    folder = write("base.yaml", "a: {b: 1, c: 2}").parent
    monkeypatch.chdir(folder)
    text = "_base_ = 'base.yaml'\na = dict(c=3)\n"
    cfg = Config.fromstring(text, ".py")
    assert (cfg, cfg.text, cfg.filename) == ({"a": {"b": 1, "c": 3}}, text, None)
    assert Config.fromstring('{"a": 1}', ".json") == {"a": 1}
    assert Config.fromstring("custom_imports: {imports: collections}", ".yml")
    assert collections
    for arguments, message in [
        (("a: 1", "yaml"), r"file_format: 'yaml' was given; there are \.py, \.yaml"),
        (("a: 1\nb: [", ".yaml"), r"<text>\.yaml:2: this is not YAML"),
        (("a = 1\nb = c", ".py"), r"<text>\.py:2: NameError"),
        (
            ("custom_imports: {imports: absent_one}", ".yaml"),
            r"custom_imports\.imports\[0\]: .*absent",
        ),
    ]:
        with pytest.raises(ConfigError, match=message):
            Config.fromstring(*arguments)

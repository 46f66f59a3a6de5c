import copy
import json
import pickle
import sys
from argparse import ArgumentParser

import pytest
import torch
from located import expect_places
from toy import NO_VALIDATION, Blobs

from mm_runner import ConfigError, Runner
from mm_runner.config import Config, ConfigDict, DictAction, parse_options

_BASE = """
model: {type: ResNet, depth: 18, stages: [1, 2]}
optim_wrapper:
  type: AmpOptimWrapper
  optimizer: {type: SGD, lr: 1e-3, momentum: 0.9}
work_dir: work/run
"""


@pytest.mark.parametrize("suffix", [".yaml", ".yml", ".json", ".py"])
def test_what_is_dumped_is_read_again(tmp_path, suffix):
    cfg = Config({"model": {"type": dict, "sizes": [1, 2.5, None, True], "name": "ä\nb"}, "n": 3})
    text = cfg.dump(tmp_path / f"config{suffix}")
    again = Config.fromfile(tmp_path / f"config{suffix}")
    assert again == {**cfg, "model": {**cfg.model, "type": "builtins:dict"}}
    assert again.text == text
    assert again.filename == str(tmp_path / f"config{suffix}")


def test_keys_are_read_and_set_as_attributes_at_any_depth():
    cfg = Config({"model": {"layers": [{"size": 3}]}})
    assert cfg.model.layers[0].size == 3
    cfg.model.layers[0].size = 4
    cfg.hooks = [{"type": "A"}]
    assert cfg["model"]["layers"][0] == {"size": 4}
    assert cfg.hooks[0].type == "A"
    assert cfg.get("absent", 5) == 5
    assert cfg.setdefault("other", {"a": 1}).a == 1
    del cfg.other
    assert list(cfg) == ["model", "hooks"]
    with pytest.raises(AttributeError, match=r"no key 'modle'; there are model, hooks.*'model'"):
        _ = cfg.modle
    with pytest.raises(AttributeError, match="no key 'absent'"):
        del cfg.absent


def test_copies_are_apart_and_know_their_file(write):
    cfg = Config.fromfile(write("base.yaml", _BASE))
    for again in (copy.deepcopy(cfg), pickle.loads(pickle.dumps(cfg)), cfg.copy()):  # noqa: S301
        assert (again, again.filename, again.text) == (cfg, cfg.filename, _BASE)
        assert isinstance(again.model, ConfigDict)
    deep = copy.deepcopy(cfg)
    deep.model.depth = 50
    assert cfg.model.depth == 18
    assert type(cfg.to_dict()["model"]) is dict


def test_yaml_reads_exponents_as_numbers_and_runs_nothing(write):
    cfg = Config.fromfile(write("base.yaml", "lr: 1e-3\nname: e5\nversion: 1.2.3"))
    assert cfg == {"lr": 0.001, "name": "e5", "version": "1.2.3"}
    with_tuples = "a: !!python/tuple\n- 1\n- !!python/tuple [2, {b: 3}]\n"  # as MMEngine dumps them
    assert Config.fromfile(write("tuples.yaml", with_tuples)) == {"a": (1, (2, {"b": 3}))}
    evil = write("evil.yaml", "a: 1\nb: !!python/object/apply:os.system ['exit 1']")
    with pytest.raises(ConfigError, match=r"evil\.yaml:2: this is not YAML: could not determine"):
        Config.fromfile(evil)


def test_dicts_are_inherited_key_by_key_and_deleted_on_request(write):
    write("bases/base.yaml", _BASE)
    write("bases/data.json", json.dumps({"data": {"size": 3}}))
    child = write(
        "child.py",
        "_base_ = ['bases/base.yaml', 'bases/data.json']\n"
        "model = dict(depth=50)\n"
        "optim_wrapper = dict(optimizer=dict(_delete_=True, type='AdamW', lr=0.1))\n"
        "data = dict(size=_base_.data.size + 1)\n",
    )
    assert Config.fromfile(child) == {
        "model": {"type": "ResNet", "depth": 50, "stages": [1, 2]},
        "optim_wrapper": {"type": "AmpOptimWrapper", "optimizer": {"type": "AdamW", "lr": 0.1}},
        "work_dir": "work/run",
        "data": {"size": 4},
    }


def test_python_sees_what_is_beside_it_and_keeps_its_helpers_to_itself(write):
    write("beside_the_config.py", "SIZE = 7")
    path = write(
        "config.py",
        "import math\nfrom beside_the_config import SIZE\nfrom collections import OrderedDict\n"
        "def double(n):\n    return 2 * n\n_hidden = 1\nsize = double(SIZE)\n"
        "root = math.floor(2.5)\n"
        "folder = '{{ fileDirname }}/x'\n",
    )
    folder = str(path.parent)
    assert Config.fromfile(path) == {"SIZE": 7, "size": 14, "root": 2, "folder": f"{folder}/x"}
    assert folder not in sys.path
    del sys.modules["beside_the_config"]


def test_braces_stand_for_the_file_and_for_inherited_values(write):
    write("base.yaml", _BASE)
    child = write(
        "child.yaml",
        "_base_: base.yaml\nhead: {{_base_.model.stages}}\nname: '{{ fileBasenameNoExtension }}'\n"
        "size: {{ _base_.model.stages.1 }}\n"
        "line: 'depth {{_base_.model.depth}} of {{fileBasename}}'",
    )
    cfg = Config.fromfile(child)
    assert (cfg.head, cfg.name, cfg.size) == ([1, 2], "child", 2)
    assert cfg.line == "depth 18 of child.yaml"
    child = write("child.py", "_base_ = 'base.yaml'\nhead = dict(a={{_base_.model.depth}})")
    assert Config.fromfile(child).head.a == 18
    child = write("child.json", '{"_base_": "base.yaml", "a": {{_base_.model.dpeth}}}')
    with pytest.raises(ConfigError, match=r"child\.json:1: a: .*no 'dpeth' there.*'depth'"):
        Config.fromfile(child)
    child = write("child.json", '{"a": ["{{ fileDirnam }}"]}')
    with pytest.raises(ConfigError, match=r"child\.json:1: a\[0\]: .*Did you mean 'fileDirname'"):
        Config.fromfile(child)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "a: 1\nb: [", r"a\.yaml:2: this is not YAML"),
        ("a.yaml", "m:\n  lr: 1\n  lr: 2\n", r"a\.yaml:3: .*the key 'lr' stands twice"),
        ("a.yaml", "- 1", r"a\.yaml: keys with values are needed at the top, got \[1\]"),
        ("a.json", '{"a": 1,\n]', r"a\.json:2: this is not JSON"),
        ("a.py", "a = 1\nb = = 2", r"a\.py:2: this is not Python"),
        ("a.py", "a = 1\nreturn 3", r"a\.py:2: this is not Python: 'return' outside function"),
        (
            "a.py",
            "custom_imports = {'imports': 'failing_module'}",
            r"a\.py:1: custom_imports.*importing 'failing_module' failed: NameError: .*, line 2\)",
        ),
        ("a.py", "a = 1\nb = a.c", r"a\.py:2: AttributeError: 'int' object has no"),
        ("a.py", "import no_such_module", r"a\.py:1: ModuleNotFoundError"),
        ("a.py", "from x_y import read_base", r"a\.py:1: .*comes from mm_runner\.config\.$"),
        ("a.py", "x = 1\n_base_ = 'a' + str(x)", r"a\.py:2: _base_: text or a list of texts"),
        ("a.yaml", "_base_: 3", r"a\.yaml: _base_: a path or a list of paths is needed, got 3"),
        (
            "a.yaml",
            "_base_: bse.yaml",
            r"a\.yaml: _base_: .*bse\.yaml does not exist.*'base\.yaml'",
        ),
        (
            "a.yaml",
            "_base_: a.yaml",
            r"a\.yaml: _base_: the files inherit each other: .*a\.yaml -> ",
        ),
        ("a.yaml", "_base_: [base.yaml, twin.yaml]", r"twin\.yaml sets model, which a file before"),
        (
            "a.yaml",
            "_base_: base.yaml\nwork_dir: {a: 1}",
            r"a\.yaml:2: work_dir: a dict stands over",
        ),
        ("a.txt", "", r"a\.txt was given; a configuration is a file that ends in \.py, \.yaml"),
        (
            "a.yaml",
            "custom_imports: {imports: [json, absent_one]}",
            r"a\.yaml:1: custom_imports\.imp",
        ),
        ("a.yaml", "custom_imports: [json]", r"a\.yaml:1: custom_imports: a dict such as"),
    ],
    ids=lambda value: value if "\n" not in value and len(value) < 40 else "text",
)
def test_what_cannot_be_read_is_named_with_its_file(write, name, text, message):
    write("base.yaml", _BASE)
    write("twin.yaml", "model: 1")
    write("failing_module.py", "\nx = y")
    with pytest.raises(ConfigError, match=message):
        Config.fromfile(write(name, text))


def test_a_file_that_is_not_there_is_named_with_near_ones(write):
    path = write("resnet.yaml", _BASE)
    with pytest.raises(ConfigError, match=r"resnt\.yaml does not exist\. Did you mean 'resnet\.ya"):
        Config.fromfile(path.with_name("resnt.yaml"))


def test_modules_that_the_config_names_are_imported(write):
    write("registering_things.py", "REGISTERED = True")
    Config.fromfile(write("a.yaml", "custom_imports: {imports: registering_things}"))
    assert sys.modules.pop("registering_things").REGISTERED
    allowed = "custom_imports: {imports: [absent_one], allow_failed_imports: true}"
    with pytest.warns(UserWarning, match=r"imports\[0\]: the module 'absent_one' cannot"):
        Config.fromfile(write("a.yaml", allowed))


def test_options_change_single_values(write):
    cfg = Config.fromfile(write("base.yaml", _BASE))
    cfg.merge_from_dict(
        {"model.stages.0": 5, "optim_wrapper.optimizer.lr": 2, "new.key": 1, "model": {"depth": 34}}
    )
    assert cfg.model == {"type": "ResNet", "depth": 34, "stages": [5, 2]}
    assert (cfg.optim_wrapper.optimizer.lr, cfg.new.key) == (2, 1)
    assert cfg.filename.endswith("base.yaml")
    cfg.merge_from_dict({"optim_wrapper.optimizer": {"_delete_": True, "type": "Adam"}})
    assert cfg.optim_wrapper.optimizer == {"type": "Adam"}
    for options, message in [
        ({"work_dir.a": 1}, r"work_dir: a dict stands over the inherited 'work/run'"),
        ({"model.stages.2": 1}, r"model\.stages: a dict stands over .*keys may be 0 to 1"),
        ({"model.stages.x": 1}, r"model\.stages: a dict stands over .*keys may be 0 to 1"),
    ]:
        with pytest.raises(ConfigError, match=message):
            cfg.merge_from_dict(options)


def test_dicts_of_numbers_change_the_items_of_a_list():
    cfg = Config({"steps": [{"type": "A", "n": 1}, {"type": "B"}], "sub": {"pair": (1, 2)}, "n": 1})
    cfg.merge_from_dict({"steps": {"0": {"n": 2}}, "sub": {"pair": {"1": 3}}})
    assert cfg.steps == [{"type": "A", "n": 2}, {"type": "B"}]
    assert cfg.sub.pair == (1, 3)
    for options in ({"steps": {"2": {"n": 2}}}, {"steps": {"type": "C"}}, {"n": {"0": 1}}):
        with pytest.raises(ConfigError, match=r"a dict stands over"):
            cfg.merge_from_dict(options)
    cfg.merge_from_dict({"steps": {"type": "C", "_delete_": True}})
    assert cfg.steps == {"type": "C"}


def test_options_empty_a_dict_whatever_their_order(write):
    cfg = Config.fromfile(write("base.yaml", _BASE))
    cfg.merge_from_dict({"model.type": "ViT", "model._delete_": True, "model.norm.p": 2})
    assert cfg.model == {"type": "ViT", "norm": {"p": 2}}
    cfg.merge_from_dict({"model.norm._delete_": False})
    assert cfg.model == {"type": "ViT", "norm": {"p": 2}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("1e-3", 0.001),
        ("True", True),
        ("None", None),
        ("'1'", "1"),
        ("", ""),
        ("a=b", "a=b"),
        ("[1,2]", [1, 2]),
        ("[a,(b,2)]", ["a", ("b", 2)]),
        ("a,b", ["a", "b"]),
        ("dict(a=1,b=2)", "dict(a=1,b=2)"),
        ("{'a': 1}", {"a": 1}),
        ("{type: x:A, a: 1e-3, b: (2, c)}", {"type": "x:A", "a": 0.001, "b": (2, "c")}),
        ("{'a': none, b: true}", {"a": None, "b": True}),
        ("[{type: 'a b', n: {m: [x y, 2]}}]", [{"type": "a b", "n": {"m": ["x y", 2]}}]),
        ("{}_{epoch}.pth", "{}_{epoch}.pth"),
        ("{epoch}", "{epoch}"),
        ("{a: 1", "{a: 1"),
        ("run: 2", "run: 2"),
        ("runs/a,b.c", ["runs/a", "b.c"]),
    ],
    ids=repr,
)
def test_an_option_is_read_as_python_or_yaml_would(text, value):
    assert parse_options([f"x.y={text}"]) == {"x.y": value}


def test_no_launcher_is_a_launcher_as_with_its_own_option():
    assert parse_options(["launcher=none"]) == {"launcher": "none"}
    assert parse_options(["launcher=None", "load_from=none"]) == {
        "launcher": None,
        "load_from": None,
    }


@pytest.mark.parametrize("option", ["x", "=1", "a..b=1", "a=[1,(2]"])
def test_an_option_that_is_none_is_a_usage_error(option, capsys):
    parser = ArgumentParser()
    parser.add_argument("--cfg-options", nargs="+", action=DictAction)
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args(["--cfg-options", option])
    assert repr(option) in capsys.readouterr().err


def test_a_key_is_located_in_the_file_that_sets_it(write):
    base = write("base.yaml", _BASE)
    child = write(
        "child.py", "_base_ = 'base.yaml'\nmodel = dict(\n    depht=3,\n    x=[dict(y=1)])\n"
    )
    cfg = Config.fromfile(child)
    expect_places(
        cfg,
        [
            ("optim_wrapper.optimizer.lrr: unknown", f"{base}:5"),
            ("model.depht: unknown", f"{child}:3"),
            ("model.x[0].y: unknown", f"{child}:4"),
            ("cfg.work_dir: unknown", f"{base}:6"),
            ("train_cfg: missing", f"{child}"),
            ("No path here", f"{child}"),
        ],
    )


def test_the_configuration_that_a_run_leaves_trains_again(make_runner):
    run = make_runner(
        train_dataloader={
            "dataset": {"type": Blobs},
            "batch_size": 4,
            "collate_fn": "default_collate",
        },
        optim_wrapper={
            "type": "AmpOptimWrapper",
            "dtype": torch.bfloat16,
            "optimizer": {"type": "SGD", "lr": 0.1},
        },
        **NO_VALIDATION,
    )
    left = Config.fromfile(run.log_dir / "config.yaml")
    assert left.optim_wrapper.dtype == "bfloat16"
    again = Runner.from_cfg(left)
    again.train()
    assert again.optim_wrapper.dtype == torch.bfloat16

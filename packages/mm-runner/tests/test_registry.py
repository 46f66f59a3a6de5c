import sys
import warnings
from importlib.metadata import distribution

import pytest
import torch
from toy import runner_arguments

from mm_runner import ComponentNotFoundError, ConfigError, Runner, registry
from mm_runner.registry import (
    HOOKS,
    MODEL_WRAPPERS,
    OPTIM_WRAPPERS,
    OPTIMIZERS,
    RUNNERS,
    DefaultScope,
    Registry,
    init_default_scope,
)


class Mine:
    pass


@pytest.fixture
def things():
    """A registry of its own group, whose torch provides ``Sgd``."""
    return Registry(
        "thing", entry_point_group="mm.test_things", torch_components=lambda: {"Sgd": "torch's"}
    )


def test_register_module_is_a_decorator_and_a_call(things):
    @things.register_module()
    class Decorated:
        pass

    assert things.get("Decorated") is Decorated
    assert things.register_module(module=Mine) is Mine
    assert things.register_module(name=["one", "two"], module=Mine) is Mine
    assert things.get("one") is things.get("two") is things.get("Mine") is Mine
    assert things.module_dict == {"Decorated": Decorated, "Mine": Mine, "one": Mine, "two": Mine}
    assert things.names() == ["Decorated", "Mine", "Sgd", "one", "two"]
    assert len(things) == 5
    assert "one" in things
    assert repr(things) == "Registry('thing': Decorated, Mine, Sgd, one, two)"


def test_register_module_replaces_only_when_forced(things):
    things.register_module(name="x", module=Mine)
    with pytest.raises(KeyError, match=r"'x' is registered already.*force=True"):
        things.register_module(name="x", module=dict)
    things.register_module(name="x", module=dict, force=True)
    assert things.get("x") is dict


def test_register_module_without_parentheses_says_so(things):
    with pytest.raises(TypeError, match="with parentheses"):
        things.register_module(Mine)
    with pytest.raises(TypeError, match="must be a class or function, got 3"):
        things.register_module(name="three", module=3)


def test_registered_wins_over_torchs_own_and_that_over_plugins(things, install_plugin):
    install_plugin(
        "many", "[mm.test_things]\nSgd = many:Sgd\nOther = many:Other\n", "Sgd = Other = 1"
    )
    with pytest.warns(
        UserWarning, match=r"thing 'Sgd' is torch's own.*torch's is used.*import path many:Sgd to"
    ):
        assert things.get("Sgd") == "torch's"
    assert things.get("Other") == 1
    things.register_module(name="Sgd", module=Mine)
    things.register_module(name="Other", module=dict)
    assert things.get("Sgd") is Mine
    assert things.get("Other") is dict
    assert things.names() == ["Other", "Sgd"]


def test_only_the_component_asked_for_is_imported(things, install_plugin):
    install_plugin("boom", "[mm.test_things]\nBoom = boom:Boom\n", "raise RuntimeError\n")
    install_plugin("calm", "[mm.test_things]\nCalm = calm:Calm\n", "Calm = 1\n")
    assert things.names() == ["Boom", "Calm", "Sgd"]
    assert things.get("Calm") == 1
    assert "boom" not in sys.modules


def test_two_plugins_of_one_name_are_an_error(things, install_plugin):
    install_plugin("first", "[mm.test_things]\nSame = first:Same\n", "Same = 1\n")
    install_plugin("second", "[mm.test_things]\nSame = second:Same\n", "Same = 2\n")
    with pytest.raises(
        ConfigError,
        match=r"'Same' was asked for.*first \(first:Same\), second \(second:Same\).*uninstall",
    ):
        things.get("Same")
    assert things.get("second:Same") == 2


@pytest.mark.parametrize("path", ["paths:Name", "paths.Name"], ids=["colon", "dot"])
def test_import_paths_need_no_registration(things, install_plugin, path):
    install_plugin("paths", "", "class Name:\n    pass\n")
    assert things.get(path) is sys.modules["paths"].Name


@pytest.mark.parametrize(
    "path",
    ["no_such_module:Name", "collections:Nmae", "collections.Nmae", ":Name", ".Name"],
    ids=["module", "attribute", "dotted-attribute", "no-module", "relative"],
)
def test_import_paths_that_lead_nowhere_say_why(things, path):
    with pytest.raises(
        ComponentNotFoundError, match=r"The thing '.*' was asked for by import path"
    ):
        things.get(path)


def test_unknown_names_list_near_ones_and_the_ways_out():
    with pytest.raises(
        ComponentNotFoundError,
        match=r"No optimizer named 'SDG'; there are: .*Adam.*SGD.*Did you mean 'SGD'.*"
        r"register_module\(\).*'package.module:Name'\.$",
    ):
        OPTIMIZERS.get("SDG")


@pytest.mark.parametrize("kind", ["OPTIMIZERS", "OPTIM_WRAPPERS", "MODEL_WRAPPERS", "MODELS"])
def test_nothing_is_to_be_installed_for_a_name_that_no_package_of_ours_has(kind):
    with pytest.raises(ComponentNotFoundError, match=r"named 'Lion'") as error:
        getattr(registry, kind).get("Lion")
    assert "pip install" not in str(error.value)


def test_a_scope_before_a_registered_name_is_told(things):
    things.register_module(name="TinyNet", module=dict)
    with pytest.raises(
        ComponentNotFoundError, match=r"'mmpretrain\.TinyNet'.*write type='TinyNet'\."
    ):
        things.get("mmpretrain.TinyNet")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("x = 1\ny = undefined\n", r"NameError: name 'undefined'.* \(mine\.py, line 2\)"),
        ("x = (\n", r"SyntaxError: .*\(mine\.py, line 1\)"),
        ("import not_there\n", r"ModuleNotFoundError: No module named 'not_there'"),
        ("raise ValueError('odd')\n", r"ValueError: odd \(mine\.py, line 1\)"),
    ],
    ids=["name", "syntax", "import", "value"],
)
def test_a_module_that_fails_shows_its_own_error(things, install_plugin, source, reason):
    install_plugin("mine", "", source)
    with pytest.raises(
        ComponentNotFoundError, match=rf"importing 'mine' failed: {reason}"
    ) as error:
        things.get("mine:Net")
    assert "package.module:Name" not in str(error.value)


def test_torchs_own_optimizers_schedulers_and_wrappers_are_known():
    assert OPTIMIZERS.get("AdamW") is torch.optim.AdamW
    assert registry.PARAM_SCHEDULERS.get("StepLR") is torch.optim.lr_scheduler.StepLR
    assert (
        MODEL_WRAPPERS.get("DistributedDataParallel") is torch.nn.parallel.DistributedDataParallel
    )
    for base in ("Optimizer", "LRScheduler", "_LRScheduler"):
        assert base not in OPTIMIZERS
        assert base not in registry.PARAM_SCHEDULERS


def test_siblings_components_are_known():
    assert "NpuFusedAdamW" in OPTIMIZERS
    assert {"OptimWrapper", "AmpOptimWrapper"} <= set(OPTIM_WRAPPERS.names())
    assert "MMDistributedDataParallel" in MODEL_WRAPPERS


def test_every_component_that_we_advertise_can_be_loaded_by_a_registry():
    by_group = {
        one.entry_point_group: one for one in vars(registry).values() if isinstance(one, Registry)
    }
    entries = [e for e in distribution("mm-runner").entry_points if e.group.startswith("mm.")]
    assert len(entries) >= 15
    for entry in entries:
        if entry.group in ("mm.commands", "mm.bridges"):
            continue  # found by the command line and by all registries
        assert by_group[entry.group].get(entry.name) is entry.load()


def test_looking_up_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert HOOKS.get("CheckpointHook").__name__ == "CheckpointHook"


class Family:
    """A root registry, two libraries' registries, and a component of the same name in each."""

    def __init__(self):
        self.root = Registry("thing")
        self.birds = Registry("thing", parent=self.root, scope="birds")
        self.owls = Registry("thing", parent=self.birds, scope="owls")
        self.fish = Registry("thing", parent=self.root, scope="fish")
        for one in (self.root, self.birds, self.fish):
            one.register_module("Common", module=type(f"Of{one.scope}", (), {}))
        self.root.register_module("Only", module=Mine)


@pytest.fixture
def family():
    return Family()


def test_a_name_is_looked_up_in_a_registry_and_its_parents(family):
    assert family.root.scope == __name__.partition(".")[0]
    assert family.birds.get("Common").__name__ == "Ofbirds"
    assert family.owls.get("Common").__name__ == "Ofbirds"
    assert family.fish.get("Only") is Mine
    with pytest.raises(ComponentNotFoundError, match=r"'Onyl'; .*Did you mean 'Only'"):
        family.owls.get("Onyl")


def test_a_scope_names_the_registry_from_anywhere_in_the_family(family):
    assert family.owls.get("fish.Common").__name__ == "Offish"
    assert family.root.get("birds.Common").__name__ == "Ofbirds"
    assert family.fish.get("owls.Only") is Mine
    assert family.fish.get("mmengine.Only") is Mine  # as OpenMMLab's configs write it
    with pytest.raises(ComponentNotFoundError, match=r"'owls\.Other' was asked for by import path"):
        family.root.get("owls.Other")


def test_the_default_scope_is_searched_first(family):
    with DefaultScope.overwrite_default_scope("birds"):
        assert family.root.get("Common").__name__ == "Ofbirds"
        assert family.fish.get("Common").__name__ == "Ofbirds"
        assert family.root.get("Only") is Mine
        with DefaultScope.overwrite_default_scope("elsewhere"):
            assert family.fish.get("Common").__name__ == "Offish"
    assert DefaultScope.get_current_instance() is None
    init_default_scope("fish")
    try:
        assert DefaultScope.get_current_instance().scope_name == "fish"
        assert type(family.root.build({"type": "Common"})).__name__ == "Offish"
        assert type(family.root.build({"type": "Common", "_scope_": "birds"})).__name__ == "Ofbirds"
    finally:
        init_default_scope(None)


def test_two_children_of_one_scope_are_refused(family):
    with pytest.raises(ConfigError, match="its parent has a child of the scope 'birds' already"):
        Registry("thing", parent=family.root, scope="birds")


def test_locations_are_imported_by_the_first_look_up(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    things = Registry("thing", scope="nest", locations=["nest_of_things"])
    monkeypatch.setitem(sys.modules, "things_holder", things)
    source = "import sys\n\nsys.modules['things_holder'].register_module('Egg', module=dict)\n"
    (tmp_path / "nest_of_things.py").write_text(source)
    assert "Egg" not in things
    assert things.get("Egg") is dict


def test_a_registry_may_build_by_a_function_of_its_own():
    def build(cfg, registry, default_args=None):
        return registry.get(cfg["kind"]), default_args

    root = Registry("thing", build)
    root.register_module(module=Mine)
    child = Registry("thing", parent=root, scope="birds")
    assert child.build({"kind": "Mine"}, default_args={"a": 1}) == (Mine, {"a": 1})


@RUNNERS.register_module()
class OwnRunner(Runner):
    pass


@pytest.mark.parametrize("kind", [Runner, OwnRunner])
def test_a_runner_is_built_by_the_name_of_its_class(tmp_path, kind):
    cfg = {**runner_arguments(tmp_path), "runner_type": kind.__name__}
    assert type(RUNNERS.build(cfg)) is kind
    with pytest.raises(ConfigError, match=r"^cfg\.runner_type: 'Runer' .* OwnRunner, Runner, with"):
        Runner.from_cfg({**cfg, "runner_type": "Runer"})

import pytest
import torch
from toy import needs_compile

from mm_compile import ConfigError, compile_model


@pytest.mark.parametrize(
    "cfg", [None, False, {"disable": True}, {"disable": True, "mode": "max-autotune"}]
)
def test_a_config_that_asks_for_nothing_leaves_the_model_untouched(model, cfg):
    before = dict(vars(model))
    handle = compile_model(model, cfg)
    assert not handle.enabled
    assert vars(model) == before
    assert handle.report().graphs == 0
    handle.undo()


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        ({"bakend": "eager"}, "no argument 'bakend'. Did you mean 'backend'"),
        ({"target": "foward"}, "'foward' does not exist. Did you mean 'forward'"),
        ({"target": 3}, "compile.target is 3; it takes a method's name or a list"),
        ({"target": [["loss"]]}, "does not exist. Did you mean 'loss'"),
        ({"regions": "blocks.*"}, "takes 'auto' or a list of patterns"),
        ({"regions": "auto", "target": "train_step"}, "Drop one"),
        ({"recompile_limit": True}, "0 or more"),
        ({"regions": ["layers.*", 1]}, "takes 'auto' or a list of patterns"),
        ({"options": {1: True}}, "takes a dict of options by their names"),
        ({"cache": ""}, "it takes a directory"),
        ({"fullgraph": "yes"}, "compile.fullgraph is 'yes'; it takes True or False"),
        ({"backend": 7}, "compile.backend is 7; it takes a backend's name or a callable"),
        ({"options": ["max_autotune"]}, "compile.options is"),
        ({"mode": "default", "options": {"max_autotune": True}}, "takes one of them"),
        ("inductor", "takes True, False, None, 'auto' or a dict"),
        (1, "takes True, False, None, 'auto' or a dict"),
    ],
)
def test_a_wrong_config_is_refused_before_anything_happens(model, cfg, message):
    before = dict(vars(model))
    with pytest.raises(ConfigError, match=message):
        compile_model(model, cfg)
    assert vars(model) == before


@needs_compile
@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        ({"backend": "inducter"}, "'inducter' does not exist. Did you mean 'inductor'.*aot_eager"),
        ({"mode": "max-autotun"}, "'max-autotun' does not exist. Did you mean 'max-autotune'"),
        ({"options": {"max_autotun": True}}, "max_autotun"),
        ({"options": {"max_autotune": "loud"}}, "max_autotune"),
    ],
)
def test_names_that_this_torch_does_not_know_are_refused(model, cfg, message):
    with pytest.raises(ConfigError, match=message):
        compile_model(model, cfg)


@needs_compile
def test_the_config_is_not_changed(model):
    cfg = {"target": "forward", "options": {"max_autotune": False}, "mode": None}
    copy = {**cfg, "options": dict(cfg["options"])}
    compile_model(model, cfg)
    assert cfg == copy


def test_only_modules_are_compiled():
    with pytest.raises(ConfigError, match=r"got function; it compiles a torch\.nn\.Module"):
        compile_model(lambda: None, cfg=False)


@needs_compile
@pytest.mark.parametrize("number", [-1, "ten", None, float("nan"), float("inf")])
def test_a_number_of_steps_is_a_number(model, number):
    handle = compile_model(model, {"backend": "eager"})
    with pytest.raises(ConfigError, match="expect_steps got"):
        handle.expect_steps(number)


def plain(graph_module, _inputs):
    return graph_module.forward


@needs_compile
def test_a_backend_that_takes_modes_gets_its_own_and_no_defaults(model, caplog):
    seen = []

    def by_name(graph_module, _inputs, mode=None):
        seen.append(mode)
        return graph_module.forward

    def any_keywords(graph_module, _inputs, **keywords):
        seen.append(keywords)
        return graph_module.forward

    for cfg in (
        {"backend": by_name, "mode": "gentle"},
        {"backend": any_keywords, "mode": "gentle"},
        {"backend": any_keywords, "options": {"level": 3}},
        {"backend": any_keywords, "mode": "default"},
        {"backend": plain, "mode": "default"},
    ):
        handle = compile_model(model, cfg)
        model(torch.randn(2, 4))
        handle.undo()
    assert seen == ["gentle", {"mode": "gentle"}, {"options": {"level": 3}}, {}]
    assert not [each for each in caplog.messages if each.startswith("compile: ")]

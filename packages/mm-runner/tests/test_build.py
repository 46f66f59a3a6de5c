import pytest

from mm_runner import ComponentNotFoundError, ConfigError
from mm_runner.registry import Registry, build_from_cfg, check_arguments, check_cfg


class Box:
    def __init__(self, width, height=2, *, lid=False):
        self.size = (width, height, lid)


def sum_of(**terms):
    return sum(terms.values())


@pytest.fixture
def things():
    registry = Registry("thing")
    registry.register_module(module=Box)
    registry.register_module(module=sum_of)
    return registry


@pytest.mark.parametrize("kind", ["Box", Box, f"{__name__}:Box"], ids=["name", "class", "path"])
def test_build_accepts_a_name_a_class_and_an_import_path(things, kind):
    cfg = {"type": kind, "width": 1, "lid": True}
    assert things.build(cfg).size == (1, 2, True)
    assert cfg == {"type": kind, "width": 1, "lid": True}


def test_build_calls_functions_and_passes_any_argument_they_take(things):
    assert things.build({"type": "sum_of", "a": 1, "b": 2}) == 3


def test_default_arguments_yield_to_the_config(things):
    assert things.build({"type": "Box", "width": 1}, {"height": 6}).size == (1, 6, False)
    built = build_from_cfg({"width": 1}, things, {"type": "Box"}, where="here")
    assert built.size == (1, 2, False)


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        ("Box", r"here: a dict with the key 'type' is needed, got 'Box'"),
        ({"width": 1}, r"here: the key 'type' is missing; given: 'width'.*names a thing: Box"),
        ({"type": 3}, r"here\.type: a name, a class or a function is needed, got 3"),
        (
            {"type": "Box", "widht": 1},
            (
                r"here\.widht: unknown argument of Box, which takes width, height, lid\. "
                r"Did you mean 'width'"
            ),
        ),
        ({"type": "Box", "lid": True}, r"here\.width: Box needs this argument; given: 'lid'"),
    ],
    ids=["no-dict", "no-type", "odd-type", "unknown-argument", "missing-argument"],
)
def test_build_errors_name_the_path_and_the_way_out(things, cfg, message):
    with pytest.raises(ConfigError, match=message):
        build_from_cfg(cfg, things, where="here")


def test_build_of_an_unknown_name_is_a_component_not_found(things):
    with pytest.raises(ComponentNotFoundError, match=r"No thing named 'Bxo'.*Did you mean 'Box'"):
        things.build({"type": "Bxo"})


def test_what_a_component_refuses_is_named_by_its_path(things):
    things.register_module(name="parse", module=int)
    with pytest.raises(ConfigError, match=r"thing: int refused its arguments: .*keyword"):
        things.build({"type": "parse", "text": "1"})


def test_an_error_of_a_components_own_is_left_as_it_is(things):
    class OwnError(ValueError):
        pass

    def refuse(size):
        raise OwnError(size)

    things.register_module(module=refuse)
    with pytest.raises(OwnError, match="3"):
        things.build({"type": "refuse", "size": 3})


def test_check_cfg_returns_what_would_be_called(things):
    assert check_cfg({"type": "Box", "width": 1}, things) == (Box, {"width": 1})


def test_check_arguments_calls_nothing():
    def explode(fuse):
        raise AssertionError(fuse)

    check_arguments(explode, {"fuse": 1}, "here")
    with pytest.raises(ConfigError, match=r"here\.fuse: explode needs this argument; given: none"):
        check_arguments(explode, {}, "here")


def test_arguments_that_a_base_takes_are_no_slips():
    class Base:
        def __init__(self, encoder):
            self.encoder = encoder

    class Derived(Base):
        def __init__(self, decoder, **kwargs):
            super().__init__(**kwargs)
            self.decoder = decoder

    assert (
        build_from_cfg({"type": Derived, "decoder": 1, "encoder": 2}, Registry("model")).encoder
        == 2
    )
    with pytest.raises(ConfigError, match=r"model\.decodr: unknown argument .*'decoder'"):
        build_from_cfg({"type": Derived, "decodr": 1, "encoder": 2}, Registry("model"))

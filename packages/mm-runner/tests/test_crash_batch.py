"""Which batch a failing step was given, as the frames of each version of Python tell it."""

import dis
import traceback
from types import SimpleNamespace
from xml.parsers import expat

import pytest

from mm_runner.crash._batch import last_batch

_LONG_BODY = "; ".join(f"x{index} = batch" for index in range(300))


def collate(batch):
    raise ArithmeticError(batch)


def generated(size):
    yield from range(size)
    collate([size])


def delegated(size):
    yield from generated(size)


class Iterated:
    def __init__(self, size):
        self.rest = iter(range(size))

    def __iter__(self):
        return self

    def __next__(self):
        found = next(self.rest, None)
        return collate([0]) if found is None else found


def batch_of(run, *arguments):
    with pytest.raises(ArithmeticError) as caught:
        run(*arguments)
    return last_batch(caught.value.__traceback__)


def loop_over(source, body):
    names = {"collate": collate}
    exec(f"def loop(source):\n for batch in source:\n  {body}", names)  # noqa: S102
    return batch_of(names["loop"], source)


@pytest.mark.parametrize("body", ["pass", _LONG_BODY], ids=["short", "long"])
@pytest.mark.parametrize("size", [0, 1, 3, 1000])
@pytest.mark.parametrize("kind", [generated, delegated, Iterated], ids=lambda kind: kind.__name__)
def test_data_that_fails_while_it_is_drawn_has_no_batch(kind, size, body):
    assert loop_over(kind(size), body) is None
    assert loop_over(enumerate(kind(size)), body) is None


@pytest.mark.parametrize("first", ["", f"{_LONG_BODY}; "], ids=["short", "long"])
@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("kind", [generated, list], ids=lambda kind: kind.__name__)
def test_what_fails_after_it_was_drawn_has_it(kind, size, first):
    source = kind(size) if kind is generated else kind(range(size))
    assert loop_over(source, f"{first}batch == {size - 1} and collate([batch])") == [size - 1]


def parse(batch):  # noqa: ARG001 - it is found by its name
    parser = expat.ParserCreate()
    parser.StartElementHandler = lambda *_: 1 / 0
    parser.Parse("<a/>", True)  # noqa: FBT003


def test_a_frame_that_c_code_adds_hides_nothing():
    with pytest.raises(ZeroDivisionError) as caught:
        parse({"x": 1})
    names = [frame.f_code.co_name for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    assert "StartElement" in names  # there is one
    assert last_batch(caught.value.__traceback__) == {"x": 1}


def _stopped(code, place):
    """Return a trace that ends in a loop of which only that is known."""
    units = bytes(byte for name in code for byte in (dis.opmap[name], 0))
    counts = {"co_varnames": (), "co_argcount": 0, "co_kwonlyargcount": 0}
    code_object = SimpleNamespace(co_filename="own.py", co_code=units, **counts)
    frame = SimpleNamespace(f_code=code_object, f_locals={"batch": 1})
    return SimpleNamespace(tb_frame=frame, tb_lasti=place, tb_next=None)


# What some versions leave behind, on any: 3.10 of C code and of long loops, 3.12 of generators.
@pytest.mark.parametrize(
    ("code", "place", "expected"),
    [
        ([], -2, 1),
        ([], 0, 1),
        (["NOP", "FOR_ITER", "NOP"], 2, None),
        (["NOP", "EXTENDED_ARG", "EXTENDED_ARG", "FOR_ITER"], 2, None),
        (["NOP", "FOR_ITER", "NOP"], 4, 1),
        (["FOR_ITER", "CACHE", "NOP"], 2, None),
        (["FOR_ITER", "NOP", "CACHE", "CACHE"], 6, 1),
        (["CACHE", "CACHE"], 2, 1),
        (["EXTENDED_ARG", "EXTENDED_ARG"], 0, 1),
    ],
)
def test_a_loop_is_known_by_the_instruction_wherever_the_trace_points(code, place, expected):
    if not set(code) <= set(dis.opmap):
        pytest.skip("this Python has no caches in its code")
    assert last_batch(_stopped(code, place)) == expected

import logging

import pytest
import torch
import torch.distributed as dist
from blocks import Stack
from torch.nn.parallel import DistributedDataParallel
from toy import needs_compile

from mm_compile import compile_model
from mm_compile._config import parse_config
from mm_compile._known_bad import TABLE, KnownBad, tell_known_bad
from mm_compile._torch import torch_version


def told(caplog, model, cfg, version, table=TABLE):
    caplog.clear()
    caplog.set_level(logging.INFO, "mm_compile")
    tell_known_bad(model, parse_config(cfg), version=version, table=table)
    return caplog.messages[:]


@pytest.mark.parametrize(
    ("cfg", "bad", "good", "words"),
    [
        ({"regions": "auto"}, (2, 4), (2, 5), "start no faster"),
        ({"mode": "reduce-overhead"}, (2, 1), (2, 2), "where an iteration begins"),
        ({"options": {"triton.cudagraphs": True}}, (2, 0), (2, 13), "Use mode='default'"),
    ],
)
def test_what_a_torch_does_badly_is_told_and_nothing_of_others(caplog, cfg, bad, good, words):
    (line,) = told(caplog, Stack(2), cfg, bad)
    assert words in line
    assert line.startswith(f"compile: of PyTorch {'.'.join(map(str, bad))}")
    assert told(caplog, Stack(2), cfg, good) == []
    assert told(caplog, Stack(2), {}, bad) == []


def test_a_whole_model_in_a_parallel_wrapper_is_told_of(caplog, tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        wrapped = DistributedDataParallel(Stack(2))
        (line,) = told(caplog, wrapped, {}, (2, 1))
        assert "NotImplementedError" in line
        assert told(caplog, wrapped, {}, (2, 2)) == []
        assert told(caplog, Stack(2), {}, (2, 1)) == []
    finally:
        dist.destroy_process_group()


@needs_compile
def test_the_table_is_read_when_a_model_is_compiled(caplog, monkeypatch):
    entry = KnownBad(torch_version(), (99, 0), lambda model, _config: len(model.blocks) == 2, "so")
    monkeypatch.setitem(tell_known_bad.__kwdefaults__, "table", [entry])
    compile_model(Stack(2), {"backend": "eager"})
    assert f"compile: of PyTorch {torch.__version__} it is known: so." in caplog.messages


def test_every_entry_names_versions_in_order_and_what_to_do():
    for entry in TABLE:
        assert entry.since < entry.before
        assert not entry.message.endswith(".")

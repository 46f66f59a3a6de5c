import logging
import os

import pytest
from toy import Toy, needs_compile, needs_torch_2_4

from mm_compile import ConfigError, TorchVersionError, can_compile, compile_model
from mm_compile._torch import torch_version


def test_true_is_for_mm_runner():
    with pytest.raises(ConfigError, match=r"cache is True; it takes a directory.*mm-runner"):
        compile_model(Toy(), {"cache": True})


@pytest.mark.parametrize("value", [3, b"x", {"dir": "x"}], ids=["number", "bytes", "dict"])
def test_what_is_no_path_is_refused(value):
    with pytest.raises(ConfigError, match="it takes a directory"):
        compile_model(Toy(), {"cache": value})


def test_a_file_or_a_place_within_one_is_refused(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    for path in (file, str(file / "cache")):
        with pytest.raises(ConfigError, match=r"notes.txt is a file; it takes a directory"):
            compile_model(Toy(), {"cache": path})
    assert file.read_text() == "mine"


@needs_compile
@pytest.mark.parametrize("value", [None, False])
def test_it_is_off(value):
    assert compile_model(Toy(), {"cache": value, "backend": "eager"}).enabled


@needs_torch_2_4
def test_asking_creates_nothing_and_another_backend_says_that_it_stores_nothing(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "mm_compile")
    directory = tmp_path / "deep" / "cache"
    assert can_compile({"cache": directory, "backend": "eager"}).ok
    compile_model(Toy(), {"cache": os.fspath(directory), "backend": "eager"})
    assert not directory.parent.exists()
    assert "backend 'eager' has nothing to store" in caplog.text


@needs_compile
@pytest.mark.skipif(torch_version() >= (2, 4), reason="needs an old torch")
def test_an_old_torch_is_refused_at_once(tmp_path):
    with pytest.raises(TorchVersionError, match=r"compile.cache needs PyTorch >= 2\.4"):
        compile_model(Toy(), {"cache": tmp_path})

"""The examples that need other libraries run as they stand."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "packages" / "mm-runner" / "examples"
NEEDED = {
    "fine_tune_vit.py": ("timm", "sklearn"),
    "gpt2_lora.py": ("transformers", "peft"),
    "reviews.yaml": ("transformers", "datasets"),
    "stream_of_tars.py": ("webdataset", "sklearn"),
    "torchmetrics_mlflow.py": ("torchmetrics", "mlflow", "sklearn"),
}


@pytest.mark.parametrize("name", NEEDED)
def test_example_runs(name, tmp_path):
    missing = [one for one in NEEDED[name] if find_spec(one) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    commands = [[str(EXAMPLES / name)]]
    if name.endswith(".yaml"):
        commands = [[str(EXAMPLES / "reviews.py")], ["-m", "mm_runner", "train", commands[0][0]]]
    for command in commands:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stdout
    assert list(tmp_path.glob("work_dirs/*/last_checkpoint"))
    assert len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) <= 40

import re
from pathlib import Path

import pytest
import torch.distributed.run

README = Path(__file__).parent.parent / "README.md"
EXAMPLE, *OTHERS = re.findall(
    r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE
)
TORCHRUN = ("-m", torch.distributed.run.__name__, "--standalone", "--nproc_per_node=2")


def test_first_example_runs_under_torchrun(run_script):
    alone = run_script(EXAMPLE)
    result = run_script(EXAMPLE, *TORCHRUN)
    assert result.returncode == 0, result.stderr
    assert result.stdout == alone.stdout.replace("1 processes", "2 processes")
    assert "destroy_process_group" not in result.stderr


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 9),
    reason="needs sharding on the CPU and timeouts that gloo can change",
)
@pytest.mark.parametrize("example", OTHERS)
def test_other_examples_run_under_torchrun(run_script, tmp_path, example):
    result = run_script(f"import os; os.chdir({str(tmp_path)!r})\n{example}", *TORCHRUN)
    assert result.returncode == 0, result.stderr

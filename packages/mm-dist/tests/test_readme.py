import re
from pathlib import Path

import torch.distributed.run

README = Path(__file__).parent.parent / "README.md"
EXAMPLE = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[1]
TORCHRUN = ("-m", torch.distributed.run.__name__, "--standalone", "--nproc_per_node=2")


def test_first_example_runs_under_torchrun(run_script):
    alone = run_script(EXAMPLE)
    result = run_script(EXAMPLE, *TORCHRUN)
    assert result.returncode == 0, result.stderr
    assert result.stdout == alone.stdout.replace("1 processes", "2 processes")
    assert "destroy_process_group" not in result.stderr

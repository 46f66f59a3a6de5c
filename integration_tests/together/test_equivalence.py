"""Two processes and one process with the doubled batch take the same steps."""

from pathlib import Path

import torch

SCRIPT = Path(__file__).with_name("twenty_steps.py")


def test_two_processes_equal_one_with_the_doubled_batch(run_ranks, tmp_path):
    run_ranks(SCRIPT, 1, "one.pt", 1)
    run_ranks(SCRIPT, 2, "two.pt", 2)
    one = torch.load(tmp_path / "one.pt", weights_only=True)
    two = torch.load(tmp_path / "two.pt", weights_only=True)
    assert one.keys() == two.keys()
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=0, atol=1e-6)

import pytest
import torch.distributed as dist

from mm_runner import ConfigError, MMRunnerError
from mm_runner._main_process import run_on_main


def test_one_process_is_the_main_one():
    assert run_on_main(lambda: 3) == 3
    with pytest.raises(KeyError, match="gone"):
        run_on_main(lambda: {}["gone"])


def _expect_one_answer(rank):
    assert run_on_main(lambda: f"from rank {rank}") == "from rank 0"
    with pytest.raises(ConfigError, match="no such thing"):
        run_on_main(_refuse)
    expected = ZeroDivisionError if rank == 0 else MMRunnerError
    with pytest.raises(expected, match="division by zero"):
        run_on_main(lambda: 1 / 0)
    dist.barrier()


def _refuse():
    raise ConfigError("no such thing")


def test_every_rank_gets_the_main_ones_answer_or_error(run_ranks):
    run_ranks(_expect_one_answer, 2)

import itertools

import pytest
import torch

from mm_dist._collectives._tag import TAG_LENGTH, make_tag, read_tag

REDUCE = {
    "sum": lambda rows: rows.sum(0),
    "product": lambda rows: rows.prod(0),
    "max": lambda rows: rows.amax(0),
}


def reduce_tags(op, fingerprints, dtype, looking=(True, True, True)):
    tags = zip(fingerprints, looking, strict=True)
    rows = torch.stack([make_tag(f, dtype, is_looking=look) for f, look in tags])
    assert rows.shape[1] == TAG_LENGTH
    return read_tag(REDUCE[op](rows))


@pytest.mark.parametrize("op", REDUCE)
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.float32])
def test_a_tag_tells_whether_all_ranks_sent_the_same(op, dtype):
    for same in (0, 1, 2**32 - 1, 0xDEADBEEF):
        assert reduce_tags(op, (same,) * 3, dtype) == (True, True)
        for position in range(32):
            other = same ^ (1 << position)
            for who in set(itertools.permutations((same, same, other))):
                assert reduce_tags(op, who, dtype) == (False, True)


@pytest.mark.parametrize("op", REDUCE)
def test_a_tag_tells_whether_all_ranks_are_looking(op):
    for looking in itertools.product([True, False], repeat=3):
        assert reduce_tags(op, (7, 7, 7), torch.float64, looking) == (True, all(looking))

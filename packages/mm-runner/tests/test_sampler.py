import pytest

from mm_runner import ConfigError
from mm_runner.data import DefaultSampler


def ranks_of(size, world_size, **options):
    """The indices that each rank of ``world_size`` gets."""
    samplers = [DefaultSampler(range(size), **options) for _ in range(world_size)]
    for rank, sampler in enumerate(samplers):
        sampler.rank, sampler.world_size = rank, world_size
    for sampler in samplers:
        assert len(list(sampler)) == len(sampler)
    return [list(sampler) for sampler in samplers]


def test_without_shuffling_the_ranks_are_dealt_out_like_cards():
    assert ranks_of(6, 2, shuffle=False) == [[0, 2, 4], [1, 3, 5]]


def test_round_up_repeats_samples_from_the_front():
    assert ranks_of(5, 2, shuffle=False) == [[0, 2, 4], [1, 3, 0]]
    assert ranks_of(2, 5, shuffle=False) == [[0], [1], [0], [1], [0]]
    assert ranks_of(5, 2, shuffle=False, round_up=False) == [[0, 2, 4], [1, 3]]


@pytest.mark.parametrize("world_size", [1, 3], ids=["one", "three"])
def test_every_index_comes_once_over_all_ranks(world_size):
    dealt = ranks_of(12, world_size, seed=0)
    assert sorted(index for rank in dealt for index in rank) == list(range(12))


def test_the_order_depends_on_seed_and_epoch_alone():
    sampler, twin, other = (DefaultSampler(range(20), seed=seed) for seed in (0, 0, 1))
    first = list(sampler)
    assert list(sampler) == list(twin) == first
    assert list(other) != first
    sampler.set_epoch(1)
    assert list(sampler) != first
    twin.set_epoch(1)
    assert list(twin) == list(sampler)
    sampler.set_epoch(0)
    assert list(sampler) == first


def test_without_a_seed_one_is_drawn():
    assert DefaultSampler(range(3)).seed != DefaultSampler(range(3)).seed


def test_a_dataset_without_length_or_samples_is_refused():
    with pytest.raises(ConfigError, match="dataset with a length, generator has none"):
        DefaultSampler(i for i in range(3))
    with pytest.raises(ConfigError, match=r"\(list\) is empty"):
        DefaultSampler([])

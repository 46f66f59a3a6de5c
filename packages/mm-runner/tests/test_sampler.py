import itertools
import math

import pytest

from mm_runner import ConfigError
from mm_runner.data import DefaultSampler, InfiniteSampler


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


@pytest.mark.parametrize("sampler_type", [DefaultSampler, InfiniteSampler])
def test_a_dataset_without_samples_is_refused(sampler_type):
    with pytest.raises(ConfigError, match=r"\(list\) is empty"):
        sampler_type([])


def take(sampler, number):
    return list(itertools.islice(sampler, number))


def infinite_ranks_of(size, world_size, **options):
    samplers = [InfiniteSampler(range(size), **options) for _ in range(world_size)]
    for rank, sampler in enumerate(samplers):
        sampler.rank, sampler.world_size = rank, world_size
    return samplers


@pytest.mark.parametrize(("size", "world_size"), [(5, 2), (7, 3), (2, 5), (9000, 2)])
def test_an_infinite_sampler_goes_through_all_samples_before_any_comes_again(size, world_size):
    samplers = infinite_ranks_of(size, world_size, seed=0)
    # What the ranks draw in turn is one stream: permutation after permutation.
    number = math.ceil(3 * size / world_size)
    stream = [i for step in zip(*(take(s, number) for s in samplers), strict=True) for i in step]
    epochs = [stream[begin : begin + size] for begin in range(0, 3 * size, size)]
    assert all(sorted(epoch) == list(range(size)) for epoch in epochs)
    assert size < 100 or epochs[0] != epochs[1]


def test_an_infinite_sampler_in_order():
    one, other = infinite_ranks_of(5, 2, shuffle=False)
    assert take(one, 5) == [0, 2, 4, 1, 3]
    assert take(other, 5) == [1, 3, 0, 2, 4]


@pytest.mark.parametrize("sampler_type", [DefaultSampler, InfiniteSampler])
@pytest.mark.parametrize("num_samples", [0, 1, 4096, 5000, 9999])
def test_skipping_goes_on_where_an_uninterrupted_run_would(sampler_type, num_samples):
    sampler = sampler_type(range(20_000), seed=3)
    sampler.world_size = 2
    whole = take(sampler, 10_000)
    sampler.start = num_samples * 2
    assert take(sampler, 10_000 - num_samples) == whole[num_samples:]
    assert take(sampler, 10) == whole[:10], "only once"

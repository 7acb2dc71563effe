"""Numbers that are uniform, unrelated, and the same whatever else is drawn with them."""

import numpy as np
import pytest
from scipy import stats

from engine.random_numbers import ACCEPT, RESAMPLE, SAMPLE, seeds_array, uniform


def test_a_number_is_its_own_in_any_batch():
    seeds = seeds_array([3, 4, 5])
    positions = np.array([10, 11, 12])
    together = uniform(seeds, positions, SAMPLE)
    alone = [uniform(seeds[i : i + 1], positions[i : i + 1], SAMPLE)[0] for i in range(3)]
    assert together.tolist() == alone
    grid = uniform(seeds[:, None], positions[None, :], SAMPLE)
    assert np.diagonal(grid).tolist() == alone


def test_the_numbers_stay_what_they_are():
    """A seed in a bug report must give the same output in the next version."""
    found = uniform(seeds_array([0, 42]), np.array([0, 7]), ACCEPT)
    assert found.tolist() == [0.18436667429957665, 0.21968367839048009]


def test_any_integer_is_a_seed():
    seeds = seeds_array([-1, 2**70, 2**64 - 1])
    numbers = uniform(seeds, np.zeros(3, dtype=np.int64), SAMPLE)
    assert ((numbers >= 0) & (numbers < 1)).all()


@pytest.mark.parametrize("axis", ["seeds", "positions"])
def test_uniform_along_seeds_and_positions(axis):
    n = 100_000
    count = np.arange(n)
    if axis == "seeds":
        numbers = uniform(count.astype(np.uint64), np.zeros(n, dtype=np.int64), SAMPLE)
    else:
        numbers = uniform(np.zeros(n, dtype=np.uint64), count, SAMPLE)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert stats.kstest(numbers, "uniform").pvalue > 1e-4
    assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.02


def test_lanes_and_neighbours_are_independent():
    n = 100_000
    seeds, positions = np.zeros(n, dtype=np.uint64), np.arange(n)
    lanes = [uniform(seeds, positions, lane) for lane in (SAMPLE, ACCEPT, RESAMPLE)]
    lanes.append(uniform(seeds, positions + 1, SAMPLE))
    for a in range(len(lanes)):
        for b in range(a):
            table = np.histogram2d(lanes[a], lanes[b], bins=8)[0].ravel()
            assert stats.chisquare(table).pvalue > 1e-4


def test_the_largest_number_stays_below_any_total():
    largest = 1 - 2.0**-52
    for total in np.random.default_rng(0).uniform(1e-3, 1e5, 10_000):
        assert largest * total < total

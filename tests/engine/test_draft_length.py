"""Adaptive draft lengths on machines whose passes and drafts cost known times, with drafts that are right at known
rates: tokens a second against the best fixed length, in the long run, after abrupt changes, and what trying costs.

Times are those of the default model on two cores, relative to a pass without drafts, by tokens of the pass.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest

from engine.speculation.acceptance import Acceptance
from engine.speculation.length import PROBING, TRYING, DraftLengths
from engine.speculation.pass_times import PassTimes

ENOUGH = 0.95
MOST = 8  # the slider
PLAIN = {1: 4.5, 4: 7.0, 16: 13.0}  # ms
RELATIVE = {
    1: ((1, 2, 3, 4, 5, 6, 7, 8, 9), (1, 1.09, 1.20, 1.15, 1.30, 1.23, 1.37, 1.46, 1.70)),
    4: ((4, 8, 12, 20, 36), (1, 1.33, 1.71, 2.58, 4.2)),
    16: ((16, 32, 48, 80, 144), (1, 1.54, 2.09, 3.39, 5.9)),
}
LINE = (3.5, 0.9)  # ms, as the engine's own estimate may have it: wrong by up to a quarter
CHEAP, HEAD, MODEL = (0.0, 0.0), (0.25, 0.05), (1.0, 0.1)  # ms of a draft: each position, each token

Rates = Callable[[int, int], float]  # of a sequence, at a place in its draft


class Machine:
    """`rows` sequences decode. `draft`: as above; a position takes longer with more rows. `noise`: relative."""

    def __init__(self, rows: int, draft: tuple[float, float], noise: float = 0.08, spikes: float = 0.0, seed: int = 0):
        self.rows, self.noise, self.spikes = rows, noise, spikes
        self.depth, self.each = draft[0] * rows**0.5, draft[1]
        self.slow = 1.0
        self.rng = random.Random(seed)

    def verify(self, tokens: int) -> float:
        return PLAIN[self.rows] * float(np.interp(tokens, *RELATIVE[self.rows])) * self.slow

    def drafts(self, lengths: list[int]) -> float:
        return (self.depth * max(lengths) + self.each * sum(lengths)) * self.slow

    def measured(self, ms: float) -> float:
        spike = self.rng.uniform(3, 10) if self.rng.random() < self.spikes else 1.0
        return ms * (1 + self.noise * self.rng.uniform(-1, 1)) * spike

    def fixed(self, rate: Rates) -> list[float]:
        """Tokens a ms of each fixed length from 0 on, exactly."""
        found = []
        for gamma in range(MOST + 1):
            tokens = 0.0
            for row in range(self.rows):
                chances = np.cumprod([rate(row, place) for place in range(gamma)])
                tokens += 1 + float(np.sum(chances))
            found.append(tokens / (self.verify(self.rows * (gamma + 1)) + self.drafts([gamma] * self.rows)))
        return found

    def run(self, lengths: DraftLengths, rate: Rates, passes: int) -> float:
        """Tokens a ms under `lengths`: those expected of the lengths that it chose, which is less of a lottery."""
        made = took = 0.0
        for _ in range(passes):
            asked = lengths.plan(list(range(self.rows)), [MOST] * self.rows, 0)
            assert all(0 <= n <= MOST for n in asked)
            results = []
            for row, count in enumerate(asked):
                accepted = 0
                while accepted < count and self.rng.random() < rate(row, accepted):
                    accepted += 1
                made += 1 + float(np.sum(np.cumprod([rate(row, place) for place in range(count)])))
                if count:
                    results.append((row, count, accepted, 0))
            drafted, tokens = sum(asked), self.rows + sum(asked)
            if drafted:
                lengths.drafted(max(asked), drafted, self.measured(self.drafts(asked)))
            lengths.examined(results)
            lengths.passed(tokens, self.measured(self.verify(tokens)))
            took += self.verify(tokens) + self.drafts(asked)
        return made / took


def new() -> DraftLengths:
    return DraftLengths(lambda: LINE)


def always(alpha: float) -> Rates:
    return lambda row, place: alpha


@pytest.mark.parametrize("draft", [CHEAP, HEAD, MODEL], ids=["cheap", "head", "model"])
@pytest.mark.parametrize("rows", [1, 4, 16])
def test_as_fast_as_the_best_fixed_length(rows: int, draft: tuple[float, float]) -> None:
    for alpha in (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95):
        machine, lengths = Machine(rows, draft), new()
        machine.run(lengths, always(alpha), 150)
        share = machine.run(lengths, always(alpha), 800) / max(machine.fixed(always(alpha)))
        assert share >= ENOUGH, alpha


@pytest.mark.parametrize("rows", [1, 4, 16])
def test_from_the_first_token_it_loses_little(rows: int) -> None:
    for alpha in (0.1, 0.5, 0.9):
        machine = Machine(rows, HEAD)
        assert machine.run(new(), always(alpha), 200) >= 0.9 * max(machine.fixed(always(alpha)))


@pytest.mark.parametrize(("before", "after"), [(0.1, 0.95), (0.95, 0.1), (0.3, 0.7), (0.6, 0.85), (0.9, 0.5)])
@pytest.mark.parametrize("rows", [1, 4, 16])
def test_an_abrupt_change_of_acceptance(rows: int, before: float, after: float) -> None:
    machine, lengths = Machine(rows, HEAD), new()
    machine.run(lengths, always(before), 500)
    machine.run(lengths, always(after), 300)  # 1.5 to 5 s on that machine
    assert machine.run(lengths, always(after), 700) >= ENOUGH * max(machine.fixed(always(after)))


@pytest.mark.parametrize("rows", [1, 4, 16])
def test_acceptance_that_falls_with_the_place(rows: int) -> None:
    def rate(row: int, place: int) -> float:
        return (0.9, 0.8, 0.6, 0.3)[min(place, 3)]

    machine, lengths = Machine(rows, HEAD), new()
    machine.run(lengths, rate, 200)
    assert machine.run(lengths, rate, 800) >= ENOUGH * max(machine.fixed(rate))


def test_sequences_that_differ_get_lengths_of_their_own() -> None:
    """Better than any one length for all."""

    def rate(row: int, place: int) -> float:
        return 0.95 if row % 2 else 0.05

    machine, lengths = Machine(4, HEAD), new()
    machine.run(lengths, rate, 300)
    assert machine.run(lengths, rate, 800) >= 1.05 * max(machine.fixed(rate))
    asked = np.mean([lengths.plan([0, 1, 2, 3], [MOST] * 4, 0) for _ in range(20)], axis=0)
    assert asked[0] < 1 < 1.9 < asked[1]


@pytest.mark.parametrize("rows", [1, 4, 16])
def test_a_machine_that_others_use_too(rows: int) -> None:
    """Half of the passes take 1.5 times as long as they could, one in fifteen three times as long."""

    class Shared(Machine):
        def measured(self, ms: float) -> float:
            return ms * math.exp(abs(self.rng.gauss(0, 0.6)))

    for alpha in (0.2, 0.5, 0.8):
        machine, lengths = Shared(rows, HEAD), new()
        machine.run(lengths, always(alpha), 200)
        assert machine.run(lengths, always(alpha), 800) >= 0.9 * max(machine.fixed(always(alpha))), alpha


@pytest.mark.parametrize("rows", [1, 16])
def test_spikes_and_a_machine_that_slows_down(rows: int) -> None:
    machine, lengths = Machine(rows, HEAD, noise=0.15, spikes=0.03), new()
    machine.run(lengths, always(0.8), 300)
    for slow in (1.0, 3.0, 0.8):
        machine.slow = slow
        machine.run(lengths, always(0.8), 50)
        assert machine.run(lengths, always(0.8), 800) >= 0.94 * max(machine.fixed(always(0.8)))


def test_drafting_that_never_pays_costs_what_is_put_by_for_probing() -> None:
    """And is still probed: else nobody would know when it pays again."""
    machine, lengths = Machine(1, MODEL), new()
    machine.run(lengths, always(0.02), 300)
    probes = 0
    learn = lengths.acceptance.learn

    def counted(results: list) -> None:
        nonlocal probes
        probes += len(results)
        learn(results)

    lengths.acceptance.learn = counted  # type: ignore[method-assign]
    share = machine.run(lengths, always(0.02), 2000) / machine.fixed(always(0.02))[0]
    assert share >= 1 - 1.3 * (PROBING + TRYING)
    assert probes >= 20


def test_a_batch_that_changes_is_no_news_of_acceptance() -> None:
    lengths = new()
    for rows in (1, 16, 4, 16, 1):
        machine = Machine(rows, HEAD)
        machine.run(lengths, always(0.8), 100)
        assert machine.run(lengths, always(0.8), 400) >= 0.94 * max(machine.fixed(always(0.8))), rows


def test_the_limits_bind() -> None:
    lengths = new()
    Machine(4, CHEAP).run(lengths, always(0.95), 300)
    for _ in range(20):
        assert all(n <= most for n, most in zip(lengths.plan([0, 1, 2], [1, 3, 2], 1), [1, 3, 2], strict=True))


def test_the_same_times_give_the_same_lengths() -> None:
    def chosen() -> list[list[int]]:
        machine, lengths = Machine(4, HEAD, spikes=0.05, seed=3), new()
        found = []
        for _ in range(30):
            machine.run(lengths, always(0.7), 5)
            found.append(lengths.plan([0, 1, 2, 3], [MOST] * 4, 0))
        return found

    assert chosen() == chosen()


def test_a_clock_that_stands_still_teaches_nothing() -> None:
    times = PassTimes(*LINE)
    before = times.expected(np.arange(1, 50)).tolist()
    times.learn(5, 0.0)
    assert times.expected(np.arange(1, 50)).tolist() == before


# --- drafts that are looked up ---


def look_up(rng: random.Random, matching: float) -> tuple[int, int]:
    """Tokens found and tokens that matched before them: (0, 0) mostly."""
    if rng.random() > matching:
        return 0, 0
    matched = rng.choice((1, 1, 1, 2, 2, 3, 5, 12))
    return min(MOST, int(1.5 * matched)), matched


def right(matched: int, place: int) -> float:
    return {1: 0.3, 2: 0.55, 3: 0.7}.get(matched + place, 0.92)


def looked_up(rows: int, matching: float, length: int | DraftLengths, passes: int, seed: int = 0) -> float:
    """Tokens a ms with a fixed or adaptive length, of the same drafts."""
    machine, rng = Machine(rows, CHEAP, seed=seed), random.Random(seed + 1)
    made = took = 0.0
    for _ in range(passes):
        found = [look_up(rng, matching) for _ in range(rows)]
        draws = [[rng.random() for _ in range(MOST)] for _ in range(rows)]
        if isinstance(length, int):
            kept = [min(length, n) for n, _ in found]
        else:
            have = [row for row in range(rows) if found[row][0]]
            trimmed = length.trim(
                have, [found[row][0] for row in have], [found[row][1] for row in have], rows - len(have), False
            )
            kept = [0] * rows
            for row, n in zip(have, trimmed, strict=True):
                kept[row] = n
        results = []
        for row, n in enumerate(kept):
            accepted = 0
            while accepted < n and draws[row][accepted] < right(found[row][1], accepted):
                accepted += 1
            made += accepted + 1
            if n:
                results.append((row, n, accepted, found[row][1]))
        tokens = rows + sum(kept)
        took += machine.verify(tokens)
        if not isinstance(length, int):
            length.examined(results)
            length.passed(tokens, machine.measured(machine.verify(tokens)))
    return made / took


@pytest.mark.parametrize("matching", [0.0, 0.1, 0.5, 0.95])
@pytest.mark.parametrize("rows", [1, 4, 16])
def test_looked_up_drafts_as_fast_as_the_best_fixed_length(rows: int, matching: float) -> None:
    lengths = new()
    looked_up(rows, matching, lengths, 300)
    best = max(looked_up(rows, matching, gamma, 1000, seed=7) for gamma in range(MOST + 1))
    assert looked_up(rows, matching, lengths, 1000, seed=7) >= ENOUGH * best


def test_long_matches_are_kept_where_short_ones_do_not_pay() -> None:
    lengths = new()
    looked_up(16, 0.8, lengths, 600)
    kept = lengths.trim(list(range(16)), [MOST] * 16, [1] * 8 + [12] * 8, 0, False)
    assert sum(kept[:8]) <= 2 and min(kept[8:]) >= 1


# --- acceptance ---


def test_rates_are_learnt_by_place_and_by_match() -> None:
    found, rng = Acceptance(), random.Random(0)
    for _ in range(3000):
        for matched in (0, 2, 12):
            accepted = 0
            while accepted < 6 and rng.random() < (right(matched, accepted) if matched else (0.8, 0.5)[accepted > 0]):
                accepted += 1
            found.learn([(1, 6, accepted, matched)])
    plain, short, long = map(found.each, (0, 2, 12))
    assert plain[0] == pytest.approx(0.8, abs=0.12) and plain[1] == pytest.approx(0.5, abs=0.15)
    assert short[0] == pytest.approx(0.55, abs=0.15) and long[0] == pytest.approx(0.92, abs=0.08)


def test_what_one_showed_counts_for_it_alone_and_is_forgotten_with_it() -> None:
    found = Acceptance()
    for _ in range(40):
        found.learn([(1, 4, 4, 0), (2, 4, 0, 0)])
    good, bad, unknown = map(found.of, (1, 2, 3))
    assert good > 1.1 and bad < 0.5 and unknown == 1.0
    found.forget(2)
    assert found.of(2) == 1.0


def test_what_a_method_showed_is_known_when_it_is_chosen_again() -> None:
    lengths = DraftLengths(lambda: (4.0, 0.5))
    lengths.renew("suffix")
    before = lengths.acceptance.rates.copy()
    for _ in range(60):
        lengths.examined([(1, 2, 0, 0)])
    learnt = lengths.acceptance.rates.copy()
    lengths.renew("head")
    assert lengths.acceptance.rates == before, "nothing is known of another"
    lengths.renew("suffix")
    assert lengths.acceptance.rates == learnt and learnt[0] < before[0] / 2
    assert lengths.acceptance.of(1) == 1.0, "sequences are forgotten: they may have ended meanwhile"


# --- drafts that aren't even asked for ---


def asked(lengths: DraftLengths, gain: bool, passes: int, rows: int = 4) -> int:
    """Passes in which drafts were asked for, which takes 0.2 ms and finds long matches in all rows, or nothing."""
    count = 0
    for _ in range(passes):
        if lengths.rests(rows):
            lengths.passed(rows, 7.0)
            continue
        count += 1
        found = list(range(rows)) if gain else []
        kept = lengths.trim(found, [4] * len(found), [12] * len(found), rows - len(found), False)
        lengths.drafted(4, 4 * rows, 0.2)
        lengths.examined([(seq, n, n, 12) for seq, n in enumerate(kept) if n])
        lengths.passed(rows + sum(kept), 7.0 * (1 + 0.1 * sum(kept)))
    return count


def test_what_spares_less_than_asking_takes_is_asked_for_seldom_and_again_when_it_pays() -> None:
    lengths = new()
    assert asked(lengths, True, 100) >= 75, "what long matches are worth isn't known at first"
    assert asked(lengths, True, 100) == 100
    asked(lengths, False, 100)  # until it has shown
    assert asked(lengths, False, 120) == 40, "four passes of twelve"
    asked(lengths, True, 60)
    assert asked(lengths, True, 100) == 100


def test_of_another_method_nothing_is_held_against_it() -> None:
    lengths = new()
    asked(lengths, False, 100)
    lengths.renew("suffix")
    assert not lengths.rests(4)

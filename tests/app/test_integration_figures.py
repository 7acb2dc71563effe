"""The latencies and rates that the window shows equal a recount by hand from the raw records.

The recount below uses the definitions of the field and nothing of the window's: TTFT is the first token's clock less
the arrival's, TPOT the mean time of the tokens after the first, a quantile is by nearest rank, goodput counts finished
requests that met both targets a second, all over the last 60 s of the engine's clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from PySide6.QtTest import QTest

from engine import records as r
from engine.config import LiveSettings
from tests.support.live_window import LiveWindow, tiny_config
from tests.support.tiny_directory import make_directory
from ui import explain
from ui.views.latency import LatencyView

pytestmark = pytest.mark.slow
NS = 1e9
WINDOW = 60 * 10**9


@dataclass
class Life:
    arrival: int
    tokens: list[int] = field(default_factory=list)  # the clock of each
    end: int = 0
    finished: bool = False


def lives(messages: list[r.Message]) -> dict[int, Life]:
    """Each sequence's, from the records alone."""
    found: dict[int, Life] = {}
    for message in messages:
        if not isinstance(message, r.StepRecord | r.Between):
            continue
        for event in message.events:
            if isinstance(event, r.Submitted):
                found[event.seq] = Life(event.arrival)
        if isinstance(message, r.StepRecord):
            for token in r.unpack(message.emitted, r.TOKEN):
                found[int(token["seq"])].tokens.append(message.end_clock)
        for event in message.events:
            if isinstance(event, r.Finished | r.Aborted):
                life = found[event.seq]
                life.end = message.end_clock if isinstance(message, r.StepRecord) else message.clock
                life.finished = isinstance(event, r.Finished)
    return found


def nearest_rank(values: list[float], q: float) -> float:
    return sorted(values)[max(0, math.ceil(q / 100 * len(values)) - 1)] if values else math.nan


def tpot(life: Life) -> float | None:
    count = len(life.tokens) - 1
    return (life.tokens[-1] - life.tokens[0]) / count / NS if count > 0 else None


def test_ttft_tpot_goodput_and_rate_equal_a_recount(qapp, tmp_path: Path) -> None:
    settings = LiveSettings(max_batch=6, max_context=256, kv_blocks=44, token_budget=40, draft_length=3)
    live = LiveWindow(tiny_config(make_directory(tmp_path), settings))
    window = live.window
    try:
        numbers = [*live.load(30, prompt=30, tokens=40), live.submit([3, 1, 4], 1)]
        live.pump(lambda: len(window.mirror.history.requests) > 3)
        QTest.keyClick(window, " ")  # paused time must not count
        live.pump(lambda: window.mirror.status.paused)
        live.run(0.6)
        for _ in range(3):
            before = window.mirror.last_step
            window.transport.step()
            live.pump(lambda b=before: window.mirror.last_step > b)
        window.transport.toggle()
        window.transport.slow(window.transport.speed)
        live.source.send(r.Abort(id=live.source.next_id(), number=numbers[-3]))
        live.await_end(numbers)
        live.pump(lambda: live.idle)
        live.drawn()

        view: LatencyView = window.deck.docks["latency"].view
        compare(live, view, 1.0, 0.1)
        # targets that part of the requests miss
        known = [t for t in map(tpot, lives(live.source.seen).values()) if t is not None]
        ttfts = [(x.tokens[0] - x.arrival) / NS for x in lives(live.source.seen).values() if x.tokens]
        view._ttft.setValue(nearest_rank(ttfts, 60))
        view._tpot.setValue(nearest_rank(known, 60) * 1e3)
        live.drawn()
        good = compare(live, view, view.targets.ttft, view.targets.tpot)
        assert 0 < good < len(numbers) - 1

        # a moment of the past has the figures of then
        past = window.mirror.last_step // 2
        window.cursor.pin(past)
        live.drawn()
        compare(live, view, view.targets.ttft, view.targets.tpot, past)
    finally:
        live.close()


def compare(live: LiveWindow, view: LatencyView, ttft: float, tpot_target: float, step: int | None = None) -> int:
    """What is shown against the recount at a step, the last one if None; how many requests were good."""
    steps = [s for s in live.source.steps() if step is None or s.step <= step]
    later = [i for i, m in enumerate(live.source.seen) if isinstance(m, r.StepRecord) and m.step > steps[-1].step]
    heard = live.source.seen[: min(later, default=None)]
    now = max([s.end_clock for s in steps] + [m.clock for m in heard if isinstance(m, r.Between)])
    all_lives = lives(heard)
    since = now - WINDOW

    firsts = [(x.tokens[0] - x.arrival) / NS for x in all_lives.values() if x.tokens and since < x.tokens[0] <= now]
    ended = [x for x in all_lives.values() if x.finished and since < x.end <= now]
    tpots = [t for t in map(tpot, ended) if t is not None]
    shown = view.shown
    for kind, values in (("ttft", firsts), ("tpot", tpots), ("e2e", [(x.tokens[-1] - x.arrival) / NS for x in ended])):
        assert sorted(shown.values[kind].tolist()) == pytest.approx(sorted(values), rel=1e-12), kind
        for point, told in zip((50, 90, 99), shown.points[kind], strict=True):
            assert told == pytest.approx(nearest_rank(values, point), rel=1e-12), (kind, point)

    met = [
        x for x in ended
        if (x.tokens[0] - x.arrival) / NS <= ttft and ((t := tpot(x)) is None or t <= tpot_target)
    ]  # fmt: skip
    inside = [s for s in steps if since < s.end_clock <= now]
    seconds = (now - max(since, inside[0].clock)) / NS
    assert shown.goodput == pytest.approx(len(met) / seconds, rel=1e-9)
    assert shown.finished == len(ended)
    assert f"goodput {explain.rate(len(met) / seconds)} req/s" in live.window.deck.docks["latency"].bar.summary.text()

    bar = live.window.topbar.numbers.values
    assert bar["ttft"] == _shown(nearest_rank(firsts, 50)) and bar["tpot"] == _shown(nearest_rank(tpots, 50))
    if step is not None:
        last = [s for s in steps if s.end_clock > now - 5 * 10**9]
        span = (now - max(now - 5 * 10**9, last[0].clock)) / NS
        tokens = sum(len(r.unpack(s.emitted, r.TOKEN)) for s in last)
        assert bar["rate"] == f"{tokens / span:,.0f}"
        frame = live.window.cursor.state
        assert bar["queue"] == f"{steps[-1].running} + {steps[-1].waiting}" and frame.step == step
        assert bar["kv"] == f"{100 * steps[-1].used / steps[-1].settings.kv_blocks:.0f} %"
    return len(met)


def _shown(seconds: float) -> str:
    """As the top bar writes a time."""
    if seconds < 0.00995:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e3:.0f} ms" if seconds < 0.9995 else f"{seconds:.2f} s"

"""Headline numbers of any moment, and before against after a change of settings. Pure functions, no Qt.

NaN stands for 'nothing was measured'; a view shows it as a dash.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine import formulas
from engine.formulas import time_per_output_token
from ui.cursor import Cursor
from ui.history import Columns, History, Mark
from ui.latency import SECOND, FinishedRequest
from ui.mirror import Mirror
from ui.state import EngineState

RATE_WINDOW = 5.0  # s: long enough to ride over single prefills, short enough to answer a slider
LATENCY_WINDOW = 60.0  # s
AROUND = 30.0  # s looked at on each side of a mark
ACCEPTANCE_STEPS = 200


@dataclass(frozen=True, slots=True)
class Targets:
    """What a request has to meet to count as good, seconds. The defaults are the window's only ones."""

    ttft: float = 1.0  # chat users bear about this long
    tpot: float = 0.1  # 10 tokens/s, a fast reader's pace


@dataclass(slots=True)
class Goals:
    """The targets in force, wherever they are chosen: every figure of goodput in the window means the same."""

    targets: Targets = field(default_factory=Targets)


@dataclass(frozen=True, slots=True)
class Headline:
    """The top bar's numbers. Times are seconds, shares are 0..1."""

    tokens_per_s: float
    ttft_p50: float
    tpot_p50: float
    kv_used: float
    acceptance: float
    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Figures:
    """One stretch of time."""

    seconds: float
    tokens_per_s: float
    ttft_p50: float  # s
    tpot_p50: float  # s
    goodput: float  # requests/s


@dataclass(frozen=True, slots=True)
class Around:
    mark: Mark
    before: Figures
    after: Figures


def headline(mirror: Mirror, at: Cursor | int | None = None) -> Headline:
    """The numbers of a moment: the cursor's, a step's, or the live one."""
    state, live = _moment(mirror, at)
    history, clock = mirror.history, state.clock
    ttft = history.ttft.since(clock - _ns(LATENCY_WINDOW), clock)[1]
    tpot = history.tpot.since(clock - _ns(LATENCY_WINDOW), clock)[1].tolist() or paces(state)
    idle = live and mirror.status.idle and not state.running
    return Headline(
        tokens_per_s=0.0 if idle and len(history) else rate(history, clock),
        ttft_p50=formulas.percentile(ttft.tolist(), 50),
        tpot_p50=formulas.percentile(tpot, 50),
        kv_used=state.used / state.num_blocks if state.num_blocks else math.nan,
        acceptance=acceptance(history, state.step),
        running=len(state.running),
        waiting=len(state.waiting),
    )


def paces(state: EngineState) -> list[float]:
    """Seconds per output token of the running sequences so far: what TPOT is likely to be, until one has finished."""
    running = (state.sequences[seq] for seq in state.running if seq in state.sequences)
    times = (time_per_output_token(i.first_token, i.last_token, i.output_tokens) for i in running if i.first_token)
    return [time / SECOND for time in times if time]


def rate(history: History, clock: int, window: float = RATE_WINDOW) -> float:
    """Output tokens/s over the `window` seconds before `clock`, idle time within them counted."""
    return tokens_per_s(history.since(clock - _ns(window), clock), clock - _ns(window), clock)


def tokens_per_s(columns: Columns, since: int, until: int) -> float:
    """Output tokens/s of `columns`, whose steps ended between the clocks `since` and `until`; time before the
    first kept step doesn't count."""
    if not len(columns):
        return math.nan
    seconds = (until - max(since, int(columns.clock[0]))) / SECOND
    return int(columns.emitted.sum()) / seconds if seconds > 0 else math.nan


def acceptance(history: History, step: int | None = None, window: int = ACCEPTANCE_STEPS) -> float:
    """α = accepted ÷ examined drafted tokens."""
    examined, accepted = history.acceptance(window, step)
    total = int(examined.sum())
    return int(accepted.sum()) / total if total else math.nan


def tokens_per_pass(history: History, step: int | None = None, window: int = ACCEPTANCE_STEPS) -> float:
    """Measured tokens per verified pass: accepted drafts and the one token that each pass adds."""
    examined, accepted = history.acceptance(window, step)
    passes = int(examined[0])  # every pass examines its first draft
    return int(accepted.sum()) / passes + 1 if passes else math.nan


def around(mirror: Mirror, mark: Mark, targets: Targets | None = None, window: float = AROUND) -> Around:
    """Before and after a change, each up to the next change on that side, at most `window` seconds. After other
    weights the time begins with the first step: until then the engine was loading them."""
    clocks = [m.clock for m in mirror.history.marks]
    now = mirror.live.clock
    low = max([c for c in clocks if c < mark.clock] + [mark.clock - _ns(window)])
    first = mirror.history.slice(mark.step, mark.step).clock if mark.key == "weights" else ()
    begin = int(first[0]) if len(first) else mark.clock
    high = min([c for c in clocks if c > mark.clock] + [begin + _ns(window), now])
    return Around(
        mark=mark,
        before=between(mirror.history, low, mark.clock, targets),
        after=between(mirror.history, begin, high, targets),
    )


def between(history: History, low: int, high: int, targets: Targets | None = None) -> Figures:
    """The figures of what ended after clock `low`, up to and with `high` (ns, engine clock)."""
    columns = history.since(low, high)
    start = max(low, int(columns.clock[0])) if len(columns) else low
    seconds = max(0.0, (high - start) / SECOND)
    ended = [r for r in _recent(history, low) if r.finish_clock <= high]
    return Figures(
        seconds=seconds,
        tokens_per_s=tokens_per_s(columns, low, high),
        ttft_p50=formulas.percentile(history.ttft.since(low, high)[1].tolist(), 50),
        tpot_p50=formulas.percentile(history.tpot.since(low, high)[1].tolist(), 50),
        goodput=formulas.goodput(met(ended, targets), seconds),
    )


def goodput(history: History, clock: int, window: float = LATENCY_WINDOW, targets: Targets | None = None) -> float:
    """Requests/s that finished in the `window` seconds before `clock` and met both targets."""
    return between(history, clock - _ns(window), clock, targets).goodput


def met(requests: Iterable[FinishedRequest], targets: Targets | None = None) -> list[bool]:
    """Which finished requests met both targets; aborted ones are left out, they never got to miss them."""
    aim = targets or Targets()
    return [
        formulas.met_targets(r.ttft, r.tpot, aim.ttft, aim.tpot)
        for r in requests
        if not r.aborted and r.ttft is not None
    ]


def _recent(history: History, clock: int) -> list[FinishedRequest]:
    """Requests that ended after `clock`, newest first: searched from the end, it is seldom far."""
    found = []
    for request in reversed(history.requests):
        if request.finish_clock <= clock:
            break
        found.append(request)
    return found


def _moment(mirror: Mirror, at: Cursor | int | None) -> tuple[EngineState, bool]:
    if at is None:
        return mirror.live, True
    if isinstance(at, int):
        return mirror.state_at(at), at >= mirror.last_step
    return at.state, at.is_live


def _ns(seconds: float) -> int:
    return round(seconds * SECOND)

"""Frames of the real window over the real engine, under the built-in workload. A part of `bench window`."""

from __future__ import annotations

import time

LOAD_LIMIT = 120.0  # s that the model may take to load


def measure(size: tuple[int, int], seconds: float) -> dict[str, float]:
    """Frame times, ms, over `seconds` from the engine's readiness on. Raises BenchFailed if it doesn't come up."""
    from app.bench.runs import BenchFailed
    from app.session import Appearance, Session
    from app.settings import Unsaved
    from engine.config import EngineConfig

    session = Session(EngineConfig(), Appearance("dark", 1.0, size), settings=Unsaved())
    begun = time.monotonic()
    ready = 0.0

    def until(session) -> bool:
        nonlocal ready
        now = time.monotonic()
        if not ready and session.window.mirror.ready is not None:
            ready = now
            session.window.frames.clear()
        waited_too_long = not ready and now - begun > LOAD_LIMIT
        return session.source.state == "dead" or waited_too_long or bool(ready and now - ready >= seconds)

    session.run(until)
    mirror, frames = session.window.mirror, session.window.frames
    if not ready or mirror.died is not None:
        raise BenchFailed(mirror.died.reason if mirror.died else f"the engine was not ready after {LOAD_LIMIT:g} s")
    parts = ("total", "apply", "refresh", "paint")
    times = {f"{part}_ms_p{q}": round(frames.percentile_ms(q, part), 2) for part in parts for q in (50, 99)}
    return {"seconds": seconds, "steps": mirror.last_step, "frames": frames.count} | times | {
        "frames_per_s": round(frames.rate(), 1)
    }  # fmt: skip

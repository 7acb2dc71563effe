"""A whole session in a process of its own, without a screen: `python -m tests.support.session_main MODEL WHEN`.

WHEN says when the window closes itself: "never", "loading" (at the first progress that it shows), "serving" (when
text streams), or "paused" (with a request under way). Prints a line when that moment has come, with the engine's pid.
"""

from __future__ import annotations

import sys


def main(model: str, when: str) -> int:
    from app.session import Appearance, Session
    from app.settings import Unsaved
    from engine.config import EngineConfig, LiveSettings
    from ui.contracts import WorkloadSettings

    config = EngineConfig(model=model, device="cpu", threads=1, settings=LiveSettings(max_context=512))
    session = Session(config, Appearance("dark", 1.0, (1280, 720)), WorkloadSettings(rate=10.0), Unsaved())
    told = False

    def until(session: Session) -> bool:
        nonlocal told
        mirror = session.window.mirror
        busy = mirror.live.step > 20 and bool(mirror.live.running)
        if when == "paused" and busy and not session.window.transport.paused:
            session.window.transport.toggle()
        come = {
            "never": busy,
            "loading": mirror.loading is not None and bool(session.source.pid),
            "serving": busy,
            "paused": mirror.status.paused and busy,
        }[when]
        if come and not told:
            told = True
            print("now", session.source.pid, flush=True)
        return come and when != "never"

    return session.run(until)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""What the strip below the top bar says, and in which order."""

from __future__ import annotations

from PySide6.QtWidgets import QApplication

from engine.records import Died, Ended, Loading, Notice, Refused, Stop
from tests.support.synthetic import NoProbe, SyntheticSource
from tests.ui.window_harness import Harness
from ui.contracts import HostMemory
from ui.explain import size


def test_silent_when_all_is_well(qtbot):
    assert Harness(qtbot).window.banner.text == ""


def test_a_source_that_starts_shows_in_the_window_and_nowhere_else(qtbot, monkeypatch):
    monkeypatch.setattr(SyntheticSource, "_start", _starting)
    before = _on_screen()  # of earlier tests: tooltips, floating docks that Qt has yet to delete
    h = Harness(qtbot, steps=0)
    assert h.window.banner.text == "Starting the engine…"
    assert _on_screen() - before == {h.window}


def _on_screen():
    return {widget for widget in QApplication.topLevelWidgets() if widget.isVisible()}


def _starting(source):
    source.world = source._make()
    source.state, source._queue = "starting", []


def test_death_shows_reason_and_restart_and_keeps_history(qtbot):
    h = Harness(qtbot)
    h.source._queue.append(Died(reason="killed by signal 9, perhaps for memory.", detail="…"))
    h.source.state = "dead"
    h.frame()
    banner = h.window.banner
    assert "killed by signal 9" in banner.text and banner.restart.isVisible()
    assert len(h.window.mirror.history) == 40
    h.window.cursor.pin(20)
    assert h.window.cursor.state.step == 20
    h.window.cursor.live()
    banner.restart.click()
    h.run(5)
    assert h.source.state == "ready" and banner.text == ""
    assert len(h.window.mirror.history) == 45


def test_death_without_a_word(qtbot):
    h = Harness(qtbot)
    h.source.state = "dead"
    h.frame()
    assert "stopped" in h.window.banner.text and h.window.banner.restart.isVisible()


def test_loading_shows_stage_and_amount_and_the_window_is_usable(qtbot):
    h = Harness(qtbot, steps=0)
    h.source._queue[:] = [Loading(stage="Fetching the model", done=34 << 20, total=98 << 20)]
    h.frame()
    assert h.window.banner.text == "Fetching the model: 34.0 MiB of 98.0 MiB"
    assert h.window.banner._bar.isVisible() and h.window.banner._bar.value() == round(1000 * 34 / 98)
    h.source._queue.append(Loading(stage="Warming up", done=0, total=0))
    h.frame()
    assert h.window.banner.text == "Warming up…"
    h.window.theme.set_name("light")
    h.frame()


def test_notices_and_refusals_are_counted_and_dismissed(qtbot):
    h = Harness(qtbot)
    h.source._queue += [
        Notice(message="the pool was lowered to 300 blocks"),
        Refused(number=9, message="the prompt has 9,000 tokens, max_context is 2,048"),
    ]
    h.frame()
    banner = h.window.banner
    assert banner.text.startswith("Request 9 was not taken: the prompt has 9,000 tokens")
    assert "1 more" in banner.text and "lowered to 300" in banner._label.toolTip()
    h.source._queue += [Notice(message="the pool was lowered to 300 blocks")] * 3
    h.frame()
    assert banner.text == "the pool was lowered to 300 blocks  (and 1 more)"  # said again by an engine started again
    banner.dismiss.click()
    assert banner.text == ""
    h.source._queue.append(Notice(message="something else", level="info"))
    h.frame()
    assert banner.text == "something else"


def test_death_comes_before_notices(qtbot):
    h = Harness(qtbot)
    h.source._queue += [Notice(message="a notice"), Died(reason="out of memory")]
    h.source.state = "dead"
    h.frame()
    assert "out of memory" in h.window.banner.text


def test_information_goes_by_itself_and_warnings_stay(qtbot, monkeypatch):
    h = Harness(qtbot)
    now = 100.0
    monkeypatch.setattr("ui.banner.monotonic", lambda: now)
    h.source._queue.append(Notice(message="the prefix cache was emptied", level="info"))
    h.frame()
    assert h.window.banner.text
    now += 60
    h.frame()
    assert h.window.banner.text == ""
    h.source._queue.append(Notice(message="the pool was lowered"))
    h.frame()
    now += 60
    h.frame()
    assert h.window.banner.text == "the pool was lowered"


class Telling(NoProbe):
    """Figures of the host, one after the other, the last for good."""

    def __init__(self, *figures):
        super().__init__()
        self.figures = list(figures)

    def host(self):
        return self.figures.pop(0) if len(self.figures) > 1 else self.figures[0]


def test_unloading_ends_the_engine_and_tells_what_came_back(qtbot):
    h = Harness(qtbot)
    mib = 1 << 20
    probe = Telling(
        HostMemory(own=312 * mib, available=1_000 * mib),
        HostMemory(own=200 * mib, available=1_100 * mib),  # on its way out
        HostMemory(own=0, available=1_309 * mib),
    )
    object.__setattr__(h.window.context, "probe", probe)
    h.window.lifecycle.unload()
    assert len(h.sent(Stop)) == 1
    h.frame()
    banner = h.window.banner
    assert "it held 312 MiB; waiting" in banner.text
    h.frame(2)
    assert banner.text == "The engine is unloaded: held 312 MiB, 309 MiB came back."
    h.source._queue.append(Ended())
    h.source._queue.append(Died(reason="The engine isn't running, so it took no command. Restart it."))
    h.source.state = "dead"  # as after a slider was moved
    h.frame()
    assert banner.text == "The engine is unloaded: held 312 MiB, 309 MiB came back." and banner.restart.isVisible()
    assert banner.restart.isVisible() and len(h.window.mirror.history) == 40
    banner.restart.click()
    h.run(5)
    assert banner.text == "" and not h.window.context.unload.begun


def test_the_menu_tells_what_unloading_would_free_and_end(qtbot):
    h = Harness(qtbot)
    menu = next(a.menu() for a in h.window.menu_bar.actions() if a.text() == "&Engine")
    menu.aboutToShow.emit()
    unload = next(a for a in menu.actions() if a.text().startswith("Unload"))
    memory, live = h.window.mirror.live.memory, len(h.window.mirror.live.sequences)
    assert unload.text() == f"Unload: {size(memory.resident)}, ends {live} requests" and unload.isEnabled()
    unload.trigger()
    h.frame()
    menu.aboutToShow.emit()
    assert not unload.isEnabled() and unload.text().startswith("Unload")

"""The person at the window of a soak: hovers, scrolls, chooses, drags settings, asks, tells stories and leaves them.

Everything that is opened is closed again soon, so that what the window holds is the same from one minute to the next
unless something is left behind. All of it is drawn with a seed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, QPoint, QPointF, Qt
from PySide6.QtGui import QMouseEvent, QWheelEvent
from PySide6.QtWidgets import QApplication, QWidget

from app.workload.prompts import PromptSet
from engine.records import Request, Sampling

if TYPE_CHECKING:
    from app.session import Session

EVERY = 0.2  # s between two acts: a busy hand
TOUR_EVERY = 2.0  # s, of the first ones
# Beside the built-in workload: what it never asks for. The last can't be had of a simulated engine.
KINDS: dict[str, dict[str, object]] = {
    "greedy": {"sampling": Sampling(temperature=0.0)},
    "sampled": {"sampling": Sampling(temperature=0.9, top_p=0.9, seed=3), "n": 2},
    "penalised": {"sampling": Sampling(temperature=0.0, repetition_penalty=1.2, frequency_penalty=0.2)},
    "stopped": {"stop": ["et", "the"]},
    "urgent": {"priority": -1},
    "undrafted": {"sampling": Sampling(speculate=False)},
    "beams": {"beams": 3},
}
# Settings that are dragged about, and the values that each comes by; of `kv_blocks` shares of what the run began with.
DRAGGED: dict[str, tuple[object, ...]] = {
    "draft_length": (0, 2, 4, 8, 4),
    "draft_policy": ("fixed", "adaptive"),
    "max_batch": (8, 16, 32, 24),
    "kv_blocks": (0.4, 0.7, 1.0),
    "token_budget": (128, 512, "auto"),
    "temperature": (0.0, 0.7, 0.0),
    "prefix_cache": (False, True),
    "preemption": ("swap", "recompute"),
    "allocation": ("reserved", "paged"),
    "batching": ("static", "continuous"),
    "block_size": (8, 16),
}
SWAP_BLOCKS = 256


class Hand:
    """`act` is called often; it does one thing every EVERY seconds. `done` counts what was done, by name."""

    def __init__(self, session: Session, simulated: bool, seed: int = 5):
        self._session, self._simulated = session, simulated
        self._rng = random.Random(seed)
        self._prompts = PromptSet.load()
        self._next = self._resting_until = 0.0
        self._due: list[tuple[float, Callable[[], None]]] = []  # what undoes what was done
        self._dragged = Counter[str]()
        self._blocks = 0  # of the pool at the beginning, in blocks of 16 tokens
        self.done: Counter[str] = Counter()
        # Everything once at first, so that what is made when it is first needed is there before anything counts.
        views = [partial(self._show, key) for key in session.window.deck.docks]
        self._tour: list[Callable[[float], None]] = [*views, self._story, self._restyle, self._resize, self._check]

    def act(self, now: float) -> None:
        if self._due and self._due[0][0] <= now:
            self._due.pop(0)[1]()
        if now < self._next:
            return
        if now >= self._resting_until and self._session.window.transport.paused:
            self._session.window.transport.toggle()
        self._next = now + EVERY
        if self._tour:
            self._next = now + TOUR_EVERY
            self._tour.pop(0)(now)
            return
        names, weights = zip(*self._ways().items(), strict=True)
        name = self._rng.choices(names, weights)[0]
        self.done[name] += 1
        getattr(self, f"_{name}")(now)

    @property
    def toured(self) -> bool:
        """Everything was done once."""
        return not self._tour

    def rest(self) -> None:
        """Undo what is still to be undone."""
        while self._due:
            self._due.pop(0)[1]()

    def _ways(self) -> dict[str, float]:
        return {
            "hover": 10, "scroll": 4, "choose": 2, "ask": 2, "drag": 1, "look_back": 0.4, "fill": 0.4, "pause": 0.15,
            "check": 0.2, "abort": 0.1, "restyle": 0.05, "story": 0.1, "resize": 0.05,
        }  # fmt: skip

    def _later(self, when: float, undo: Callable[[], None]) -> None:
        self._due.append((when, undo))
        self._due.sort(key=lambda each: each[0])

    # --- the mouse ---

    def _hover(self, now: float) -> None:
        if (widget := self._target()) is not None:
            at = self._spot(widget)
            none = Qt.MouseButton.NoButton
            move = QMouseEvent(QEvent.Type.MouseMove, at, QPointF(widget.mapToGlobal(at)), none, none,
                               Qt.KeyboardModifier.NoModifier)  # fmt: skip
            QApplication.sendEvent(widget, move)

    def _scroll(self, now: float) -> None:
        if (widget := self._target()) is not None:
            at = self._spot(widget)
            turn = QPoint(0, self._rng.choice([-240, -120, 120, 240]))
            QApplication.sendEvent(widget, QWheelEvent(
                at, QPointF(widget.mapToGlobal(at)), QPoint(), turn, Qt.MouseButton.NoButton,
                Qt.KeyboardModifier.NoModifier, Qt.ScrollPhase.NoScrollPhase, False))  # fmt: skip

    def _target(self) -> QWidget | None:
        """The innermost widget at some spot of a view in sight."""
        docks = [dock for dock in self._session.window.deck.docks.values() if dock.shown]
        views = [dock.view for dock in docks if min(dock.view.width(), dock.view.height()) > 9]
        if not views:
            return None
        view = self._rng.choice(views)
        return view.childAt(self._spot(view).toPoint()) or view

    def _spot(self, widget: QWidget) -> QPointF:
        return QPointF(self._rng.randrange(max(1, widget.width())), self._rng.randrange(max(1, widget.height())))

    # --- the window ---

    def _choose(self, now: float) -> None:
        state = self._session.window.cursor.state
        seq = self._rng.choice([None, *state.sequences, *state.recent])
        block = self._rng.choice([None, self._rng.randrange(max(1, state.num_blocks))])
        self._session.window.selection.choose(seq, block)
        self._later(now + 5, self._session.window.selection.choose)

    def _look_back(self, now: float) -> None:
        window = self._session.window
        if window.mirror.last_step:
            window.cursor.pin(self._rng.randint(window.mirror.first_step, window.mirror.last_step))
            self._later(now + 1.5, window.cursor.live)

    def _fill(self, now: float) -> None:
        self._show(self._rng.choice([*self._session.window.deck.docks]), now)

    def _show(self, key: str, now: float) -> None:
        """Fill the window with a view for a moment."""
        window = self._session.window
        if window.deck.filled is None:
            window.fill(key)
            self._later(now + 0.75 * TOUR_EVERY, lambda: window.fill(key) if window.deck.filled == key else None)

    def _restyle(self, now: float) -> None:
        window = self._session.window
        window.theme.set_name("light")
        window.zoom_text(1)
        self._later(now + 3, lambda: (window.theme.set_name("dark"), window.zoom_text(-1)))

    def _resize(self, now: float) -> None:
        window, size = self._session.window, self._session.window.size()
        window.resize(1100, 800)
        self._later(now + 3, lambda: window.resize(size))

    # --- the engine ---

    def _ask(self, now: float) -> None:
        kind = self._rng.choice([name for name in KINDS if not (self._simulated and name == "beams")])
        prompt, workload = self._prompts.choose(180, self._rng), self._session.workload
        self.done[f"asked {kind}"] += 1
        workload.submit(Request(
            number=workload.next_number(), prompt=prompt.text, system=prompt.system,
            max_tokens=self._rng.choice([8, 32, 64]), label="soak", **KINDS[kind],
        ))  # fmt: skip

    def _drag(self, now: float) -> None:
        window, mirror = self._session.window, self._session.window.mirror
        stories = self._session.stories.shown
        if mirror.settings is None or (stories is not None and stories.going):
            return
        self._blocks = self._blocks or mirror.settings.kv_blocks * mirror.settings.block_size // 16
        key = self._rng.choice([*DRAGGED])
        value = DRAGGED[key][self._dragged[key] % len(DRAGGED[key])]
        self._dragged[key] += 1
        if key == "kv_blocks":
            value = int(value * self._blocks * 16 / mirror.settings.block_size)
        along = {"swap_blocks": SWAP_BLOCKS} if key == "preemption" else None
        window.controls.sender.wish(key, value, along)

    def _pause(self, now: float) -> None:
        transport = self._session.window.transport
        if not transport.paused:
            transport.toggle()
            self._later(now + 0.4, transport.step)
            self._resting_until = now + 0.8

    def _check(self, now: float) -> None:
        self._session.window.check_request()

    def _abort(self, now: float) -> None:
        self._session.window.abort_all()

    def _story(self, now: float) -> None:
        window, stories = self._session.window, self._session.stories
        if stories.shown is None and stories.listed:
            window.telling.begin(self._rng.randrange(len(stories.listed)))
            self._later(now + 6, stories.leave)
            self._later(now + 12, window.telling.close)

"""Requests and playground: type a prompt, watch it stream with its drafted tokens coloured, many at once."""

from __future__ import annotations

import time
from bisect import bisect_right

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QHBoxLayout, QLayout, QMenu, QPushButton, QSplitter, QVBoxLayout, QWidget

from engine.records import PROMPT_SHOWN, Abort, Refused, Request, Sampling
from ui import explain, simulated
from ui.changes import Kinds
from ui.context import ViewContext
from ui.dock import Elided
from ui.latency import FinishedRequest
from ui.paint.text_flow import Run, TextFlow
from ui.sequences import SequenceInfo
from ui.shadow_words import Told
from ui.views import token_styles
from ui.views.base import View
from ui.views.check_line import CheckLine
from ui.views.checks import Checks
from ui.views.composer import Asked, Composer
from ui.views.pace import Pace
from ui.views.request_list import RequestList, describe
from ui.views.style_key import StyleKey
from ui.views.token_styles import NOTE, PROMPT

LINGER = 2.0  # s that a followed text stays after its end, so that its last words can be read
SHOWN_REFUSALS = 5
_TEXT_SHARE = 0.64  # of the width: the streamed text is what an audience reads
_LARGE = 1.4  # times the usual size of text, where the view has much room


def told(prompt: str) -> str:
    """A prompt above its answer; one that records carry only the beginning of ends in an ellipsis."""
    return prompt.rstrip() + ("…" if len(prompt) >= PROMPT_SHOWN else "") + "\n\n"


class RequestsView(View):
    """With nothing selected it follows the newest running request, and stays with it to its end.

    Attributes:
        composer, list, text: its three parts. check: how the request shown compares with a run without drafts.
        shown: the sequence whose text is shown.
    """

    key = "requests"
    title = "Requests"
    what_if = True
    rate = 20.0
    kinds = (
        Kinds.TOKENS | Kinds.QUEUE | Kinds.STEPS | Kinds.CURSOR | Kinds.SELECTION | Kinds.THEME | Kinds.SOURCE
    )  # fmt: skip

    def __init__(self, context: ViewContext, parent: QWidget | None = None):
        super().__init__(context, parent)
        theme = context.theme
        self.shown: int | None = None
        self._awaited: dict[int, str] = {}  # number → prompt of what was sent from here and has no sequence yet
        self._found: tuple[tuple[int | None, int], FinishedRequest | None] = (None, -1), None
        self._by_hand = False  # the user moved the border between list and text
        self._pace = Pace(0.12)  # of the list; the text streams with every frame
        self._ended = 0.0  # when the followed request was first seen to have ended
        self.composer = Composer(theme)
        self.list = RequestList(theme)
        self.text = TextFlow()
        self.status = Elided(theme, "small", "text_dim")
        self.check_line, self.what_if_line = CheckLine(theme), CheckLine(theme)
        self.checks = Checks(context)
        self.key_line = StyleKey(theme)
        self.abort_button = self._button("Abort", "Stop this request; what it has written stays")
        self.copy_button = self._button("Copy", "Copy the answer")
        self.check_button = self._button("Check", "")
        self._large = False  # there is room for larger text
        self._build()
        self.list.failed.connect(self.failed)
        self.composer.submitted.connect(self.send)
        self.list.chosen.connect(lambda seq: self.context.selection.toggle(seq))
        self.abort_button.clicked.connect(self.abort)
        self.copy_button.clicked.connect(self.copy)
        self.check_button.clicked.connect(self.check)
        self.list.menu_wanted.connect(lambda seq, at: self.menu_of(seq).popup(at))
        self.restyle()

    def _button(self, words: str, tip: str) -> QPushButton:
        button = QPushButton(words)
        button.setProperty("kind", "segment")
        button.setToolTip(tip)
        return button

    def _build(self) -> None:
        self._right = QWidget()
        right, bar = QVBoxLayout(self._right), QHBoxLayout()
        bar.addWidget(self.status, 1)
        bar.addWidget(self.check_button)
        bar.addWidget(self.copy_button)
        bar.addWidget(self.abort_button)
        right.addLayout(bar)
        right.addWidget(self.what_if_line)
        right.addWidget(self.check_line)
        right.addWidget(self.text, 1)
        right.addWidget(self.key_line)
        for box in (right, bar):
            box.setContentsMargins(0, 0, 0, 0)
        self._column = right
        self.splitter = QSplitter(Qt.Orientation.Horizontal)
        self.splitter.setChildrenCollapsible(False)
        self.splitter.addWidget(self.list)
        self.splitter.addWidget(self._right)
        self.splitter.setStretchFactor(1, 1)
        self.splitter.splitterMoved.connect(self._divided)
        self._outer = QVBoxLayout(self)
        self._outer.addWidget(self.composer)
        self._outer.addWidget(self.splitter, 1)
        self._outer.setSizeConstraint(QLayout.SizeConstraint.SetNoConstraint)
        for widget in (self._right, self.text, self.splitter):
            widget.setMinimumSize(0, 0)

    # --- doing ---

    def send(self, asked: Asked) -> None:
        """Submit a request of the user's own, and show it as soon as the engine knows it."""
        if self.context.source.state in ("dead", "ended"):
            self.composer.give_back(asked.prompt, "The engine isn't running: restart it, then send this again.")
            return
        number = self.context.workload.next_number()
        self._awaited[number] = asked.prompt
        self.context.workload.submit(
            Request(
                number=number,
                prompt=asked.prompt,
                max_tokens=asked.most,
                n=1 if asked.beams else asked.ways,
                beams=asked.ways if asked.beams else 0,
                sampling=Sampling(temperature=None if asked.beams else asked.temperature),
                label="playground",
            )
        )

    def abort(self) -> None:
        info = self._info()
        if info is not None and info.status in ("running", "waiting"):
            source = self.context.source
            source.send(Abort(id=source.next_id(), number=info.number))

    def copy(self) -> None:
        found = self._info() or self._finished()
        if found is not None:
            QGuiApplication.clipboard().setText(found.text)

    def check(self) -> None:
        """Run the request shown again without drafts, or stop that; it stays in sight."""
        entry = self._info() or self._finished()
        if entry is None:
            return
        offer = self.checks.offer(entry)
        if offer.enabled:
            self.checks.ask(entry)
        else:
            self.checks.refuse(entry, offer.why)
        self.context.selection.choose(entry.seq)
        self._show_text()

    def menu_of(self, seq: int) -> QMenu:
        """What can be done with a request of the list, which is shown from now on."""
        self.context.selection.choose(seq)
        self.refresh(Kinds.SELECTION)
        menu, offer = QMenu(self), self.checks.offer(self._info() or self._finished())
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        what = "" if offer.words == "Stop check" else ": run without drafts"
        for words, call, enabled in (
            (f"{offer.words}{what}\tV", self.check, offer.enabled),
            ("Copy the answer", self.copy, self.copy_button.isEnabled()),
            ("Abort", self.abort, self.abort_button.isEnabled()),
        ):
            action = menu.addAction(words)
            action.setEnabled(enabled)
            action.triggered.connect(lambda _=False, call=call: call())
        return menu

    # --- showing ---

    def refresh(self, kinds: Kinds) -> None:
        if kinds & Kinds.THEME:
            self.restyle()
        self._greet()
        self._choose()
        if self._pace.due(self.context) or kinds & (Kinds.SELECTION | Kinds.THEME | Kinds.CURSOR):
            self._show_list()
        self._show_text()

    def _show_list(self) -> None:
        state, history = self.context.cursor.state, self.context.mirror.history
        running = [state.sequences[seq] for seq in reversed(state.running) if seq in state.sequences]
        waiting = [state.sequences[seq] for seq in state.waiting if seq in state.sequences]
        refused = [n for n in self.context.mirror.notices if isinstance(n, Refused)][-SHOWN_REFUSALS:]
        finished = history.requests
        count = len(finished)
        if not self.context.cursor.is_live:
            count = bisect_right(finished, self.context.cursor.step, key=lambda r: r.finish_step)
        self.list.selected, self.list.shown, self.list.shadows = self.context.selection.seq, self.shown, state.shadows
        gone = history.latency.ended - len(finished)
        self.list.show_entries(running + waiting, len(running), refused, finished, count, gone)
        self.summarise(f"{len(running)} running · {len(waiting)} waiting · {count:,} finished")

    def _greet(self) -> None:
        """Select what was sent from here once it has a sequence; say why when it was refused."""
        if not self._awaited:
            return
        live = self.context.mirror.live
        for info in list(live.sequences.values()) + list(live.recent.values()):
            if self._awaited.pop(info.number, None) is not None:
                self.context.selection.choose(info.seq)
        for notice in self.context.mirror.notices:
            if isinstance(notice, Refused) and notice.number in self._awaited:
                self.composer.give_back(self._awaited.pop(notice.number), notice.message)
        if self.context.source.state in ("dead", "ended") and self._awaited:  # it died with them
            self.composer.give_back(self._awaited.popitem()[1], "The engine ended before it took this prompt.")
            self._awaited.clear()

    def _choose(self) -> None:
        """The selected sequence; else the one followed, until a little after its end."""
        state = self.context.cursor.state
        if self.context.selection.seq is not None:
            self.shown, self._ended = self.context.selection.seq, 0.0
            return
        info = None if self.shown is None else state.sequences.get(self.shown)
        if info is not None and info.status == "running":
            self._ended = 0.0
            return
        own = (s for s in reversed(state.running) if s in state.sequences and not state.sequences[s].shadow)
        newest = next(own, None)
        self._ended = self._ended or time.monotonic()
        if newest is None or (self.shown is not None and time.monotonic() - self._ended < LINGER
                              and self._info() is not None):  # fmt: skip
            return
        self.shown, self._ended = newest, 0.0

    def _info(self) -> SequenceInfo | None:
        return None if self.shown is None else self.context.cursor.state.info(self.shown)

    def _finished(self) -> FinishedRequest | None:
        """What is kept of the one shown; looked for among thousands when another is, or one more has ended."""
        latency = self.context.mirror.history.latency
        place = self.shown, latency.ended
        if self._found[0] != place:
            self._found = place, next((r for r in reversed(latency.requests) if r.seq == self.shown), None)
        return self._found[1]

    def _show_text(self) -> None:
        info = self._info()
        alive = info is not None and info.status in ("running", "waiting") and self.context.cursor.is_live
        self.abort_button.setEnabled(alive)
        if info is not None:
            runs: list[Run] = [(told(info.prompt), PROMPT)] if info.prompt else []
            runs += [(text, origin) for text, origin, _ in info.pieces]
            self.text.show_runs(info.seq, runs)
            self.status.set_text(self._told(info))
        elif (old := self._finished()) is not None:
            runs = [(told(old.prompt), PROMPT), (old.text, 0)]
            runs.append(("\n\nwhere its tokens came from is kept for the latest requests only", NOTE))
            self.text.show_runs(("old", old.seq), runs)
            row = describe(old)
            self.status.set_text(f"{row.name} · {row.state} · {row.right}")
        else:
            hint = (
                "No request yet. Type a prompt and press Enter, or start the workload: what is generated streams here."
            )
            if self.shown is not None:
                hint = f"Sequence {self.shown} is not known at this moment."
            self.text.show_runs(("none", self.shown), [(hint, NOTE)])
            self.status.set_text("")
        self.copy_button.setEnabled(self.text.written > 1)
        self._show_check(info or self._finished())

    def _show_check(self, entry: SequenceInfo | FinishedRequest | None) -> None:
        self.checks.settle()
        offer = self.checks.offer(entry)
        if offer.words != self.check_button.text():
            self.check_button.setText(offer.words)
        self.check_button.setToolTip(offer.why)
        self.check_button.setEnabled(offer.enabled)
        self.check_line.show_told(self.checks.told(entry))
        mirror = self.context.mirror
        provenance = self.context.source.provenance
        made = simulated.warning(entry, mirror.history.marks, mirror.settings, provenance)
        meaning = simulated.SOURCE_MEANING if provenance == "simulated" else simulated.MEANING
        self.what_if_line.show_told(Told("≈", made, "simulated", (), 1.0, meaning) if made else None)

    def _told(self, info: SequenceInfo) -> str:
        row = describe(info)
        parts = [row.name, row.state] if info.status in ("running", "waiting") else [row.name, explain.REASONS.get(
            info.finish_reason, info.finish_reason or info.status)]  # fmt: skip
        if info.preempted and info.fate is not None:
            parts.append(explain.fate(info.fate, self.context.cursor.state.block_size))
        parts.append(explain.count(info.output_tokens, "token"))
        if info.drafted:
            parts.append(f"✓ {info.accepted:,} of {info.drafted:,} drafts")
        if info.cached_tokens:
            parts.append(f"{info.cached_tokens:,} prompt tokens from the cache")
        if self.context.selection.seq is None:
            parts.append("following")
        return " · ".join(parts)

    def restyle(self) -> None:
        theme = self.context.theme
        px = theme.px
        self._restyle_text()
        self.text.setStyleSheet(f"QTextEdit {{ background: {theme.color('panel').name()}; border: none; padding: 0; }}")
        self.key_line.set_kinds(token_styles.kinds(theme))
        self._outer.setContentsMargins(px(12), px(4), px(12), px(8))
        self._outer.setSpacing(px(6))
        self._column.setSpacing(px(4))
        self.splitter.setHandleWidth(px(14))
        self.composer.restyle()
        self._arrange()

    def _restyle_text(self) -> None:
        theme = self.context.theme
        font = theme.font("body")
        if self._large:
            font.setPixelSize(round(font.pixelSize() * _LARGE))
        self.text.restyle(font, token_styles.formats(theme))
        for line in (self.check_line, self.what_if_line):
            line.set_large(self._large)

    # --- Qt ---

    def _divided(self) -> None:
        self._by_hand = True

    def _arrange(self) -> None:
        """List and text side by side when wide; else one over the other. What there is no room for is left out:
        first the list, then what is beside the text, then the prompt."""
        px, width, height = self.context.theme.px, self.width(), self.height()
        wide = width >= px(520)
        way = Qt.Orientation.Horizontal if wide else Qt.Orientation.Vertical
        if self.splitter.orientation() != way:
            self.splitter.setOrientation(way)
            self._by_hand = False
        inner = width - px(24)
        self.composer.restyle()
        self.composer.setVisible(height >= px(130))
        self.composer.set_room(inner, 2 if height >= px(420) else 1, height >= px(180))
        self.list.setVisible(height >= px(170 if wide else 380))
        column = round(inner * _TEXT_SHARE) if wide else inner
        self.abort_button.setVisible(column >= px(230))
        self.copy_button.setVisible(column >= px(300))
        self.check_button.setVisible(column >= px(230))
        self.status.setVisible(height >= px(80))
        self.key_line.setVisible(height >= px(200) and inner >= px(200))
        large = column >= px(620) and height >= px(480)
        if large != self._large:
            self._large = large
            self._restyle_text()
        if not self._by_hand:
            self.splitter.setSizes([inner - column, column] if wide else [height * 2 // 5, height * 3 // 5])

    def resizeEvent(self, event) -> None:
        super().resizeEvent(event)
        self._arrange()

    def minimumSizeHint(self) -> QSize:
        return QSize(self.context.theme.px(120), self.context.theme.px(60))

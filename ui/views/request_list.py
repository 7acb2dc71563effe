"""A list of requests, painted row by row: only the rows in sight cost anything, however many there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import islice

from PySide6.QtCore import QPoint, QRect, QSize, Qt, Signal
from PySide6.QtGui import QPainter
from PySide6.QtWidgets import QAbstractScrollArea, QFrame, QToolTip, QWidget

from engine.records import PREFILL, Refused, ShadowState
from ui import explain, shadow_words
from ui.latency import FinishedRequest
from ui.paint.guard import painting
from ui.paint.labels import RIGHT, advance, metrics, write
from ui.sequences import SequenceInfo
from ui.theme import Theme

Entry = SequenceInfo | FinishedRequest | Refused


@dataclass(frozen=True)
class Row:
    """What a row says. `share` is its progress, None without a bar; `token` colours its state."""

    seq: int | None
    name: str
    prompt: str
    state: str
    token: str
    right: str
    share: float | None = None
    bar: str = "decode"


def describe(entry: Entry, queue: int = 0, shadow: ShadowState | None = None) -> Row:
    """`queue`: place in the queue of a waiting request, counted from 1. `shadow`: how it compares with a run without
    drafts."""
    if isinstance(entry, Refused):
        return Row(None, f"request {entry.number}", entry.message, "refused", "danger", "")
    name = f"seq {entry.seq}"
    if isinstance(entry, FinishedRequest):
        state = "aborted" if entry.aborted else explain.REASONS.get(entry.reason, entry.reason)
        times = f"TTFT {explain.duration(entry.ttft)}"
        if entry.tpot is not None:
            times += f" · TPOT {explain.duration(entry.tpot)}"
        if shadow is not None:
            state = f"{shadow_words.mark(shadow)} · {state}"
        return Row(entry.seq, name, entry.prompt, f"{explain.count(entry.output_tokens, 'token')} · {state}",
                   "warning" if entry.aborted else "text_faint", times if entry.ttft is not None else "")  # fmt: skip
    if entry.shadow and entry.status in ("waiting", "running"):
        state = "again, no drafts" if entry.status == "running" else "again when nobody else has work"
        done = entry.output_tokens / max(1, entry.max_tokens) if entry.status == "running" else None
        right = f"{entry.output_tokens:,}/{entry.max_tokens:,} tokens"
        return Row(entry.seq, name, entry.prompt, state, "text_dim", right, done, "text_faint")
    if entry.status == "waiting":
        state = explain.preempted(entry.lost, entry.swapped) if entry.preempted else "waiting"
        return Row(entry.seq, name, entry.prompt, state, "warning" if entry.preempted else "text_dim",
                   f"#{queue} in the queue" if queue else "")  # fmt: skip
    if entry.status == "running" and (entry.first_token == 0 or entry.computed < entry.prompt_tokens):
        share = entry.computed / max(1, entry.known)
        return Row(entry.seq, name, entry.prompt, f"prefill {entry.computed:,}/{entry.known:,}", "prefill",
                   explain.count(entry.prompt_tokens, "prompt token"), share, "prefill")  # fmt: skip
    done = entry.last_row
    kind = "decode"
    if done is not None and done.drafted:
        kind = f"verify ✓{done.accepted}/{done.drafted}"
    elif done is not None and done.kind == PREFILL:
        kind = "prefill"
    most = max(1, entry.max_tokens)
    return Row(entry.seq, name, entry.prompt, kind, "decode", f"{entry.output_tokens:,}/{most:,} tokens",
               min(1.0, entry.output_tokens / most))  # fmt: skip


class RequestList(QAbstractScrollArea):
    """Running ones first, then waiting, refused, finished.

    Signals:
        chosen: a row's sequence was clicked. menu_wanted: (seq, where) of a right click.
        failed: painting raised this exception.

    Attributes:
        live: running and waiting. refused, finished: newest first when shown; given oldest first.
        selected: the sequence that is lit. shown: the one whose text is shown. shadows: comparisons by sequence.
    """

    chosen = Signal(int)
    menu_wanted = Signal(int, QPoint)
    failed = Signal(object)

    def __init__(self, theme: Theme, parent: QWidget | None = None):
        super().__init__(parent)
        self._theme = theme
        self.live: list[SequenceInfo] = []
        self.refused: list[Refused] = []
        self.finished: Sequence[FinishedRequest] = ()
        self._finished_count = 0
        self._gone = 0
        self._running = 0
        self.selected: int | None = None
        self.shown: int | None = None
        self.shadows: Mapping[int, ShadowState] = {}
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setAccessibleName("Requests")
        self.viewport().setMouseTracking(True)
        self.viewport().setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)

    def show_entries(
        self,
        live: list[SequenceInfo],
        running: int,
        refused: list[Refused],
        finished: Sequence[FinishedRequest],
        count: int,
        gone: int = 0,
    ) -> None:
        """`running`: how many of `live` run; `count`: how many of `finished`, from the oldest, exist at this moment;
        `gone`: how many older ones were there before them."""
        before, bar = len(self) + self._gone, self.verticalScrollBar()
        self.live, self._running, self.refused, self.finished, self._finished_count = (
            live,
            running,
            refused,
            finished,
            count,
        )
        self._gone = gone
        self._range()
        more = len(self) + gone - before
        if bar.value() and more > 0:  # the reader has scrolled: keep the rows where they are
            bar.setValue(bar.value() + more * self.pitch)
        self.viewport().update()

    def __len__(self) -> int:
        return len(self.live) + len(self.refused) + self._finished_count

    def entry(self, index: int) -> Entry:
        if index < len(self.live):
            return self.live[index]
        index -= len(self.live)
        if index < len(self.refused):
            return self.refused[-1 - index]
        return self.finished[self._finished_count - 1 - (index - len(self.refused))]

    def row(self, index: int) -> Row:
        waiting = index - self._running + 1 if self._running <= index < len(self.live) else 0
        entry = self.entry(index)
        return describe(entry, waiting, None if isinstance(entry, Refused) else self.shadows.get(entry.seq))

    def index_of(self, seq: int | None) -> int | None:
        """The row of a sequence, without making any row."""
        if seq is None:
            return None
        for index, info in enumerate(self.live):
            if info.seq == seq:
                return index
        newest_first = islice(reversed(self.finished), len(self.finished) - self._finished_count, None)
        after = len(self.live) + len(self.refused)
        return next((after + i for i, each in enumerate(newest_first) if each.seq == seq), None)

    @property
    def pitch(self) -> int:
        """Pixels a row."""
        line = metrics(self._theme.font("small")).height()
        return 2 * line + self._theme.px(10)

    def index_at(self, at: QPoint) -> int | None:
        index = (at.y() + self.verticalScrollBar().value()) // self.pitch
        return index if 0 <= index < len(self) else None

    def minimumSizeHint(self) -> QSize:
        return QSize(0, 0)

    def _range(self) -> None:
        bar = self.verticalScrollBar()
        bar.setRange(0, max(0, len(self) * self.pitch - self.viewport().height()))
        bar.setSingleStep(self.pitch)
        bar.setPageStep(self.viewport().height())

    # --- painting ---

    def paintEvent(self, event) -> None:
        painting(self.viewport(), lambda painter: self._paint(painter, event.rect()), self.failed.emit)

    def _paint(self, painter: QPainter, area: QRect) -> None:
        painter.fillRect(area, self._theme.color("panel"))
        top, pitch = self.verticalScrollBar().value(), self.pitch
        first = top // pitch
        last = min(len(self), (top + self.viewport().height()) // pitch + 1)
        for index in range(first, last):
            self._draw_row(painter, QRect(0, index * pitch - top, self.viewport().width(), pitch), self.row(index))

    def _draw_row(self, painter: QPainter, box: QRect, row: Row) -> None:
        theme = self._theme
        px, small = theme.px, theme.font("small")
        line = metrics(small).height()
        if row.seq is not None and row.seq == self.selected:
            painter.fillRect(box.adjusted(0, 0, 0, -1), theme.color("hover"))
        elif row.seq is not None and row.seq == self.shown:
            painter.fillRect(box.adjusted(0, 0, 0, -1), theme.color("raised"))
        color = theme.color("danger") if row.seq is None else theme.sequence_color(row.seq)
        painter.fillRect(QRect(box.left() + px(2), box.top() + px(4), px(4), box.height() - px(9)), color)
        inner = box.adjusted(px(14), px(3), -px(8), -px(6))
        upper = QRect(inner.left(), inner.top(), inner.width(), line)
        used = write(painter, upper, row.name, theme.font("mono_small"), theme.color("text_dim"))
        prompt = upper.adjusted(used + px(10), 0, 0, 0)
        write(painter, prompt, " ".join(row.prompt.split()), small, theme.color("text"))
        lower = QRect(inner.left(), upper.bottom() + 1, inner.width(), line)
        used = write(painter, lower, row.state, small, theme.color(row.token))
        rest = lower.adjusted(used + px(10), 0, 0, 0)
        if row.right and advance(small, row.right) <= rest.width():
            told = write(painter, rest, row.right, small, theme.color("text_dim"), RIGHT)
            rest.adjust(0, 0, -told - px(10), 0)
        if row.share is not None and rest.width() >= px(40):
            track = QRect(rest.left(), rest.center().y() - px(1), rest.width(), max(2, px(3)))
            painter.fillRect(track, theme.color("free"))
            painter.fillRect(QRect(track.left(), track.top(), round(track.width() * row.share), track.height()),
                             theme.color(row.bar))  # fmt: skip
        painter.fillRect(QRect(box.left(), box.bottom(), box.width(), 1), theme.color("raised"))

    # --- Qt ---

    def resizeEvent(self, event) -> None:
        super().resizeEvent(event)
        self._range()

    def mousePressEvent(self, event) -> None:
        index = self.index_at(event.position().toPoint())
        if index is not None and event.button() == Qt.MouseButton.LeftButton:
            seq = self.row(index).seq
            if seq is not None:
                self.chosen.emit(seq)

    def contextMenuEvent(self, event) -> None:
        index = self.index_at(event.pos())
        seq = None if index is None else self.row(index).seq
        if seq is not None:
            self.menu_wanted.emit(seq, event.globalPos())

    def mouseMoveEvent(self, event) -> None:
        index = self.index_at(event.position().toPoint())
        if index is None:
            QToolTip.hideText()
            return
        row = self.row(index)
        name, words, state = (escape(text) for text in (row.name, " ".join(row.prompt.split())[:300], row.state))
        QToolTip.showText(
            event.globalPosition().toPoint(), f"<p><b>{name}</b> {words}<br>{state} {row.right}</p>", self
        )

    def keyPressEvent(self, event) -> None:
        page = max(1, self.viewport().height() // self.pitch - 1)
        steps = {
            Qt.Key.Key_Up: -1, Qt.Key.Key_Down: 1, Qt.Key.Key_PageUp: -page, Qt.Key.Key_PageDown: page,
            Qt.Key.Key_Home: -len(self), Qt.Key.Key_End: len(self),
        }  # fmt: skip
        step = steps.get(event.key())
        if step is None or not len(self):
            super().keyPressEvent(event)
            return
        now = self.index_of(self.selected)
        self._go(min(len(self) - 1, max(0, (step - 1 if now is None else now + step))), 1 if step > 0 else -1)

    def _go(self, index: int, way: int) -> None:
        """Choose a row, or the next one that way that is a sequence's, and bring it in sight."""
        while 0 <= index < len(self) and isinstance(self.entry(index), Refused):
            index += way
        if not 0 <= index < len(self):
            return
        seq, bar, pitch = self.entry(index).seq, self.verticalScrollBar(), self.pitch
        bar.setValue(min(max(bar.value(), (index + 1) * pitch - self.viewport().height()), index * pitch))
        if seq != self.selected:
            self.chosen.emit(seq)

"""The timeline at the bottom, like a video player's: everything kept, folded to the width at hand, with a mark
where a setting changed and a play head. Dragging it pins the cursor; at its right end it is live again."""

from __future__ import annotations

import math
from html import escape
from time import monotonic

from PySide6.QtCore import QEvent, QPoint, QRect, QSize, Qt, Signal
from PySide6.QtGui import QFontMetrics, QImage, QMouseEvent, QPainter, QPaintEvent, QResizeEvent, QWheelEvent
from PySide6.QtWidgets import QFrame, QSizePolicy, QToolTip, QWidget

from ui import explain, figures
from ui.context import ViewContext
from ui.fold import bars, fold
from ui.history import Mark

_EVERY = 0.2  # s between two foldings of the live history; nothing to be seen moves faster
_LIVE_ZONE = 6  # pixels at the right end that mean 'live'


class Timeline(QFrame):
    """Activity, marks, play head, LIVE.

    Signals:
        live_wanted: the LIVE sign was clicked.
    """

    live_wanted = Signal()

    def __init__(self, context: ViewContext, parent: QWidget | None = None):
        super().__init__(parent)
        self.setObjectName("panel")
        self.setMouseTracking(True)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.setAccessibleName("Timeline")
        self._context, self._theme = context, context.theme
        self._image: QImage | None = None
        self._folded_at = 0.0
        self._span = (0, 0)  # first and last step on the track
        self._wanted: int | None = None  # where the mouse is dragging to; carried out once a frame
        self._dragging = False
        self._state = context.source.state
        self._short = False
        self.restyle()

    def set_short(self, short: bool) -> None:
        """There is no height to spare: leave the words below the track out."""
        if short != self._short:
            self._short = short
            self.restyle()

    def restyle(self) -> None:
        self.setFixedHeight(self._theme.px(36 if self._short else 52))
        self._image = None
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(400, self.height())

    # --- once a frame ---

    def refresh(self) -> None:
        """Carry out a drag; fold the history again when it is time to."""
        if self._wanted is not None:
            self._go(self._wanted)
            self._wanted = None
        history = self._context.mirror.history
        span = (history.first, history.last)
        due = monotonic() - self._folded_at > _EVERY
        if self._image is None or (span != self._span and due and not self._dragging):
            self._fold()
            self.update()
        if self._context.source.state != self._state:
            self._state = self._context.source.state
            self.update()

    def cursor_moved(self) -> None:
        self.update()

    # --- geometry ---

    @property
    def track(self) -> QRect:
        px = self._theme.px
        metrics = QFontMetrics(self._theme.font("strong"))
        side = max(metrics.horizontalAdvance("LIVE"), metrics.horizontalAdvance("→ LIVE")) + px(40)
        left = px(16)
        return QRect(left, px(6 if self._short else 8), max(1, self.width() - left - side), px(24))

    def step_at(self, x: int) -> int:
        first, last = self._span
        track = self.track
        share = min(1.0, max(0.0, (x - track.left()) / max(1, track.width() - 1)))
        return first + round(share * (last - first))

    def x_of(self, step: int) -> int:
        first, last = self._span
        track = self.track
        share = (step - first) / (last - first) if last > first else 1.0
        return track.left() + round(min(1.0, max(0.0, share)) * (track.width() - 1))

    def marks_at(self, x: int) -> list[Mark]:
        """The marks within a few pixels, the latest last."""
        near = self._theme.px(5)
        first = self._span[0]
        return [m for m in self._context.mirror.history.marks if m.step >= first and abs(self.x_of(m.step) - x) <= near]

    # --- drawing ---

    def _fold(self) -> None:
        history, track, theme = self._context.mirror.history, self.track, self._theme
        columns = history.slice()
        self._span = (history.first, history.last)
        self._folded_at = monotonic()
        count = max(1, round(track.width() * self.devicePixelRatioF()) // 2)
        decode = fold(columns.decode + columns.accepted + columns.rejected, count)
        prefill = fold(columns.prefill, count)
        top = max(1.0, float((decode + prefill).max(initial=0.0)))
        # a root, because one prefill can be a hundred times a decode and both must be seen
        total = (decode + prefill) / top
        height = total**0.5
        share = decode / (decode + prefill + 1e-9)
        rgb = tuple(
            theme.mix(token, amount, "bg").rgba() for token, amount in (("bg", 1), ("decode", 0.55), ("prefill", 0.6))
        )
        pixels = bars(height * share, height * (1 - share), track.height(), rgb)
        rows, wide = pixels.shape
        image = QImage(pixels.tobytes(), wide, rows, 4 * wide, QImage.Format.Format_RGB32)
        self._image = image.copy()  # the bytes die with this call

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        theme, track, cursor = self._theme, self.track, self._context.cursor
        painter = QPainter(self)
        painter.fillRect(track, theme.color("bg"))
        if self._image is not None:
            painter.drawImage(track, self._image)
        live = cursor.is_live
        head = track.right() if live else self.x_of(cursor.step)
        if not live:
            rest = QRect(head, track.top(), track.right() - head + 1, track.height())
            painter.fillRect(rest, theme.color("panel", 0.72))
        self._paint_unreachable(painter, track)
        self._paint_marks(painter, track)
        sign, token = self._sign(live)
        self._paint_head(painter, track, head, token)
        self._paint_words(painter, track, live, sign, token)
        painter.end()

    def _paint_unreachable(self, painter: QPainter, track: QRect) -> None:
        """Steps whose figures are kept, but whose blocks and tables are not any more."""
        first = self._context.mirror.first_step
        if first > self._span[0]:
            width = self.x_of(first) - track.left()
            painter.fillRect(QRect(track.left(), track.top(), width, track.height()), self._theme.color("panel", 0.6))

    def _paint_marks(self, painter: QPainter, track: QRect) -> None:
        theme, size = self._theme, self._theme.px(3)
        colour = theme.color("mark")
        seen = -10
        for mark in self._context.mirror.history.marks:
            if mark.step < self._span[0] or (x := self.x_of(mark.step)) == seen:
                continue
            seen = x
            painter.fillRect(QRect(x, track.top() - theme.px(2), 1, track.height() + theme.px(4)), colour)
            painter.fillRect(QRect(x - size + 1, track.top() - theme.px(4), 2 * size - 1, size), colour)

    def _sign(self, live: bool) -> tuple[str, str]:
        """What stands at the right end, and its colour."""
        if not live:
            return "→ LIVE", "mark"
        if self._context.source.state in ("dead", "ended"):
            return "■ END", "danger"
        return ("● LIVE", "accepted") if self._context.source.state == "ready" else ("● LIVE", "unavailable")

    def _paint_head(self, painter: QPainter, track: QRect, x: int, token: str) -> None:
        theme = self._theme
        colour = theme.color(token)
        painter.fillRect(QRect(x - 1, track.top() - theme.px(2), theme.px(2), track.height() + theme.px(4)), colour)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(theme.pen("panel", 2))
        painter.setBrush(colour)
        painter.drawEllipse(QPoint(x, track.center().y()), theme.px(7), theme.px(7))
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)

    def _paint_words(self, painter: QPainter, track: QRect, live: bool, sign: str, token: str) -> None:
        theme, px = self._theme, self._theme.px
        painter.setFont(theme.font("strong"))
        painter.setPen(theme.color(token))
        side = QRect(track.right() + px(16), track.top(), self.width() - track.right() - px(16), track.height())
        middle = Qt.AlignmentFlag.AlignVCenter
        painter.drawText(side, middle, sign)
        if self._short:
            return
        room = self.width() - track.left() - px(16)
        below = QRect(track.left(), track.bottom(), room, self.height() - track.bottom())
        painter.setFont(theme.font("small"))
        painter.setPen(theme.color("text_dim"))
        painter.drawText(below, middle | Qt.AlignmentFlag.AlignLeft, self._kept())
        painter.setPen(theme.color("text_dim" if live else "mark"))
        painter.drawText(below, middle | Qt.AlignmentFlag.AlignRight, self.moment())

    def _kept(self) -> str:
        history = self._context.mirror.history
        if not len(history):
            return "Nothing has run yet"
        columns = history.slice()
        seconds = (int(columns.end[-1]) - int(columns.clock[0])) / 1e9
        return f"{explain.duration(seconds)} · {explain.count(len(history), 'step')} kept"

    def moment(self) -> str:
        """Which moment is shown: 'step 8,412 · 12.3 s ago'."""
        cursor, mirror = self._context.cursor, self._context.mirror
        if cursor.is_live:
            return f"step {mirror.last_step:,}"
        ago = (mirror.live.clock - cursor.clock) / 1e9
        return f"step {cursor.step:,} · {explain.duration(max(0.0, ago))} ago"

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._image = None

    # --- mouse ---

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() != Qt.MouseButton.LeftButton:
            return
        x = round(event.position().x())
        if x > self.track.right() + self._theme.px(_LIVE_ZONE):
            self.live_wanted.emit()
        else:
            self._dragging = True
            self._go(x)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        x = round(event.position().x())
        if self._dragging:
            self._wanted = x
        self._tell(x, event.globalPosition().toPoint())

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if self._dragging:
            self._dragging, self._wanted = False, None
            self._go(round(event.position().x()))

    def wheelEvent(self, event: QWheelEvent) -> None:
        self._context.cursor.move(1 if event.angleDelta().y() < 0 else -1)

    def leaveEvent(self, event: QEvent) -> None:
        QToolTip.hideText()

    def _go(self, x: int) -> None:
        if x >= self.track.right() - self._theme.px(_LIVE_ZONE) // 2:
            self._context.cursor.live()
        elif len(self._context.mirror.history):
            self._context.cursor.pin(self.step_at(x))

    def _tell(self, x: int, where: QPoint) -> None:
        if not len(self._context.mirror.history) or not self.track.left() <= x <= self.track.right():
            return
        marks = self.marks_at(x)
        QToolTip.showText(where - QPoint(0, self._theme.px(64)), self.story(marks[-1]) if marks else self._at(x), self)

    def _at(self, x: int) -> str:
        step = self.step_at(x)
        columns = self._context.mirror.history.slice(step, step)
        if not len(columns):
            return f"step {step:,}"
        ago = (self._context.mirror.live.clock - int(columns.end[0])) / 1e9
        return f"step {step:,} · {explain.duration(max(0.0, ago))} ago"

    def story(self, mark: Mark) -> str:
        """What changed, and the figures before and after it."""
        if mark.key == "engine":
            return f"<b>The engine was started again</b><br>step {mark.step:,}"
        if mark.key == "compiled":
            return f"<b>Step {mark.step:,} waited</b><br>{escape(str(mark.new))}"
        told = figures.around(self._context.mirror, mark, self._context.goals.targets)
        rows = "".join(
            f"<tr><td>{name}&nbsp;&nbsp;</td><td align=right>{before}</td><td>&nbsp;→&nbsp;</td>"
            f"<td align=right>{after}</td></tr>"
            for name, before, after in (
                ("tokens/s", _rate(told.before.tokens_per_s), _rate(told.after.tokens_per_s)),
                ("TTFT p50", explain.duration(told.before.ttft_p50), explain.duration(told.after.ttft_p50)),
                ("TPOT p50", explain.duration(told.before.tpot_p50), explain.duration(told.after.tpot_p50)),
                ("goodput/s", _rate(told.before.goodput), _rate(told.after.goodput)),
            )
        )
        title = explain.change(mark.key, mark.old, mark.new)
        return f"<b>{title}</b> at step {mark.step:,}<table cellspacing=0>{rows}</table>"


def _rate(value: float) -> str:
    return explain.rate(value) if math.isfinite(value) else "–"

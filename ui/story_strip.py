"""The strip of a story: what it is, how far it is, the caption in letters that the last row can read, and its buttons.

Hidden while there is none. Its height is that of two lines of caption, whatever the caption, so that the views below
never move while a story is told.
"""

from __future__ import annotations

from PySide6.QtCore import QRect, Qt, Signal
from PySide6.QtGui import QFont, QFontMetrics, QPainter, QPaintEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QPushButton, QSizePolicy, QVBoxLayout, QWidget

from ui.contracts import Stories, StoryShown
from ui.labels import as_plain
from ui.paint.labels import advance, metrics, paragraph, wrap, write
from ui.theme import Theme
from ui.transport import Transport

RUNS = ("run_a", "run_b")  # colours of the two runs, wherever they are drawn


class StoryStrip(QFrame):
    """Signals:
        curves_wanted: show both runs' curves, or put them away.
        close_wanted: forget the result.

    Attributes:
        caption: the words shown. pause, next, curves, leave: the buttons; `leave` also closes a result.
    """

    curves_wanted = Signal()
    close_wanted = Signal()

    def __init__(self, theme: Theme, stories: Stories, transport: Transport, parent: QWidget | None = None):
        super().__init__(parent)
        self.setObjectName("panel")
        self._theme, self._stories, self._transport = theme, stories, transport
        self._shown: StoryShown | None = None
        self._paused: bool | None = None
        self._gone = False  # the engine is
        self._short = False
        self._head = _Head(theme)
        self.caption = _Caption(theme)
        self.pause = _button("Pause", "Pause the engine and the story (Space)")
        self.next = _button("Next", "Go on without waiting for the caption (N)")
        self.curves = _button("Curves", "Both runs on one plot")
        self.leave = _button("Leave", "")
        self.pause.clicked.connect(transport.toggle)
        self.next.clicked.connect(stories.skip)
        self.curves.clicked.connect(self.curves_wanted)
        self.leave.clicked.connect(self._leave)
        self._words = QVBoxLayout()
        self._words.addWidget(self._head)
        self._words.addWidget(self.caption, 1)
        self._row = QHBoxLayout(self)
        self._row.addLayout(self._words, 1)
        for button in (self.pause, self.next, self.curves, self.leave):
            self._row.addWidget(button, 0, Qt.AlignmentFlag.AlignVCenter)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.restyle()
        self.hide()

    def restyle(self) -> None:
        px = self._theme.px
        self._row.setContentsMargins(px(16), px(8), px(12), px(8))
        self._row.setSpacing(px(8))
        self._words.setSpacing(px(4))
        line = QFontMetrics(self._theme.font("brand")).lineSpacing()
        self.caption.setFixedHeight(line if self._short else 2 * line)
        self._head.setFixedHeight(QFontMetrics(self._theme.font("small")).height() + px(2))
        self.updateGeometry()

    def set_short(self, short: bool) -> None:
        """There is no height to spare: one line of caption."""
        if short != self._short:
            self._short = short
            self.restyle()

    def refresh(self) -> bool:
        """Follow the story; True when anything of it is another."""
        shown, paused, gone = self._stories.shown, self._transport.paused, self._transport.gone
        if shown is self._shown and (paused, gone) == (self._paused, self._gone):
            return False
        self._shown, self._paused, self._gone = shown, paused, gone
        self.setVisible(shown is not None)
        if shown is None:
            return True
        waits = paused and shown.going
        self._head.show_story(shown, waits, gone)
        self.caption.set_text(shown.caption, "danger" if shown.stage == "failed" else "text", shown.stage == "over")
        self.pause.setText("Resume" if paused else "Pause")
        self.pause.setVisible(shown.going and not gone)
        self.next.setVisible(shown.going and not gone)
        self.next.setEnabled(shown.stage == "telling" and not paused)
        self.curves.setVisible(bool(shown.panels))
        restoring = shown.stage == "restoring"
        self.leave.setText("Leave" if shown.going and not restoring else "Close")
        tip = "End it now; the settings from before come back (L)" if shown.going else "Put the result away"
        if restoring:
            tip = "Put it away; the settings from before come back all the same (L)"
        self.leave.setToolTip(tip)
        self.leave.setAccessibleName(tip)
        return True

    def _leave(self) -> None:
        if self._shown is not None and self._shown.going:
            self._stories.leave()
        else:
            self.close_wanted.emit()


class _Head(QWidget):
    """'Story · Reserve or page', and both runs by name with how far they are."""

    def __init__(self, theme: Theme, parent: QWidget | None = None):
        super().__init__(parent)
        self._theme = theme
        self._shown: StoryShown | None = None
        self._paused = self._gone = False

    def show_story(self, shown: StoryShown, paused: bool, gone: bool) -> None:
        self._shown, self._paused, self._gone = shown, paused, gone
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        shown, theme = self._shown, self._theme
        if shown is None:
            return
        px, painter = theme.px, QPainter(self)
        small, strong = theme.font("small"), theme.font("strong")
        x = write(painter, self.rect(), shown.title, strong, theme.color("text")) + px(16)
        bar = px(96)
        for index, name in enumerate(shown.names):
            room = QRect(x, 0, max(0, self.width() - x), self.height())
            colour = theme.color(RUNS[index] if index <= shown.part else "text_faint")
            x += write(painter, room, name, small, colour) + px(8)
            track = QRect(x, self.height() // 2 - px(2), bar, px(4))
            if track.right() > self.width():
                break
            painter.fillRect(track, theme.color("border"))
            painter.fillRect(
                QRect(track.left(), track.top(), round(bar * shown.progress[index]), track.height()),
                theme.color(RUNS[index]),
            )
            x += bar + px(16)
        words, token = self._state(shown)
        write(painter, QRect(x, 0, max(0, self.width() - x), self.height()), words, small, theme.color(token))
        painter.end()

    def _state(self, shown: StoryShown) -> tuple[str, str]:
        if self._paused:
            return "paused: Space goes on", "warning"
        if self._gone and shown.going:
            return "once the engine runs again, the settings from before come back", "text_faint"
        if shown.stage == "restoring":
            return "bringing the settings back", "text_faint"
        return shown.note, "text_faint"


class _Caption(QWidget):
    """Up to two lines of words; one line in larger letters where it is a verdict. The tooltip says it whole."""

    def __init__(self, theme: Theme, parent: QWidget | None = None):
        super().__init__(parent)
        self._theme, self._text, self._token, self._large = theme, "", "text", False
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)

    def text(self) -> str:
        return self._text

    def set_text(self, text: str, token: str, large: bool) -> None:
        if (text, token, large) != (self._text, self._token, self._large):
            self._text, self._token, self._large = text, token, large
            self.setAccessibleName(text)
            self.setToolTip(as_plain(text))
            self.update()

    def _font(self) -> QFont:
        """The largest in which all of it is seen; where none is, words are left out of middling letters."""
        for role in ("brand", "title", "small"):
            font = self._theme.font(role)
            lines = len(wrap(self._text, font, self.width()))
            if lines * metrics(font).lineSpacing() <= self.height():
                return font
        return self._theme.font("title")

    def paintEvent(self, event: QPaintEvent) -> None:
        painter, colour = QPainter(self), self._theme.color(self._token)
        large, font = self._theme.font("headline"), self._font()
        if self._large and self.height() >= metrics(large).height() and advance(large, self._text) <= self.width():
            write(painter, self.rect(), self._text, large, colour)
        else:
            high = min(self.height(), metrics(font).lineSpacing() * len(wrap(self._text, font, self.width())))
            lines = QRect(0, (self.height() - high) // 2, self.width(), high)
            paragraph(painter, lines, self._text, font, colour)
        painter.end()


def _button(text: str, tip: str) -> QPushButton:
    button = QPushButton(text)
    button.setToolTip(tip)
    button.setAccessibleName(tip or text)
    button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
    return button

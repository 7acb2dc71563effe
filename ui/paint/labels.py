"""Text and legends in rectangles: elided, dropped when there is no room, never overlapping."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QRect, QSize, Qt
from PySide6.QtGui import QColor, QFont, QFontMetrics, QPainter, QPen, QPixmap, QStaticText, QTransform
from PySide6.QtWidgets import QWidget

from ui.theme import Theme

LEFT, CENTER, RIGHT = 0.0, 0.5, 1.0  # share of the spare width that goes before the text

# Texts remembered, in two halves: a screenful of running numbers. What wasn't painted since the younger half began goes
# with the older one, so that no frame has to shape all of its text again. Each takes about 3 KB.
_KEPT = 4_000
# of an empty panel: from which width and height on, pixels at text scale 1, what is missing and what would bring it are
# written so large
_EMPTY = ((720, 240, "headline", "brand"), (380, 130, "brand", "body"))
_Texts = dict[tuple[str, str], tuple[int, QStaticText]]
_young: _Texts = {}
_old: _Texts = {}
_metrics: dict[str, QFontMetrics] = {}


def _prepared(font: QFont, text: str, key: str) -> tuple[int, QStaticText]:
    """Shaping is the dearest part of painting text: it is done once per font and text, and kept."""
    place = (key, text)
    found = _young.get(place)
    if found is None:
        found = _old.get(place) or _shaped(font, text, key)
        if len(_young) >= _KEPT // 2:
            _old.clear()
            _old.update(_young)
            _young.clear()
        _young[place] = found
    return found


def _shaped(font: QFont, text: str, key: str) -> tuple[int, QStaticText]:
    shaped = QStaticText(text)
    shaped.setTextFormat(Qt.TextFormat.PlainText)
    shaped.setPerformanceHint(QStaticText.PerformanceHint.AggressiveCaching)
    shaped.prepare(QTransform(), font)
    return metrics(font, key).horizontalAdvance(text), shaped


def metrics(font: QFont, key: str = "") -> QFontMetrics:
    """The font's metrics, kept."""
    key = key or font.key()
    found = _metrics.get(key)
    if found is None:
        found = _metrics[key] = QFontMetrics(font)
    return found


def advance(font: QFont, text: str, key: str = "") -> int:
    """Pixels that a line of text takes. `key` is `font.key()`, where the caller has it at hand: asking for it
    costs as much as the look-up."""
    return _prepared(font, text, key or font.key())[0]


def put(painter: QPainter, x: int, y: int, height: int, text: str, font: QFont, color: QColor, key: str = "") -> int:
    """One line from `x` on, in the middle of `height` pixels below `y`; neither cut nor elided. Returns its width."""
    key = key or font.key()
    width, shaped = _prepared(font, text, key)
    painter.setFont(font)
    painter.setPen(color)
    painter.drawStaticText(x, y + (height - metrics(font, key).height()) // 2, shaped)
    return width


def write(painter: QPainter, rect: QRect, text: str, font: QFont, color: QColor, where: float = LEFT) -> int:
    """One line in `rect`, elided at its end; returns its width in pixels. Nothing when the rectangle is too small."""
    key = font.key()
    measure, room = metrics(font, key), rect.width()
    if rect.height() < measure.ascent() or room < measure.averageCharWidth() or not text:
        return 0
    width = advance(font, text, key)
    if width > room:
        text = measure.elidedText(text, Qt.TextElideMode.ElideRight, room)
        if len(text) < 3:  # an ellipsis alone says nothing
            return 0
        width = advance(font, text, key)
    return put(painter, rect.left() + int((room - width) * where), rect.top(), rect.height(), text, font, color, key)


def paragraph(painter: QPainter, rect: QRect, text: str, font: QFont, color: QColor, where: float = LEFT) -> int:
    """Wrapped text in `rect`; whole lines only, the last elided; returns its height in pixels."""
    lines = wrap(text, font, rect.width())
    step = metrics(font).lineSpacing()
    room = max(0, rect.height() // step)
    if len(lines) > room > 0:
        lines = [*lines[: room - 1], " ".join(lines[room - 1 :])]
    for index, line in enumerate(lines[:room]):
        write(painter, QRect(rect.left(), rect.top() + index * step, rect.width(), step), line, font, color, where)
    return min(len(lines), room) * step


def empty(painter: QPainter, area: QRect, theme: Theme, headline: str, hint: str) -> None:
    """The middle of an empty panel: what is missing, and what would bring it, the larger the panel is."""
    wide, high, px = area.width(), area.height(), theme.px
    head, body, most = "strong", "small", wide
    for wanted, least, *roles in _EMPTY:
        if wide >= px(wanted) and high >= px(least) and advance(theme.font(roles[0]), headline) <= wide:
            (head, body), most = roles, px(wanted)
            break
    title, step = metrics(theme.font(head)).height(), metrics(theme.font(body)).lineSpacing()
    column = min(wide, most)  # lines longer than that are read badly
    room = max(1, (high - title - px(6)) // step)
    lines = len(wrap(hint, theme.font(body), column))
    even = advance(theme.font(body), hint) * 9 // max(1, 8 * lines)
    if lines > 1 and len(wrap(hint, theme.font(body), even)) == lines:  # no word stands alone in the last one
        column = even
    tall = title + px(6) + step * min(room, lines)
    top = area.top() + max(0, (high - tall) // 2)
    write(painter, QRect(area.left(), top, wide, title), headline, theme.font(head), theme.color("text"), CENTER)
    below = top + title + px(6)
    rest = QRect(area.left() + (wide - column) // 2, below, column, max(0, area.bottom() + 1 - below))
    paragraph(painter, rest, hint, theme.font(body), theme.color("text_dim"), CENTER)


def wrap(text: str, font: QFont, width: int) -> list[str]:
    """Lines of whole words, no wider than `width` where a word allows it."""
    key = font.key()
    space = advance(font, " ", key)
    lines: list[str] = []
    line, used = "", 0
    for word in text.split():
        wide = advance(font, word, key)
        longer = used + space + wide
        if line and longer > 0.94 * width:  # widths of words are rounded: near the edge the line itself is measured
            longer = QFontMetrics(font).horizontalAdvance(f"{line} {word}")
        if line and longer > width:
            lines.append(line)
            line, used = word, wide
        else:
            line, used = (f"{line} {word}", longer) if line else (word, wide)
    return [*lines, line] if line else lines


@dataclass(frozen=True)
class Key:
    """An entry of a legend: a swatch and its words."""

    color: QColor
    text: str
    symbol: str = ""

    @property
    def words(self) -> str:
        return f"{self.text} {self.symbol}".strip()


def legend_width(keys: list[Key], font: QFont, gap: int) -> int:
    """Pixels that all entries take."""
    swatch = max(6, metrics(font).ascent() * 3 // 4)
    return sum(swatch + swatch // 2 + advance(font, key.words) + gap for key in keys)


def legend(painter: QPainter, rect: QRect, keys: list[Key], font: QFont, color: QColor, gap: int) -> int:
    """Entries from left to right, the last ones left out when there is no room; returns the width used."""
    swatch = max(6, metrics(font).ascent() * 3 // 4)
    x = rect.left()
    for key in keys:
        width = swatch + swatch // 2 + advance(font, key.words)
        if x + width > rect.right() or rect.height() < metrics(font).ascent():
            break
        painter.fillRect(QRect(x, rect.center().y() - swatch // 2, swatch, swatch), key.color)
        put(painter, x + swatch + swatch // 2, rect.top(), rect.height(), key.words, font, color)
        x += width + gap
    return x - rect.left()


def badge(painter: QPainter, right: int, y: int, height: int, text: str, font: QFont, color: QColor) -> int:
    """A small outlined word ending at `right`; returns its width."""
    inside = advance(font, text)
    width = inside + height * 2 // 3
    box = QRect(right - width, y, width, height)
    painter.setPen(QPen(color))
    painter.setBrush(Qt.BrushStyle.NoBrush)
    painter.drawRoundedRect(box.adjusted(0, 0, -1, -1), height / 2, height / 2)
    put(painter, box.left() + (width - inside) // 2, y, height, text, font, color)
    return width


def layer(widget: QWidget, size: QSize) -> QPixmap:
    """A transparent picture of `size` logical pixels at the widget's resolution, to paint once and copy often."""
    ratio = widget.devicePixelRatioF()
    picture = QPixmap(size * ratio)
    picture.setDevicePixelRatio(ratio)
    picture.fill(Qt.GlobalColor.transparent)
    return picture

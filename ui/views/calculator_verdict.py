"""Whether it fits: one bar of weights, cache, free and headroom with the limit through it, and four large figures."""

from __future__ import annotations

from PySide6.QtCore import QRect
from PySide6.QtGui import QPainter, QPen

from ui import explain
from ui.calculator import Shown
from ui.labels import fitted
from ui.paint import stacked_bar
from ui.paint.labels import advance, metrics, write
from ui.theme import Theme

Columns = list[tuple[int, int]]
FOUR = 760  # pixels at text scale 1, from which the figures stand in one row


def height(theme: Theme, width: int) -> int:
    figure = metrics(theme.font("headline")).height() + metrics(theme.font("small")).height()
    rows = 1 if width >= theme.px(FOUR) else 2
    return theme.px(40) + metrics(theme.font("small")).height() + rows * (figure + theme.px(8))


def draw(painter: QPainter, area: QRect, theme: Theme, shown: Shown, columns: Columns) -> list[tuple[QRect, str]]:
    """`columns`: left and width of those that the figures stand in. Returns what the bar's parts tell, and where."""
    px, factors, told = theme.px, shown.factors, []
    card = shown.chosen.bytes
    usable = factors.usable(card)
    spare = usable - factors.needed
    bar = QRect(area.left(), area.top(), area.width(), px(30))
    small, line = theme.font("small"), metrics(theme.font("small")).height()
    names = ["weights", "KV cache", "free", "headroom"]
    tokens = ["weights", "kv_used", "kv_free", "baseline"]
    values = [factors.weights, factors.kv_held, max(0.0, spare), card - usable]
    if spare < 0:  # the bar is what would be needed; the card ends before it does
        values = [factors.weights, factors.kv_held, 0.0, 0.0]
    whole = max(card, factors.needed)
    if spare < 0 and factors.needed < card:
        values[3] = card - factors.needed
    colors = [theme.color(token) for token in tokens]
    boxes = stacked_bar.draw(painter, bar, values, colors, theme.color("panel"))
    if boxes[3].width():
        painter.setClipRect(boxes[3])
        painter.setPen(QPen(theme.color("text_faint"), 1))
        for x in range(boxes[3].left() - bar.height(), boxes[3].right(), px(7)):
            painter.drawLine(x, bar.bottom(), x + bar.height(), bar.top())
        painter.setClipping(False)
    for box, name, value, color in zip(boxes, names, values, colors, strict=True):
        ink = theme.ink_on(color)
        text = f"{name} {explain.size(value)}"
        for words in (text, name, name.partition(" ")[0]):
            room = box.width() - px(12)
            if advance(small, words) <= room:
                if name == "headroom":  # words over hatching need a ground
                    ground = QRect(box.left() + px(4), box.center().y() - line // 2, advance(small, words) + px(8),
                                   line)  # fmt: skip
                    painter.fillRect(ground, color)
                write(painter, box.adjusted(px(8), 0, 0, 0), words, small, ink)
                break
        told.append((box, f"{name}: {explain.size(value)} ({value:,.0f} B)"))
    _limit(painter, bar, theme, usable / whole, f"usable {explain.size(usable)}", spare < 0)
    tiles = QRect(area.left(), bar.bottom() + line + px(10), area.width(), area.bottom() - bar.bottom() - line
                  - px(10))  # fmt: skip
    _figures(painter, tiles, theme, shown, columns)
    return told


def _limit(painter: QPainter, bar: QRect, theme: Theme, share: float, words: str, over: bool) -> None:
    """A thin line through the bar, its value below it."""
    px = theme.px
    small, line = theme.font("small"), metrics(theme.font("small")).height()
    x = bar.left() + round(min(1.0, share) * (bar.width() - 1))
    token = "danger" if over else "limit"
    painter.fillRect(QRect(x, bar.top() - px(3), max(1, px(1)), bar.height() + px(6)), theme.color(token))
    wide = advance(small, words)
    left = max(bar.left(), min(x - wide // 2, bar.right() - wide))
    write(painter, QRect(left, bar.bottom() + px(4), wide + 2, line), words, small, theme.color(token))


def _figures(painter: QPainter, area: QRect, theme: Theme, shown: Shown, columns: Columns) -> None:
    """Large figures, each with its words below."""
    px, factors, card = theme.px, shown.factors, shown.chosen.bytes
    spare = factors.usable(card) - factors.needed
    longest, batch = factors.longest_context(card), factors.largest_batch(card)
    trained = f" · trained for {shown.trained:,}" if shown.trained and longest > shown.trained else ""
    tiles = [
        ("Fits" if spare >= 0 else "Too large",
         f"{explain.size(spare)} to spare" if spare >= 0 else f"by {explain.size(-spare)}",
         "measured" if spare >= 0 else "danger"),
        (f"{batch:,}", f"largest batch at {factors.context:,} tokens", "text"),
        (f"{longest:,}", f"longest context at batch {factors.batch:,}{trained}", "text"),
        (explain.size(factors.kv_per_token),
         f"KV a token · {explain.size(factors.kv_per_token * factors.block_size)} a block", "text"),
    ]  # fmt: skip
    big, small = theme.font("headline"), theme.font("small")
    high, line = metrics(big).height(), metrics(small).height()
    for index, (value, words, token) in enumerate(tiles):  # over the columns of what is below
        x, wide = columns[index % len(columns)]
        y = area.top() + index // len(columns) * (high + line + px(8))
        write(painter, QRect(x, y, wide, high), value, big, theme.color(token))
        words = fitted(words, metrics(small), wide)
        write(painter, QRect(x, y + high, wide, line), words, small, theme.color("text_dim"))

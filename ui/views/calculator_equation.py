"""A formula whose factors are inputs: operators and results painted, inputs placed between them, each under its name.

Wraps between terms where there is no room. Knows nothing of what is calculated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QPoint, QRect
from PySide6.QtGui import QPainter
from PySide6.QtWidgets import QAbstractSpinBox, QWidget

from ui.paint.labels import advance, metrics, put, write
from ui.theme import Theme


@dataclass
class Term:
    """`sign` before it, then an input or a text, `name` above. `result`: the text is what the line comes to."""

    name: str
    sign: str = ""
    box: QWidget | None = None
    text: str = ""
    result: bool = False
    after: str = ""  # behind the input


class Equation:
    """One line: `title` with a swatch in the colour that its bytes have in the bar."""

    def __init__(self, theme: Theme, title: str, token: str, terms: Sequence[Term]):
        self._theme, self._title, self._token = theme, title, token
        self.terms = list(terms)
        self._spots: list[QPoint] = []
        self._left = 0

    def restyle(self) -> None:
        """Inputs as wide as their names at least, so that signs stand evenly between them."""
        for term in self.terms:
            if isinstance(term.box, QAbstractSpinBox) and not term.after:
                least = advance(self._theme.font("small"), term.name)
                term.box.setFixedWidth(max(term.box.width(), least))

    @property
    def pitch(self) -> int:
        """Height of a line: names, inputs, space."""
        return self._name_height() + self._box_height() + self._theme.px(10)

    @property
    def title_width(self) -> int:
        return advance(self._theme.font("strong"), self._title) + self._theme.px(34)

    def width(self) -> int:
        """Of the terms in one line."""
        return sum(self._wide(term) for term in self.terms)

    def place(self, left: int, top: int, right: int, indent: int) -> int:
        """Inputs to their places; terms begin `indent` from the left. Returns the height."""
        self._left, self._spots = left, []
        x, y = left + indent, top
        for term in self.terms:
            wide = self._wide(term)
            if x + wide > right and x > left + indent:
                x, y = left + indent, y + self.pitch
            self._spots.append(QPoint(x, y))
            if term.box is not None:
                term.box.move(x + self._sign(term), y + self._name_height())
            x += wide
        return y + self.pitch - top

    def draw(self, painter: QPainter) -> None:
        theme = self._theme
        high, small = self._box_height(), theme.font("small")
        if self._spots:
            y = self._spots[0].y() + self._name_height()
            swatch = theme.px(10)
            painter.fillRect(QRect(self._left, y + (high - swatch) // 2, swatch, swatch), theme.color(self._token))
            put(painter, self._left + theme.px(18), y, high, self._title, theme.font("strong"), theme.color("text"))
        for term, spot in zip(self.terms, self._spots, strict=True):
            x, y = spot.x(), spot.y() + self._name_height()
            if term.sign:
                put(painter, x, y, high, term.sign, theme.font("body"), theme.color("text_dim"))
            x += self._sign(term)
            names = QRect(x, spot.y(), self._wide(term) + theme.px(8), self._name_height())
            write(painter, names, term.name, small, theme.color("text_faint"))
            if term.text:
                font = theme.font("title" if term.result else "body")
                put(painter, x, y, high, term.text, font, theme.color("text"))
            if term.after and term.box is not None:
                put(painter, x + term.box.width() + theme.px(4), y, high, term.after, theme.font("body"),
                    theme.color("text_dim"))  # fmt: skip

    def _sign(self, term: Term) -> int:
        return advance(self._theme.font("body"), term.sign) + self._theme.px(7) if term.sign else 0

    def _wide(self, term: Term) -> int:
        """A term with the space behind it."""
        theme = self._theme
        if term.box is not None:
            inside = term.box.width()
            if term.after:
                inside += theme.px(4) + advance(theme.font("body"), term.after)
        else:
            inside = advance(theme.font("title" if term.result else "body"), term.text)
            if term.result:  # figures come and go: the line must not move with every one
                inside = max(inside, advance(theme.font("title"), "0,000 GiB"))
        return self._sign(term) + max(inside, advance(theme.font("small"), term.name)) + theme.px(9)

    def _name_height(self) -> int:
        return metrics(self._theme.font("small")).height() + self._theme.px(2)

    def _box_height(self) -> int:
        return metrics(self._theme.font("body")).height() + self._theme.px(8)

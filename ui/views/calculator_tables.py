"""The calculator's two tables: what each card can hold, and the running engine's figures beside the formula's."""

from __future__ import annotations

from PySide6.QtCore import QRect
from PySide6.QtGui import QPainter

from engine.formulas import GIB
from ui import explain
from ui.calculator import Line, Shown, short
from ui.paint import stacked_bar
from ui.paint.labels import LEFT, RIGHT, advance, badge, metrics, write
from ui.theme import Theme

ROW = 22  # pixels at text scale 1, of a card
_LINE = 18  # of a line of the engine's table


def cards_height(theme: Theme, shown: Shown) -> int:
    return theme.px(ROW) * len(shown.cards) + 2 * _high(theme) + theme.px(14)


def draw_cards(painter: QPainter, area: QRect, theme: Theme, shown: Shown, under: int) -> list[QRect]:
    """`under`: the card below the mouse, or -1. Returns a rectangle for each card."""
    small, line, factors = theme.font("small"), _high(theme), shown.factors
    write(painter, QRect(area.left(), area.top(), area.width(), line), "Cards", theme.font("strong"),
          theme.color("text"))  # fmt: skip
    ends = _columns(theme, area)
    top = area.top() + line + theme.px(4)
    heads = (f"batch, s = {short(factors.context)}", f"context, b = {factors.batch:,}")
    for (left, right), head in zip(ends[2:], heads, strict=True):
        write(painter, QRect(left, top, right - left, line), head, small, theme.color("text_faint"), RIGHT)
    write(painter, QRect(ends[0][0], top, area.width() // 3, line), "driver's GiB", small, theme.color("text_faint"))
    top += line + theme.px(4)
    rows = []
    for index, card in enumerate(shown.cards):
        row = QRect(area.left(), top + index * theme.px(ROW), area.width(), theme.px(ROW))
        rows.append(row)
        chosen = index == shown.card
        if chosen or index == under:
            painter.fillRect(row, theme.color("hover" if chosen else "raised"))
        if chosen:
            painter.fillRect(QRect(row.left(), row.top(), theme.px(3), row.height()), theme.color("accent"))
        (left, right), (bar_left, bar_right), batch, context = ends
        ink = theme.color("text" if chosen else "text_dim")
        size = f"{card.bytes / GIB:,.1f}"
        wide = advance(small, "000.0")
        write(painter, QRect(left, row.top(), wide, row.height()), size, small, theme.color("text_faint"), RIGHT)
        name = QRect(left + wide + theme.px(8), row.top(), right - left - wide - theme.px(8), row.height())
        write(painter, name, card.name, theme.font("strong") if chosen else theme.font("body"), ink)
        _bar(painter, QRect(bar_left, row.center().y() - theme.px(4), bar_right - bar_left, theme.px(9)), theme, shown,
             card.bytes)  # fmt: skip
        most, longest = factors.largest_batch(card.bytes), factors.longest_context(card.bytes)
        if factors.weights > factors.usable(card.bytes):
            spot = QRect(batch[0], row.top(), context[1] - batch[0], row.height())
            write(painter, spot, "weights too large", small, theme.color("text_faint"), RIGHT)
            continue
        for (x, end), value in ((batch, most), (context, longest)):
            write(painter, QRect(x, row.top(), end - x, row.height()), f"{value:,}", theme.font("body"), ink, RIGHT)
    return rows


def _columns(theme: Theme, area: QRect) -> list[tuple[int, int]]:
    """Left and right of: size and name, bar, batch, context."""
    small, pad = theme.font("small"), theme.px(8)
    context = max(advance(theme.font("body"), "0,000,000"), advance(small, "context, b = 00")) + pad
    batch = max(advance(theme.font("body"), "00,000"), advance(small, "batch, s = 000k")) + pad
    right = area.right() - theme.px(6)
    name = advance(small, "000.0") + advance(theme.font("strong"), "A100 80 GB") + theme.px(20)
    left = area.left() + theme.px(10)
    bar = (left + name, max(left + name, right - context - batch - pad))
    return [(left, left + name), bar, (right - context - batch, right - context), (right - context, right)]


def _bar(painter: QPainter, box: QRect, theme: Theme, shown: Shown, total: int) -> None:
    """A card's own share: weights, KV, free; all of it in the colour of danger where they don't fit."""
    if box.width() < theme.px(24):
        return
    factors = shown.factors
    if not factors.fits(total):
        painter.fillRect(box, theme.mix("danger", 0.75))
        return
    values = [factors.weights, factors.kv_held, max(0.0, total - factors.needed)]
    colors = [theme.color("weights"), theme.color("kv_used"), theme.color("kv_free")]
    stacked_bar.draw(painter, box, values, colors, theme.color("panel"))


# --- the running engine ---


def engine_height(theme: Theme, shown: Shown) -> int:
    return theme.px(_LINE) * max(2, len(shown.engine)) + 2 * _high(theme) + theme.px(24)


def draw_engine(painter: QPainter, area: QRect, theme: Theme, shown: Shown) -> None:
    small, line = theme.font("small"), _high(theme)
    head = QRect(area.left(), area.top(), area.width(), line)
    used = write(painter, head, "This engine", theme.font("strong"), theme.color("text"))
    write(painter, head.adjusted(used + theme.px(8), 0, 0, 0), shown.engine_name, small, theme.color("text_faint"))
    if not shown.engine:
        spot = QRect(area.left(), head.bottom() + theme.px(8), area.width(), line)
        words = "Its memory is told with its first step." if shown.engine_name else "None is up yet."
        write(painter, spot, words, small, theme.color("text_faint"))
        return
    most = max(max(one.formula, one.engine or 0) for one in shown.engine)
    number = max(advance(theme.font("mono_small"), f"{most:,}"), advance(small, "simulated") + line) + theme.px(6)
    tick = theme.px(18)
    wide = area.width() >= 2 * number + theme.px(190)
    edge = area.right() - tick
    columns = {"engine": (edge - number, edge), "formula": (edge - 2 * number - theme.px(6), edge - number)}
    y = head.bottom() + theme.px(6)
    tag = theme.font("small")
    badge(painter, columns["formula"][1] - theme.px(6), y, line, "derived", tag, theme.color("derived"))
    badge(painter, columns["engine"][1], y, line, shown.source, tag, theme.color(shown.source))
    write(painter, QRect(area.left(), y, area.width() // 3, line), "bytes", small, theme.color("text_faint"))
    y += line + theme.px(6)
    for one in shown.engine:
        row = QRect(area.left(), y, columns["formula"][0] - area.left(), theme.px(_LINE))
        _engine_line(painter, row, theme, one, columns, wide)
        y += row.height()


def _engine_line(
    painter: QPainter, row: QRect, theme: Theme, one: Line, columns: dict[str, tuple[int, int]], notes: bool
) -> None:
    part = one.engine is None
    mono, small = theme.font("mono_small"), theme.font("small")
    ink = theme.color("text_dim" if part else "text")
    name = row.adjusted(theme.px(12) if part else 0, 0, 0, 0)
    used = write(painter, name, one.name, small if part else theme.font("strong"), ink)
    note = name.adjusted(used + theme.px(8), 0, 0, 0)
    if notes and advance(small, one.how) <= note.width():
        write(painter, note, one.how, small, theme.color("text_faint"))

    def figure(column: str, value: int) -> None:
        left, right = columns[column]
        space = theme.px(6) if column == "formula" else 0
        spot = QRect(left, row.top(), right - left - space, row.height())
        write(painter, spot, f"{value:,}", mono, ink, RIGHT)

    figure("formula", one.formula)
    if one.engine is None:
        return
    figure("engine", one.engine)
    equal = not one.difference
    spot = QRect(columns["engine"][1] + theme.px(5), row.top(), theme.px(14), row.height())
    write(painter, spot, "✓" if equal else "≠", theme.font("strong"), theme.color("accepted" if equal else "warning"),
          LEFT)  # fmt: skip


def told(one: Line) -> str:
    """A line in words, for its tooltip."""
    if one.engine is None:
        return f"{one.name}: {one.how} = {one.formula:,} B"
    match = "equal to the byte" if not one.difference else f"the engine holds {one.difference:+,} B"
    return f"{one.name}: {one.how} = {one.formula:,} B ({explain.size(one.formula)}); {match}"


def _high(theme: Theme) -> int:
    return metrics(theme.font("small")).height()

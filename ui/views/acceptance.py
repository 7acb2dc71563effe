"""What became of drafts: acceptance by position, how many a pass accepted, tokens per pass beside the formula."""

from __future__ import annotations

from PySide6.QtCore import QRect
from PySide6.QtGui import QPainter

from ui import draft_words, explain
from ui.paint.labels import CENTER, RIGHT, badge, paragraph, wrap, write
from ui.payoff import Payoff
from ui.views.painted import PaintedView
from ui.views.speculation_shown import Counts

Hits = list[tuple[QRect, str]]


def draw_positions(view: PaintedView, painter: QPainter, area: QRect, counts: Counts, figures: Payoff) -> Hits:
    """A bar a position; where those would be too many, columns side by side."""
    theme, line = view.theme, view.line()
    small, depth = theme.font("small"), counts.positions
    pitch = line + theme.px(2)
    fit = min(depth, (area.height() - pitch) // pitch)
    if fit < 1:
        return []
    head = QRect(area.left(), area.top(), area.width(), line)
    used = write(painter, head, "accepted by position", small, theme.color("text_dim"))
    if figures.passes and area.width() - used > view.advance("α 0.00") + theme.px(10):
        write(painter, head, f"α {figures.alpha:.2f}", theme.font("strong"), theme.color("text"), RIGHT)
    rest = area.adjusted(0, pitch, 0, 0)
    if fit < depth or rest.height() > 1.5 * depth * pitch:
        tall = min(rest.height(), theme.px(190))
        return _draw_columns(view, painter, QRect(rest.left(), rest.top(), rest.width(), tall), counts, depth)
    rows = [QRect(rest.left(), rest.top() + i * pitch, rest.width(), line) for i in range(depth)]
    return [_draw_position(view, painter, row, counts, position) for position, row in enumerate(rows)]


def _draw_position(
    view: PaintedView, painter: QPainter, row: QRect, counts: Counts, position: int
) -> tuple[QRect, str]:
    theme = view.theme
    small = theme.font("small")
    tried, kept = int(counts.verified.examined[position]), int(counts.verified.accepted[position])
    write(painter, row, str(position + 1), small, theme.color("text_faint"))
    left = row.left() + view.advance("16") + theme.px(6)
    width = row.right() - view.advance("0.00") - theme.px(8) - left
    high = row.height() // 2
    painter.fillRect(QRect(left, row.top() + (row.height() - high) // 2, width, high), theme.color("free"))
    if tried:
        bar = QRect(left, row.top() + (row.height() - high) // 2, round(width * kept / tried), high)
        painter.fillRect(bar, theme.color("accepted"))
    write(painter, row, f"{kept / tried:.2f}" if tried else "–", small, theme.color("text"), RIGHT)
    return row, _told(counts, position)


def _told(counts: Counts, position: int) -> str:
    tried, kept = int(counts.verified.examined[position]), int(counts.verified.accepted[position])
    steps = "the last step" if counts.steps == 1 else f"the last {counts.steps:,} steps"
    words = f"position {position + 1}: {kept:,} of {explain.count(tried, 'examined draft')} accepted over {steps}"
    return f"<p>{words}; a draft is examined only when all before it were accepted</p>"


def _draw_columns(
    view: PaintedView, painter: QPainter, area: QRect, counts: Counts, depth: int
) -> Hits:
    """A column a position, its number below and, where there is room, its share above."""
    theme, line = view.theme, view.line()
    small, faint = theme.font("small"), theme.color("text_faint")
    hits, width = [], area.width() // depth
    gap = max(1, min(theme.px(6), width // 4))
    shares = width - gap >= view.advance(".00") and area.height() >= 3 * line
    track = area.adjusted(0, line if shares else 0, 0, -line)
    for position in range(depth):
        tried, kept = int(counts.verified.examined[position]), int(counts.verified.accepted[position])
        box = QRect(area.left() + position * width, area.top(), width - gap, area.height())
        column = QRect(box.left(), track.top(), box.width(), track.height())
        painter.fillRect(column, theme.color("free"))
        if tried:
            tall = round(column.height() * kept / tried)
            top = column.bottom() + 1 - tall
            painter.fillRect(QRect(column.left(), top, column.width(), tall), theme.color("accepted"))
        if shares:
            share = (f"{kept / tried:.2f}".removeprefix("0") if tried else "–")
            row = QRect(box.left() - gap, box.top(), width + gap, line)
            write(painter, row, share, small, theme.color("text"), CENTER)
        if view.advance(str(position + 1)) <= width:
            row = QRect(box.left() - gap, box.bottom() + 1 - line, width + gap, line)
            write(painter, row, str(position + 1), small, faint, CENTER)
        hits.append((box, _told(counts, position)))
    return hits


def draw_lengths(view: PaintedView, painter: QPainter, area: QRect, counts: Counts, figures: Payoff) -> Hits:
    """How often a pass accepted 0, 1, … γ drafts."""
    theme, line = view.theme, view.line()
    small, dim = theme.font("small"), theme.color("text_dim")
    write(painter, QRect(area.left(), area.top(), area.width(), line), "accepted per pass", small, dim)
    lengths = counts.verified.lengths[: counts.positions + 1]
    total = max(1, int(lengths.sum()))
    bars = QRect(area.left(), area.top() + line + theme.px(2), area.width(), 0)
    bars.setBottom(min(area.bottom(), bars.top() + theme.px(190)))
    track = bars.adjusted(0, line, 0, -line)
    if track.height() < line or not len(lengths):
        return []
    width, hits, most = bars.width() // len(lengths), [], max(1, int(lengths.max()))
    gap = max(1, min(theme.px(6), width // 4))
    for length, passes in enumerate(lengths.tolist()):
        box = QRect(bars.left() + length * width, bars.top(), width - gap, bars.height())
        tall = round(track.height() * passes / most)
        painter.fillRect(QRect(box.left(), track.bottom(), box.width(), 1), theme.color("border"))
        color = theme.color("accepted" if length else "rejected")
        painter.fillRect(QRect(box.left(), track.bottom() + 1 - tall, box.width(), tall), color)
        share = f"{passes / total:.0%}"
        above = QRect(box.left() - gap, track.bottom() + 1 - tall - line, width + gap, line)
        if passes and view.advance(share) <= width:
            write(painter, above, share, small, theme.color("text"), CENTER)
        if view.advance(str(length)) <= width:
            row = QRect(box.left() - gap, box.bottom() + 1 - line, width + gap, line)
            write(painter, row, str(length), small, theme.color("text_faint"), CENTER)
        told = f"{passes:,} of {draft_words.passes(total)} accepted {explain.count(length, 'draft')}"
        hits.append((box, f"<p>{told}, and so gave {explain.count(length + 1, 'token')}</p>"))
    return hits


def per_pass_height(view: PaintedView, width: int, figures: Payoff, counts: Counts, told: bool) -> int:
    """Pixels that `draw_per_pass` takes."""
    line = view.line()
    lines = len(wrap(draft_words.per_pass(figures, counts.verified), view.theme.font("small"), width)) if told else 0
    return 2 * (line + view.theme.px(3)) + lines * line


def draw_per_pass(
    view: PaintedView, painter: QPainter, area: QRect, counts: Counts, figures: Payoff, told: bool
) -> Hits:
    """Measured and as the formula has it; `told`: with a sentence on why they differ."""
    theme, line = view.theme, view.line()
    small = theme.font("small")
    tags = area.width() >= theme.px(200)
    why = draft_words.per_pass(figures, counts.verified)
    hits, y = [], area.top()
    expected = f"what α {figures.alpha:.2f} and drafts of {figures.draft_length:.1f} tokens let expect"
    for words, value, tag, meant in (
        ("tokens per pass", figures.tokens_per_pass, "measured", "accepted drafts and the one that each pass adds"),
        ("(1−α^(γ+1))/(1−α)", figures.expected, "derived", expected),
    ):
        row, tag = QRect(area.left(), y, area.width(), line), view.source_of(tag)
        hits.append((row, f"<p>{meant}</p><p>{why}</p>"))
        room = badge(painter, row.right() + 1, y, line, tag, small, theme.color(tag)) + theme.px(8) if tags else 0
        row = row.adjusted(0, 0, -room, 0)
        used = write(painter, row, f"{value:.2f}", theme.font("strong"), theme.color("text"), RIGHT)
        write(painter, row.adjusted(0, 0, -used - theme.px(6), 0), words, small, theme.color("text_dim"))
        y += line + theme.px(3)
    if told:
        room = QRect(area.left(), y, area.width(), area.bottom() - y + 1)
        paragraph(painter, room, why, small, theme.color("text_faint"))
    return hits

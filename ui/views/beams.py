"""Beams and parallel samples: the lanes of one request, as they branch from each other and die."""

from __future__ import annotations

from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtGui import QPainter, QWheelEvent

from ui import explain, simulated
from ui.branch_moment import Moment
from ui.branches import Spot, Tree
from ui.changes import Kinds
from ui.context import ViewContext
from ui.lane_blocks import lane_blocks
from ui.paint.labels import CENTER, Key, legend, legend_width, write
from ui.views import beams_blocks
from ui.views.beams_grid import BeamsGrid, shown
from ui.views.beams_list import BeamsList, Line, lines_of
from ui.views.painted import PaintedView

HINT_OF_SAMPLES = (
    "Under Requests choose more than one sample, such as ×4, and send a prompt: its lanes appear here as they part."
)
HINT = (
    "Under Requests choose more than one sample, such as ×4, or beams, and send a prompt: its lanes appear here as "
    "they part."
)


class BeamsView(PaintedView):
    """Shows the request of the chosen sequence, else the one begun last. Hovering a cell tells its token; hovering a
    line below lights its path, and a click brings the path's end in sight; a click on a lane chooses its sequence; the
    wheel goes along the positions.

    Attributes:
        moment: what is drawn; None where no request had several lanes.
        lit: the line that is pointed at; None: none.
    """

    key = "beams"
    title, short = "Beams and samples", "Beams"
    aside = True
    kinds = Kinds.TOKENS | Kinds.TABLES | Kinds.QUEUE | Kinds.CURSOR | Kinds.SELECTION | Kinds.THEME | Kinds.SOURCE
    rate = 10.0

    def __init__(self, context: ViewContext, parent=None):
        super().__init__(context, parent)
        self.moment: Moment | None = None
        self.lit: int | None = None
        self.grid, self.list = BeamsGrid(self), BeamsList(self)
        self._heads: tuple[str, ...] = ()
        self._lines: list[Line] = []
        self._bars: list[tuple[QRect, str]] = []
        self._chips: list[tuple[QRect, Tree]] = []
        self._tree: Tree | None = None  # chosen by hand

    def refresh(self, kinds: Kinds) -> None:
        branches, cursor = self.context.mirror.branches, self.context.cursor
        if kinds & Kinds.SELECTION and (chosen := branches.of(self.context.selection.seq)) is not None:
            self._tree = chosen
        latest = branches.at(cursor.step)
        if self._tree is not None and (self._tree not in list(branches) or self._tree.begun > cursor.step):
            self._tree = None
        tree = self._tree or latest
        if self.moment is None or self.moment.tree is not tree:
            self.grid.scroll, self.lit = None, None
        self.moment = None
        if tree is not None:
            self.moment = Moment.of(tree, cursor.step)
            self.moment.blocks = lane_blocks(cursor.state, tree)
            self._heads, self._lines = lines_of(tree, cursor.step, self.moment.ends)
        self.summarise(self._words())
        self.update()

    def _words(self) -> str:
        moment = self.moment
        if moment is None:
            return ""
        tree = moment.tree
        words = f"request {tree.number} · {explain.count(len(tree.lanes), 'lane')}"
        if moment.blocks is not None and moment.blocks.spared > 0:
            words += f" · {explain.count(moment.blocks.spared, 'block')} spared by sharing"
        return words

    # --- painting ---

    def draw(self, painter: QPainter, area: QRect) -> None:
        theme, px, moment = self.theme, self.theme.px, self.moment
        inner = area.adjusted(px(12), px(4), -px(12), -px(8))
        self._bars, self._chips = [], []
        if moment is None:
            if simulated.engine(self.context.mirror.ready):
                self.draw_empty(painter, inner, "No samples yet", f"{HINT_OF_SAMPLES} {simulated.NO_BEAMS}")
            else:
                self.draw_empty(painter, inner, "No beams or samples yet", HINT)
            return
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        head = self.line("strong") + px(6)
        self._draw_head(painter, QRect(inner.left(), inner.top(), inner.width(), head), moment)
        rest = inner.adjusted(0, head, 0, 0)
        lines = self._lines
        lanes, gap, room = len(moment.tree.lanes), px(10), rest.height()
        least = self.grid.height(lanes, 0)
        foot = self.list.height(len(lines)) + gap if lines else 0
        blocks = moment.blocks if moment.blocks is not None and moment.blocks.entries else None
        strip = beams_blocks.height(self, len(blocks.lanes)) + gap if blocks else 0
        if least + strip + foot > room:
            strip = 0
        if least + foot > room:
            foot = max(0, room - least)
            foot = foot if foot >= self.list.height(1) + gap else 0
        tall = min(room, self.grid.height(lanes, room - strip - foot))
        if strip and blocks:  # what the grid leaves
            strip = beams_blocks.height(self, len(blocks.lanes), room - tall - foot - gap) + gap
        grid = QRect(rest.left(), rest.top(), rest.width(), tall)
        lit = lines[self.lit].path if self.lit is not None and self.lit < len(lines) else []
        self.grid.draw(painter, grid, moment, set(lit))
        if not moment.length:
            waits = grid.adjusted(px(220), 0, 0, 0)
            write(painter, waits, "waiting for the first token", theme.font("small"), theme.color("text_faint"), CENTER)
        y = grid.bottom() + gap
        if strip and blocks is not None:
            box = QRect(rest.left(), y, rest.width(), strip - gap)
            self._bars = beams_blocks.draw(self, painter, box, blocks, moment.tree, moment.tree.copied(moment.step))
            y += strip
        self.list.hits = []
        if foot:
            box = QRect(rest.left(), y, rest.width(), foot - gap)
            self.list.draw(painter, box, self._heads, lines, self.lit)

    def _draw_head(self, painter: QPainter, area: QRect, moment: Moment) -> None:
        """Which request, which others there are, and what the looks mean."""
        theme, px, tree = self.theme, self.theme.px, moment.tree
        title = explain.count(tree.width, "beam") if tree.width else explain.count(len(tree.lanes), "sample")
        x = area.left() + write(painter, area, title, theme.font("strong"), theme.color("text")) + px(10)
        for other in reversed(list(self.context.mirror.branches)):
            word = f"{other.number}"
            width = self.advance(word, "mono_small") + px(14)
            box = QRect(x, area.top() + px(2), width, area.height() - px(6))
            if other.begun > moment.step or box.right() > area.left() + area.width() * 45 // 100:
                continue
            here = other is tree
            painter.setPen(theme.pen("text_dim" if here else "border"))
            painter.setBrush(theme.color("raised" if here else "panel"))
            painter.drawRoundedRect(box.adjusted(0, 0, -1, -1), box.height() / 2, box.height() / 2)
            ink = theme.color("text" if here else "text_faint")
            write(painter, box, word, theme.font("mono_small"), ink, CENTER)
            self._chips.append((box, other))
            x += width + px(4)
        keys = [Key(theme.mix("decode", 0.6), "lives"), Key(theme.mix("text_faint", 0.45), "died", "✕")]
        keys = [*keys, Key(theme.color("selection"), "best found")] if tree.width else []
        font, gap = theme.font("small"), px(14)
        wide = legend_width(keys, font, gap)
        prompt = QRect(x + px(8), area.top(), area.right() - wide - px(16) - x, area.height())
        write(painter, prompt, explain.visible(tree.prompt), font, theme.color("text_faint"))
        if keys and x + wide < area.right():
            legend(painter, QRect(area.right() - wide + gap, area.top(), wide, area.height()), keys, font,
                   theme.color("text_dim"), gap)  # fmt: skip

    # --- Qt ---

    def _spot(self, at: QPoint) -> Spot | None:
        return next((spot for box, spot in self.grid.hits if box.contains(at)), None)

    def tell(self, spot: Spot) -> str:
        """A cell in words, as rich text."""
        assert self.moment is not None
        tree, step = self.moment.tree, self.moment.step
        cell = tree.cell(spot)
        assert cell is not None
        safe = shown(cell.text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        seq = tree.lanes[spot[0]].seq
        before = tree.before(spot)
        if before is None:
            origin = "continues the prompt"
        elif before[0] == spot[0]:
            origin = "continues its own lane"
        else:
            origin = f"branches from seq {tree.lanes[before[0]].seq}: this lane's beam had died"
        fate = "lives" if spot in self.moment.alive else "died: no lane descends from it"
        if tree.over and step >= tree.over and spot in self.moment.alive:
            ranks = [str(rank + 1) for rank, path in enumerate(tree.paths) if spot in path]
            fate = f"part of what was found: {', '.join(ranks)}"
        where = f"seq {seq} · output position {spot[1] + 1:,} · step {cell.step:,}"
        return f"<p><b>“{safe}”</b> (token {cell.token})</p><p>{origin}; {fate}</p><p>{where}</p>"

    def mouseMoveEvent(self, event) -> None:
        at = event.position().toPoint()
        spot = self._spot(at)
        bar = next((words for box, words in self._bars if box.contains(at)), "")
        self.tip(at, self.tell(spot) if spot is not None else f"<p>{bar}</p>" if bar else "")
        self._light(next((line for line, (box, _) in enumerate(self.list.hits) if box.contains(at)), None))

    def leaveEvent(self, event) -> None:
        super().leaveEvent(event)
        self._light(None)

    def _light(self, line: int | None) -> None:
        if line != self.lit:
            self.lit = line
            self.update()

    def mousePressEvent(self, event) -> None:
        if event.button() != Qt.MouseButton.LeftButton or self.moment is None:
            return
        at = event.position().toPoint()
        if (tree := next((tree for box, tree in self._chips if box.contains(at)), None)) is not None:
            self._tree = tree
            self.refresh(Kinds.NONE)
            return
        if (path := next((path for box, path in self.list.hits if box.contains(at)), None)) is not None:
            self.grid.reveal(path, self.width())
            self.update()
            return
        seq = next((seq for box, seq in self.grid.names if box.contains(at)), None)
        if seq is None and (spot := self._spot(at)) is not None:
            seq = self.moment.tree.lanes[spot[0]].seq
        if seq is not None:
            self.context.selection.toggle(seq)

    def wheelEvent(self, event: QWheelEvent) -> None:
        delta = event.angleDelta().x() or event.angleDelta().y()
        to = min(self.grid.furthest, max(0, self.grid.shown_from - delta))
        follows = to == self.grid.furthest and self.moment is not None and not self.moment.best
        self.grid.scroll = None if follows else to
        self.update()
        event.accept()

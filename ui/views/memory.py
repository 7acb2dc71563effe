"""Where the bytes are: one bar taken apart, a list whose figures sum to it, and the KV pool over time.

Where the engine runs on an NVIDIA GPU the bar is what of the card isn't free, by the driver's count; elsewhere it is
the engine's process, and the view says so.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QBrush, QPainter

from engine.records import Memory
from ui import breakdown, explain, simulated
from ui.breakdown import Breakdown, Part
from ui.changes import Kinds
from ui.context import ViewContext
from ui.contracts import DeviceMemory
from ui.paint import stacked_bar
from ui.paint.bars import BarStack, argb
from ui.paint.labels import RIGHT, Key, badge, legend, write
from ui.views.mark_words import MarkWords, moments
from ui.views.painted import PaintedView

SPAN = 2_000  # steps of the pool's history in the small plot: a minute or more at serving speed


class MemoryView(PaintedView):
    """Hovering a part tells where its figure comes from.

    Attributes:
        shown: what is drawn; None before the engine told anything.
    """

    key = "memory"
    title = "Memory"
    kinds = (
        Kinds.MEMORY | Kinds.STEPS | Kinds.BLOCKS | Kinds.SETTINGS | Kinds.CURSOR | Kinds.SELECTION | Kinds.THEME
        | Kinds.SOURCE
    )  # fmt: skip
    rate = 4.0

    def __init__(self, context: ViewContext, parent=None):
        super().__init__(context, parent)
        self.shown: Breakdown | None = None
        self._words = MarkWords(context)
        self._hits: list[tuple[QRect, Part]] = []
        self._lit: Part | None = None
        self._pool = BarStack()

    def refresh(self, kinds: Kinds) -> None:
        self._look()
        self.update()

    def _look(self) -> None:
        state, sample = self.context.cursor.state, self._sample()
        memory = Memory() if self._unloaded() and sample is not None else state.memory
        if memory is None or (self._unloaded() and sample is None):
            self.shown = None
            self.summarise("unloaded" if self._unloaded() else "")
            return
        if simulated.engine(self.context.mirror.ready):
            self.shown = simulated.memory(memory, state.used, state.cached, state.free)
            self.summarise(f"{explain.size(self.shown.total)} simulated, by formula")
        elif sample is not None:
            blocks = (0, 0, 0) if self._unloaded() else (state.used, state.cached, state.free)
            self.shown = breakdown.device(memory, sample, *blocks)
            total = "" if sample.total is None else f" of {explain.size(sample.total)}"
            told = "in use" if self.shown.counted else "told of; in use: unavailable"
            self.summarise(f"{sample.name} · {explain.size(self.shown.total)}{total} {told}")
        else:
            reason = self._reason()
            host = state.host.used, state.host.num_blocks
            self.shown = breakdown.process(memory, state.used, state.cached, state.free, reason, host)
            self.summarise(f"RSS {explain.size(self.shown.total)} · engine process · {reason}")

    def _sample(self) -> DeviceMemory | None:
        """The card's figures, where the engine is on one."""
        ready = self.context.mirror.ready
        return None if ready is not None and ready.runner in ("cpu", "simulated") else self.context.probe.latest()

    def _reason(self) -> str:
        return self.context.probe.reason or "the engine runs on the CPU"

    def _unloaded(self) -> bool:
        """Now, not in the past that is shown."""
        return self.context.unload.done and self.context.cursor.is_live

    # --- painting ---

    def draw(self, painter: QPainter, area: QRect) -> None:
        theme, shown = self.theme, self.shown
        inner = area.adjusted(theme.px(12), theme.px(4), -theme.px(12), -theme.px(10))
        self._hits = []
        if shown is None and self._unloaded():
            words = f"The engine is unloaded: {self.context.unload.words}. Restart loads it again."
            self.draw_empty(painter, inner, "Nothing is held", words)
            return
        if shown is None:
            self.draw_empty(painter, inner, "No figures yet", "The engine tells its memory once the model is loaded.")
            return
        y = inner.top() + self._draw_bar(painter, inner, shown)
        line = self.line()
        foot = self._foot(shown, inner.width())
        room = inner.bottom() + 1 - y
        names = [
            part for part in shown.parts if part.bytes or part.token in ("kv_used", "kv_cached", "kv_free", "rest")
        ]
        wide, tight = line + theme.px(4), line
        crowded = room < len(names) * tight + line + theme.px(4)  # with the sum below
        two = inner.width() >= theme.px(380) and room < (len(names) + len(foot)) * wide
        columns = 2 if two or (crowded and inner.width() >= theme.px(240)) else 1
        rows = -(-len(names) // columns)
        # what gives way first: the space between rows, then lines of the foot, the sum last
        for pitch, lines in [(pitch, lines) for lines in range(len(foot), -1, -1) for pitch in (wide, tight)]:
            if rows * pitch + len(foot[:lines]) * line + theme.px(4) <= room:
                break
        foot, fit = foot[:lines], min(rows, room // pitch)
        self._draw_list(painter, QRect(inner.left(), y, inner.width(), fit * pitch), names, columns, pitch, shown)
        y += fit * pitch
        if foot:
            painter.setPen(theme.pen("border"))
            painter.drawLine(inner.left(), y + theme.px(1), inner.right(), y + theme.px(1))
            y += theme.px(4)
        for text, token in foot:
            write(painter, QRect(inner.left(), y, inner.width(), line), text, theme.font("small"), theme.color(token))
            y += line
        plot = inner.adjusted(0, y - inner.top() + theme.px(10), 0, 0)
        if plot.height() >= theme.px(48):
            self._draw_pool(painter, plot)

    def _draw_bar(self, painter: QPainter, inner: QRect, shown: Breakdown) -> int:
        theme = self.theme
        high = min(theme.px(34), max(theme.px(14), inner.height() // 6))
        bar = QRect(inner.left(), inner.top(), inner.width(), high)
        if shown.free is not None:  # the whole card above, so that its used part has room to be taken apart
            whole = QRect(inner.left(), inner.top(), inner.width(), max(3, theme.px(5)))
            colors = [theme.color("text_dim"), theme.color("hover")]
            stacked_bar.draw(painter, whole, [shown.total, shown.free], colors, theme.color("panel"))
            bar.translate(0, whole.height() + theme.px(4))
        values = [part.bytes for part in shown.parts]
        colors = [theme.color(part.token) for part in shown.parts]
        lit = next((i for i, part in enumerate(shown.parts) if part is self._lit), -1)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
        boxes = stacked_bar.draw(painter, bar, values, colors, theme.color("panel"), lit)
        if lit >= 0:
            painter.setPen(theme.pen("selection"))
            painter.drawRect(boxes[lit].adjusted(0, 0, -1, -1))
        self._draw_empty_part(painter, boxes, shown)
        self._draw_chosen(painter, boxes, shown)
        for box, part, color in zip(boxes, shown.parts, colors, strict=False):
            self._hits.append((box, part))
            name_width = self.advance(part.name) + theme.px(12)
            if box.width() >= name_width and high >= self.line():
                write(painter, box.adjusted(theme.px(6), 0, -theme.px(2), 0), part.name, theme.font("small"),
                      theme.ink_on(color))  # fmt: skip
        return bar.bottom() + 1 - inner.top() + theme.px(8)

    def _draw_empty_part(self, painter: QPainter, boxes: list[QRect], shown: Breakdown) -> None:
        """What is reserved and empty is hatched, at the right end of the used blocks."""
        state = self.context.cursor.state
        index = next((i for i, part in enumerate(shown.parts) if part.token == "kv_used"), -1)
        if index < 0 or not state.empty or not state.used:
            return
        box = boxes[index]
        wide = round(box.width() * min(1.0, state.empty / state.used))
        if wide > 1:
            spot = QRect(box.right() + 1 - wide, box.top(), wide, box.height())
            painter.fillRect(spot, QBrush(self.theme.color("panel"), Qt.BrushStyle.BDiagPattern))

    def _held(self) -> tuple[int, int]:
        """Blocks in the selected sequence's table, and their bytes."""
        state, seq = self.context.cursor.state, self.context.selection.seq
        blocks = 0 if seq is None else len(state.table(seq))
        if not blocks or state.memory is None or not state.num_blocks:
            return 0, 0
        return blocks, state.memory.kv_pool * blocks // state.num_blocks

    def _draw_chosen(self, painter: QPainter, boxes: list[QRect], shown: Breakdown) -> None:
        """The selected sequence's share of the used blocks, in its hue at the foot of their part."""
        _, held = self._held()
        index = next((i for i, part in enumerate(shown.parts) if part.token == "kv_used"), -1)
        if not held or index < 0 or not shown.parts[index].bytes:
            return
        box = boxes[index]
        wide = max(2, round(box.width() * min(1.0, held / shown.parts[index].bytes)))
        high = max(4, box.height() // 4)
        foot = QRect(box.left(), box.bottom() + 1 - high, wide, high)
        painter.fillRect(foot, self.theme.color("selection"))
        seq = self.context.selection.seq
        if seq is not None:
            painter.fillRect(foot.adjusted(1, 1, -1, -1), self.theme.sequence_color(seq))

    def _foot(self, shown: Breakdown, width: int) -> list[tuple[str, str]]:
        card = self._sample() is not None
        if simulated.engine(self.context.mirror.ready):
            sums: tuple[str, ...] = (simulated.PARTS, "simulated, by formula")
        else:
            sums = _sums(shown) if card else _process_sums(self._reason())
        head = f"sum {explain.size(shown.total)} = "
        sum_of = next((words for words in sums if self.advance(head + words) <= width), sums[-1])
        foot = [(f"sum {explain.size(shown.total)} = {sum_of}", "text")]
        if shown.over:
            more = f"{explain.size(shown.over)} more by the engine's count: swapped out, or of another moment"
            foot.append((more, "warning"))
        if self._unloaded():
            return [*foot, (self.context.unload.words, "text")]
        state = self.context.cursor.state
        if state.used:
            waste = breakdown.waste_words(state.waste(state.block_size, state.gaps))
            foot.append((next((words for words in waste if self.advance(words) <= width), waste[-1]), "text_dim"))
        if card and state.memory is not None and state.memory.host_pool:
            beside = f"host pool {explain.size(state.memory.host_pool)} in the host's memory, not on the card"
            foot.append((beside, "text_dim"))
        blocks, held = self._held()
        if blocks:
            foot.append((f"seq {self.context.selection.seq} {explain.size(held)} in {explain.count(blocks, 'block')}"
                         " of KV used", "text"))  # fmt: skip
            return foot
        model = self.context.mirror.ready.model if self.context.mirror.ready else None
        if model is not None:
            number = max(1, model.kv_bytes_per_token // (2 * model.layers * model.kv_heads * model.head_dim))
            numbers = f"2·{model.layers}·{model.kv_heads}·{model.head_dim}·{number}"
            per_token = f"{explain.size(model.kv_bytes_per_token)} per token"
            for words in (
                f"KV 2·L·H_kv·d_h·n = {numbers} = {per_token}",
                f"KV 2·L·H_kv·d_h·n = {per_token}",
                f"KV {per_token}",
            ):
                if self.advance(words) <= width:
                    break
            foot.append((words, "text_dim"))
        return foot

    def _draw_list(
        self, painter: QPainter, area: QRect, parts: list[Part], columns: int, pitch: int, shown: Breakdown
    ) -> None:
        theme = self.theme
        small = theme.font("small")
        rows = -(-len(parts) // columns)
        gap = theme.px(20) if area.width() >= theme.px(380) else theme.px(12)
        width = (area.width() - gap * (columns - 1)) // columns
        share_width = self.advance("100 %") + theme.px(8)
        role = "body" if width >= theme.px(170) else "small"
        for index, part in enumerate(parts):
            column, row = divmod(index, rows)
            spot = QRect(area.left() + column * (width + gap), area.top() + row * pitch, width, pitch)
            if spot.bottom() > area.bottom() + 1:
                continue
            self._hits.append((spot, part))
            if part is self._lit:
                painter.fillRect(spot, theme.color("raised"))
            side = theme.px(10)
            swatch = QRect(spot.left(), spot.center().y() - side // 2, side, side)
            painter.fillRect(swatch, theme.color(part.token))
            if part.token == "kv_free":
                painter.setPen(theme.pen("text_faint"))
                painter.drawRect(swatch.adjusted(0, 0, -1, -1))
            near = theme.px(8 if role == "body" else 5)
            text = spot.adjusted(side + near, 0, -theme.px(2), 0)
            value = explain.size(part.bytes)
            if width >= theme.px(220) and shown.total:
                share = f"{100 * part.bytes / shown.total:.0f} %"
                write(painter, text, share, small, theme.color("text_faint"), RIGHT)
                text.adjust(0, 0, -share_width, 0)
            value_width = write(painter, text, value, theme.font("strong"), theme.color("text"), RIGHT)
            text.adjust(0, 0, -value_width - near, 0)
            name = part.name if self.advance(part.name, role) <= text.width() else part.short or part.name
            used = write(painter, text, name, theme.font(role), theme.color("text"))
            text.adjust(used + theme.px(10), 0, 0, 0)
            if text.width() > self.advance(part.note):
                write(painter, text, part.note, small, theme.color("text_faint"))

    def _draw_pool(self, painter: QPainter, area: QRect) -> None:
        """The pool's blocks over the last steps: used below, cached on it, the pool's size as the limit."""
        theme, line, history = self.theme, self.line(), self.context.mirror.history
        step = self.context.cursor.step
        columns = history.slice(max(history.first, step - SPAN + 1), step)
        if len(columns) < 2:
            return
        head = QRect(area.left(), area.top(), area.width(), line)
        words = f"KV pool, last {len(columns):,} steps"
        used = write(painter, head, words, theme.font("small"), theme.color("text_dim"))
        keys = [Key(theme.color("kv_used"), "used"), Key(theme.color("kv_cached"), "cached")]
        tag = 0
        if head.width() - used > theme.px(260):
            source = self.source_of("measured")
            tag = badge(painter, head.right() + 1, head.top(), line, source, theme.font("small"), theme.color(source))
        legend(painter, head.adjusted(used + theme.px(14), 0, -tag, 0), keys, theme.font("small"),
               theme.color("text_faint"), theme.px(10))  # fmt: skip
        pool = columns.used + columns.cached + columns.free
        label = explain.count(int(pool[-1]), "block")
        gutter = self.advance(label) + theme.px(8) if area.width() >= theme.px(260) else 0
        plot = QRect(area.left(), head.bottom() + theme.px(4), area.width() - gutter, 0)
        plot.setBottom(area.bottom())
        pick = np.arange(plot.width()) * len(columns) // plot.width()  # one step per pixel, the newest at the right
        top = float(pool.max()) or 1.0
        values = np.stack([columns.used[pick], columns.cached[pick]]).astype(float)
        colors = [argb(theme.color("kv_used")), argb(theme.color("kv_cached"))]
        painter.fillRect(plot, theme.color("free"))
        painter.drawImage(plot.topLeft(), self._pool.render(values, top, plot.height(), 1, 0, colors))
        y = plot.bottom() + 1 - round(float(pool[-1]) / top * plot.height())
        painter.setPen(theme.pen("limit"))
        painter.drawLine(plot.left(), y, plot.right(), y)
        if gutter:
            spot = QRect(plot.right() + theme.px(6), max(plot.top(), y - line // 2), gutter, line)
            write(painter, spot, label, theme.font("small"), theme.color("limit"))
        self._draw_marks(painter, plot, columns.step)

    def _draw_marks(self, painter: QPainter, plot: QRect, steps: NDArray) -> None:
        """A line where a setting changed, with what it did beside it as far as there is room."""
        theme, line, gap = self.theme, self.line(), self.theme.px(4)
        edge = plot.right() + 1
        marks = [m for m in self.context.mirror.history.marks if int(steps[0]) <= m.step <= int(steps[-1])]
        for group in reversed(moments(marks)):
            x = plot.left() + int(np.searchsorted(steps, group[0].step)) * plot.width() // len(steps)
            painter.fillRect(QRect(x, plot.top(), 1, plot.height()), theme.color("mark"))
            text = self._words.fitted(group, edge - x - 3 * gap, self.advance)
            if text and plot.height() >= 3 * line:
                spot = QRect(x + gap, plot.top() + gap, self.advance(text) + 2 * gap, line)
                painter.fillRect(spot, theme.color("panel"))
                write(painter, spot.adjusted(gap, 0, 0, 0), text, theme.font("small"), theme.color("mark"))
            edge = x

    # --- Qt ---

    def mouseMoveEvent(self, event) -> None:
        at = event.position().toPoint()
        part = next((part for box, part in self._hits if box.contains(at)), None)
        text = (
            ""
            if part is None
            else f"<p><b>{part.name}</b> {explain.size(part.bytes)} ({part.bytes:,} B)<br>{part.note}</p>"
        )
        self.tip(at, text)
        if part is not self._lit:
            self._lit = part
            self.update()

    def leaveEvent(self, event) -> None:
        super().leaveEvent(event)
        self._lit = None
        self.update()


def _process_sums(reason: str) -> tuple[str, ...]:
    """What the sum is, from the longest words to the shortest."""
    where = "RSS of the engine"
    return f"resident memory (RSS) of the engine process; {reason}", f"{where}; {reason}", where


def _sums(shown: Breakdown) -> tuple[str, ...]:
    """What NVML's first and second memory call say, from the longest words to the shortest."""
    if not shown.counted:
        return (
            "what the engine and the driver tell of; what is in use in all: unavailable from this driver",
            "what is told of; in use in all: unavailable",
            "told of; in use: unavailable",
        )
    if shown.driver is None:
        return ("used, by the driver's count, its own part within", "used by NVML's count", "used")
    used, driver = explain.size(shown.total - shown.driver), explain.size(shown.driver)
    both = f"{used} used + {driver} "
    return f"{both}reserved by the driver, by NVML's count", f"{both}driver", "in use"

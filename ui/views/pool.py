"""View 1, the block pool: one image, a cell a block, with a legend that counts."""

from __future__ import annotations

from PySide6.QtCore import QRect, QSize, Qt
from PySide6.QtGui import QBrush, QColor, QFontMetrics, QPainter, QPaintEvent
from PySide6.QtWidgets import QHBoxLayout, QToolButton, QVBoxLayout, QWidget

from ui.changes import Kinds
from ui.context import ViewContext
from ui.state import EngineState
from ui.theme import SEQUENCE_HUES, Theme
from ui.views.base import View
from ui.views.pool_canvas import PoolCanvas
from ui.views.pool_host import HostCanvas
from ui.views.pool_shades import Shades


class PoolView(View):
    """
    Attributes:
        canvas: the picture. legend: what its looks mean, with counts.
        host: the host pool beside it, where there is one.
    """

    key = "pool"
    title, short = "Block pool", "Pool"
    kinds = (
        Kinds.STEPS | Kinds.BLOCKS | Kinds.TABLES | Kinds.QUEUE | Kinds.TOKENS | Kinds.SETTINGS | Kinds.SOURCE
        | Kinds.CURSOR | Kinds.SELECTION | Kinds.THEME
    )  # fmt: skip

    def __init__(self, context: ViewContext, parent: QWidget | None = None):
        super().__init__(context, parent)
        self.canvas = PoolCanvas(context, self)
        self.host = HostCanvas(context, self)
        self.legend = PoolLegend(context.theme, self)
        self._fit = QToolButton(self)
        self._fit.setText("Fit")
        self._fit.setToolTip("Show the whole pool (0)")
        self._fit.setVisible(False)
        self._fit.clicked.connect(self.canvas.fit)
        self.canvas.moved.connect(self._moved)
        self.canvas.failed.connect(self.failed)
        self.host.failed.connect(self.failed)
        pools = QHBoxLayout()
        pools.setContentsMargins(0, 0, 0, 0)
        pools.setSpacing(context.theme.px(12))
        pools.addWidget(self.canvas, 3)
        pools.addWidget(self.host, 1)
        foot = QHBoxLayout()
        foot.setContentsMargins(0, 0, 0, 0)
        foot.addWidget(self.legend, 1)
        foot.addWidget(self._fit)
        layout = QVBoxLayout(self)
        pad = context.theme.px(8)
        layout.setContentsMargins(pad, 0, pad, context.theme.px(4))
        layout.setSpacing(context.theme.px(4))
        layout.addLayout(pools, 1)
        layout.addLayout(foot)
        self.setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)

    def refresh(self, kinds: Kinds) -> None:
        if kinds & Kinds.THEME:
            self.canvas.restyle()
            self.host.restyle()
            self.legend.restyle()
        state, selection = self.context.cursor.state, self.context.selection
        self.legend.show_state(state, self._note())
        self.canvas.refresh()
        self.host.refresh()
        if kinds & Kinds.SELECTION and selection.block is not None and selection.block < state.num_blocks:
            self.canvas.show_block(selection.block)
        counts = f"used {state.used:,} · cached {state.cached:,} · free {state.free:,}"
        self.summarise(f"{state.num_blocks:,} blocks · {counts} · shared {state.shared:,}" if state.num_blocks else "")

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.fillRect(event.rect(), self.context.theme.color("panel"))
        painter.end()

    def _moved(self) -> None:
        self._fit.setVisible(self.canvas.zoomed)
        self.legend.show_state(self.context.cursor.state, self._note())

    def _note(self) -> str:
        grid = self.canvas.grid
        if not grid.count:
            return ""
        if grid.fold > 1:
            return f"{grid.fold} blocks a pixel: used before cached before free"
        if self.canvas.zoomed:
            return f"{grid.columns:,} × {grid.rows:,} cells"
        return "" if grid.gutter else "scroll to zoom in"


class PoolLegend(QWidget):
    """Swatches that look like the cells they explain, each with its count. What has no room is left out, last first."""

    def __init__(self, theme: Theme, parent: QWidget | None = None):
        super().__init__(parent)
        self._theme = theme
        self._entries: list[tuple[str, str]] = []
        self._note = ""
        self.setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)
        self.restyle()

    def restyle(self) -> None:
        self._shades = Shades(self._theme)
        self.setFixedHeight(QFontMetrics(self._theme.font("small")).height() + self._theme.px(4))
        self.update()

    def show_state(self, state: EngineState, note: str) -> None:
        entries = [] if not state.num_blocks else [
            ("used", f"used {state.used:,}"),
            ("cached", f"cached {state.cached:,}"),
            ("free", f"free {state.free:,}"),
            ("shared", f"shared {state.shared:,}"),
            ("empty", f"empty {state.empty:,}"),  # reserved, that is: it has no token yet
            ("hit", "hit"),
            ("glow", "just taken"),
        ]
        if state.copies:  # copy-on-write is seen where samples or beams part
            entries.insert(4, ("copy", f"copied {state.copies:,}"))
        self.show_entries(entries, note)

    def show_entries(self, entries: list[tuple[str, str]], note: str) -> None:
        """`entries`: what the swatch looks like, and its words."""
        if (entries, note) != (self._entries, self._note):
            self._entries, self._note = entries, note
            self.update()

    def minimumSizeHint(self) -> QSize:
        return QSize(self._theme.px(60), self.height())

    def paintEvent(self, event: QPaintEvent) -> None:
        painter, theme = QPainter(self), self._theme
        painter.fillRect(event.rect(), theme.color("panel"))
        font = theme.font("small")
        metrics = QFontMetrics(font)
        painter.setFont(font)
        tall = metrics.ascent() + theme.px(2)
        wide, x = round(tall * 0.8), theme.px(2)
        for kind, text in self._entries:
            length = metrics.horizontalAdvance(text)
            if x + wide + theme.px(6) + length > self.width():
                break
            self._swatch(painter, QRect(x, (self.height() - tall) // 2, wide, tall), kind)
            x += wide + theme.px(6)
            painter.setPen(theme.color("text_dim"))
            painter.drawText(QRect(x, 0, length + 2, self.height()), Qt.AlignmentFlag.AlignVCenter, text)
            x += length + theme.px(16)
        rest = metrics.horizontalAdvance(self._note)
        if self._note and x + rest < self.width():
            painter.setPen(theme.color("text_faint"))
            painter.drawText(self.rect().adjusted(0, 0, -theme.px(4), 0),
                             Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter, self._note)  # fmt: skip
        painter.end()

    def _swatch(self, painter: QPainter, box: QRect, kind: str) -> None:
        """In the decode colour's nearest hue, so that it stands for no sequence in particular."""
        shades, hue = self._shades, 2
        body = QColor(int(shades.full[hue]))
        if kind == "free":
            body = QColor(int(shades.flat[0]))
        elif kind == "cached":
            body = QColor(int(shades.flat[1 + hue]))
        edge = {"shared": shades.ring, "glow": shades.glow}.get(kind)
        if edge is not None:
            painter.fillRect(box, QColor(int(edge[hue])))
            painter.fillRect(box.adjusted(2, 2, -2, -2), QColor(shades.background) if kind == "glow" else body)
            return
        if kind in ("hit", "copy"):
            painter.fillRect(box, QColor(shades.hit if kind == "hit" else shades.copied))
            painter.fillRect(box.adjusted(3, 3, -3, -3), body)
            return
        if kind == "empty":
            painter.fillRect(box, QColor(int(shades.barred[1 + SEQUENCE_HUES + hue])))
            painter.fillRect(box, QBrush(QColor(int(shades.hatch[hue])), Qt.BrushStyle.BDiagPattern))
            return
        painter.fillRect(box, body)
        if kind == "used":  # two thirds full: brightness and bar are fill
            empty = QColor(int(shades.barred[1 + SEQUENCE_HUES + hue]))
            painter.fillRect(QRect(box.left(), box.top(), box.width(), box.height() // 3), empty)
        elif kind == "cached":
            size = max(2, box.width() // 4)
            painter.fillRect(QRect(box.center().x() - size // 2 + 1, box.center().y() - size // 2 + 1, size, size),
                             QColor(int(shades.dot[hue])))  # fmt: skip



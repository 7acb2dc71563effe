"""The mouse of a bench: it moves over the pool without rest, and zooms in and out again."""

from __future__ import annotations

from math import cos, sin
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, QObject, QPoint, QPointF, Qt, QTimer
from PySide6.QtGui import QMouseEvent, QWheelEvent
from PySide6.QtWidgets import QApplication

if TYPE_CHECKING:
    from ui.views.pool_canvas import PoolCanvas

MOVE_EVERY = 16  # ms, as mice report
ZOOM_EVERY = 15  # moves: four notches a second
DEEPEST = 8  # notches: from several blocks a pixel to cells with words


class Hand(QObject):
    """Attributes:
    moves, notches: how many there were.
    """

    def __init__(self, canvas: PoolCanvas):
        super().__init__(canvas)
        self._canvas = canvas
        self.moves = self.notches = 0
        self._timer = QTimer(self)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.setInterval(MOVE_EVERY)
        self._timer.timeout.connect(self._act)

    def start(self) -> None:
        self._timer.start()

    def stop(self) -> None:
        """The whole pool is in sight again, and nothing is pointed at."""
        self._timer.stop()
        self._canvas.fit()
        QApplication.sendEvent(self._canvas, QEvent(QEvent.Type.Leave))

    def _act(self) -> None:
        canvas, turn = self._canvas, self.moves / 40
        at = QPointF(canvas.width() * (0.5 + 0.4 * sin(turn)), canvas.height() * (0.4 + 0.3 * cos(1.3 * turn)))
        there, none = QPointF(canvas.mapToGlobal(at)), Qt.MouseButton.NoButton
        free = Qt.KeyboardModifier.NoModifier
        QApplication.sendEvent(canvas, QMouseEvent(QEvent.Type.MouseMove, at, there, none, none, free))
        self.moves += 1
        if self.moves % ZOOM_EVERY == 0:
            inwards = self.notches % (2 * DEEPEST) < DEEPEST
            turned = QPoint(0, 120 if inwards else -120)
            QApplication.sendEvent(
                canvas,
                QWheelEvent(at, there, QPoint(), turned, none, free, Qt.ScrollPhase.NoScrollPhase, False),
            )
            self.notches += 1

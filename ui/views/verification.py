"""The stepper: one verification of the real, paused engine, walked position by position."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QRect, Qt
from PySide6.QtGui import QKeyEvent, QPainter
from PySide6.QtWidgets import QPushButton

from ui import explain, simulated
from ui.changes import Kinds
from ui.context import ViewContext
from ui.contracts import Provenance
from ui.paint.labels import CENTER, paragraph, wrap
from ui.stepper import Stepper
from ui.verification import Walk
from ui.views.painted import PaintedView
from ui.views.verification_look import Look
from ui.views.verification_page import Page

HEADLINE = "Pause, choose a sequence, press → to verify its next draft"
_KEYS = Qt.Key
_FORWARD = (_KEYS.Key_Right, _KEYS.Key_Space, _KEYS.Key_Return, _KEYS.Key_Enter, _KEYS.Key_PageDown)
_BACK = (_KEYS.Key_Left, _KEYS.Key_PageUp)
_NEXT, _ANOTHER, _OTHERS = "Next  →", "Verify the next draft  →", "Verify a draft of seq {}  →"
_SOON = 4  # steps in which a draft may be found before the page gives way to words of the search


class VerificationView(PaintedView):
    """→ and Space go on, ← back; on the last stage they ask the engine for the next verification. It takes these keys
    only while it has the focus, which it gets when it is opened or clicked.

    Attributes:
        stepper: asks the engine. page: what is drawn; None where there is nothing to walk.
        begin, back, forward: the buttons.
    """

    key = "verification"
    title, short = "Verification", "Verify"
    aside = True
    kinds = Kinds.DRAFTS | Kinds.STEPS | Kinds.SOURCE | Kinds.QUEUE | Kinds.SETTINGS | Kinds.CURSOR | Kinds.SELECTION \
        | Kinds.THEME  # fmt: skip

    def __init__(self, context: ViewContext, parent=None):
        super().__init__(context, parent)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.stepper = Stepper(context.source, context.mirror, lambda: context.selection.seq)
        self.page: Page | None = None
        self.begin = self._button("Pause and verify a draft", self._start)
        self.back = self._button("←", lambda: self._go(-1))
        self.forward = self._button(_NEXT, lambda: self._go(1))
        for button in (self.begin, self.forward):
            button.setProperty("kind", "primary")
        self.back.setAccessibleName("Back")
        self._look = Look(self.theme, self.width(), self.height())
        self._shown: tuple[object, ...] = ()

    def _button(self, text: str, call) -> QPushButton:
        button = QPushButton(text, self)
        button.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # the keys stay with the view
        button.clicked.connect(call)
        button.hide()
        return button

    @property
    def provenance(self) -> Provenance:
        walk = self.stepper.walk
        return "simulated" if walk is not None and walk.told.simulated else super().provenance

    def refresh(self, kinds: Kinds) -> None:
        self.stepper.look()
        stepper, live = self.stepper, self.context.cursor.is_live
        walk = stepper.walk
        stands = (walk, walk.at if walk else 0, stepper.seeking, stepper.stepped, stepper.problem, live,
                  self._hint(), self.context.mirror.status.paused, self.context.mirror.ready)  # fmt: skip
        if stands != self._shown or kinds & Kinds.THEME:
            self._shown = stands
            self._arrange()

    def _arrange(self) -> None:
        """The page, the buttons and the title, as things stand now."""
        stepper, walk = self.stepper, self.stepper.walk
        self._look = look = Look(self.theme, self.width(), self.height())
        waiting = stepper.seeking and (walk is None or stepper.stepped >= _SOON)
        walking = walk is not None and self.context.cursor.is_live and not waiting and not stepper.problem
        self.page = None
        if walk is not None and walking:
            self.page = Page(walk, self._before())
            told = walk.told
            drafts = f"{len(told.drafted)} drafted, {told.accepted} accepted"
            self.summarise(f"seq {told.seq} · step {told.step:,} · {drafts}")
            self.forward.setText(self._forward_words(look, walk))
            self.back.setEnabled(walk.at > 0 and not stepper.seeking)
            self.forward.setEnabled(not stepper.seeking)
        else:
            self.summarise("")
        self.back.setVisible(walking)
        self.forward.setVisible(walking)
        can = self.context.cursor.is_live and not simulated.engine(self.context.mirror.ready)
        self.begin.setVisible(not walking and can)
        self.begin.setText("Stop looking" if stepper.seeking else "Go on" if self._patient else self._invitation)
        for button in (self.begin, self.back, self.forward):
            button.setFont(look.font("brand"))
            button.resize(button.sizeHint())
        inner = self._inner()
        foot = inner.bottom() + 1
        self.back.move(inner.left(), foot - self.back.height())
        self.forward.move(inner.right() + 1 - self.forward.width(), foot - self.forward.height())
        middle = self.rect().center()
        self.begin.move(middle.x() - self.begin.width() // 2, middle.y() + look.px(12))
        self.update()

    def _forward_words(self, look: Look, walk: Walk) -> str:
        seq, room = self.stepper.choice(), self.width() * 2 // 5
        another = _ANOTHER if seq in (None, walk.told.seq) else _OTHERS.format(seq)
        texts = (another, _NEXT) if walk.over else (_NEXT,)
        return next((text for text in texts if look.advance("brand", text) < room), "→")

    @property
    def _patient(self) -> bool:
        return bool(self.stepper.problem) and self.stepper.seq in self.context.mirror.live.sequences

    @property
    def _invitation(self) -> str:
        return "Verify a draft" if self.context.mirror.status.paused else "Pause and verify a draft"

    def _before(self) -> str:
        """The text that the pass continued: its end, or the prompt's where there is no output before it."""
        walk = self.stepper.walk
        info = self.context.mirror.live.info(walk.told.seq) if walk else None
        if walk is None or info is None:
            return ""
        return "".join(piece for piece, _, step in info.pieces if step < walk.told.step) or info.prompt

    def _hint(self) -> str:
        seq = self.stepper.choice()
        if seq is None:
            return "no request is running"
        return f"sequence {seq}, the chosen one" if seq == self.context.selection.seq else \
            f"sequence {seq}; click another one in any view to choose it"  # fmt: skip

    # --- painting ---

    def _inner(self) -> QRect:
        px = self._look.px
        return self.rect().adjusted(px(16), px(8), -px(16), -px(12))

    def draw(self, painter: QPainter, area: QRect) -> None:
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        inner, look = self._inner(), self._look
        if self.page is None:
            self._draw_empty(painter, inner)
            return
        bar = max(self.back.height(), self.forward.height())
        room = inner.adjusted(0, 0, 0, -bar - look.px(8))
        left, right = self.back.geometry().right() + look.px(8), self.forward.geometry().left() - look.px(8)
        trail = QRect(left, inner.bottom() + 1 - bar, right - left, bar)
        self.page.draw(painter, room, look, trail)

    def _draw_empty(self, painter: QPainter, inner: QRect) -> None:
        look, stepper = self._look, self.stepper
        if not self.context.cursor.is_live:
            headline, hint = "This is the past", "Verifications are walked live: press Esc to return"
        elif simulated.engine(self.context.mirror.ready):
            headline, hint = simulated.NO_VERIFICATION, simulated.WHY_NO_VERIFICATION
        elif stepper.seeking:
            done = explain.count(stepper.stepped, "step")
            headline, hint = f"Stepping sequence {stepper.seq}", f"{done} without a draft so far"
        else:
            headline, hint = HEADLINE, stepper.problem or self._hint()
        middle = inner.center().y()
        role = "headline" if look.advance("headline", headline) <= inner.width() else "brand"
        lines = len(wrap(headline, look.font(role), inner.width())) * look.line(role)
        title = QRect(inner.left(), middle - lines - look.px(6), inner.width(), lines + look.px(4))
        paragraph(painter, title, headline, look.font(role), look.color("text"), CENTER)
        told = stepper.problem and not stepper.seeking and hint != simulated.WHY_NO_VERIFICATION
        ink = "warning" if told else "text_dim"
        below = middle + look.px(12) + (self.begin.height() + look.px(10) if not self.begin.isHidden() else 0)
        rest = QRect(inner.left(), below, inner.width(), inner.bottom() - below)
        paragraph(painter, rest, hint, look.font("brand"), look.color(ink), CENTER)

    # --- doing ---

    def _start(self) -> None:
        if self.stepper.seeking:
            self.stepper.stop()
        else:
            self.stepper.begin()
        self.refresh(Kinds.NONE)

    def _go(self, by: int) -> None:
        """Another stage; past the last one, or without any, the next verification."""
        stepper = self.stepper
        walk = stepper.walk
        if not self.context.cursor.is_live or stepper.seeking:
            return
        if by > 0 and (walk is None or walk.over or stepper.problem):
            stepper.begin()
        elif stepper.problem:
            stepper.problem = ""  # back to what is walked
        elif walk is not None:
            walk.go(walk.at + by)
        self.refresh(Kinds.NONE)

    # --- Qt ---

    def _takes(self, event: QKeyEvent) -> bool:
        """Space stays the window's where there is nothing to walk."""
        if event.modifiers() & ~Qt.KeyboardModifier.KeypadModifier or not self.context.cursor.is_live:
            return False
        walking = self.stepper.walk is not None
        return event.key() == _KEYS.Key_Right or (walking and event.key() in (*_FORWARD, *_BACK))

    def event(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.ShortcutOverride and self._takes(event):
            event.accept()
            return True
        return super().event(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if not self._takes(event):
            super().keyPressEvent(event)
            return
        self._go(-1 if event.key() in _BACK else 1)

    def mousePressEvent(self, event) -> None:
        at = event.position().toPoint()
        place = next((place for box, place in self.page.hits if box.contains(at)), None) if self.page else None
        walk = self.stepper.walk
        if place is not None and walk is not None and event.button() == Qt.MouseButton.LeftButton:
            walk.go(place)
            self.refresh(Kinds.NONE)

    def resizeEvent(self, event) -> None:
        super().resizeEvent(event)
        self._arrange()

    def showEvent(self, event) -> None:
        super().showEvent(event)
        self.setFocus()

    def hideEvent(self, event) -> None:
        super().hideEvent(event)
        self.stepper.rest()

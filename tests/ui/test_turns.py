"""Which views a frame redraws: those without a rate always, of the others one, and none beside much to apply."""

from __future__ import annotations

import pytest

from tests.ui.scenes import scene
from ui import frame as frames
from ui.changes import Kinds
from ui.frame import Frame


class Dock:
    """As much of a dock as a frame looks at."""

    shown, urgent = True, False

    def __init__(self, name: str, leisurely: bool, waited: float, drawn: list[str]):
        self.name, self.leisurely, self._waited, self._drawn = name, leisurely, waited, drawn
        self.due, self.view = Kinds.NONE, self
        self.kinds = Kinds.ALL

    def wants(self, now: float) -> bool:
        return not self.leisurely or self._waited >= 0 or self.urgent

    def waited(self, now: float) -> float:
        return self._waited

    def take(self, now: float) -> Kinds:
        return self.due

    def refresh(self, kinds: Kinds) -> None:
        self._drawn.append(self.name)


@pytest.mark.parametrize(("applied", "drawn"), [(0, ["pool", "words"]), (frames.MUCH_NS + 1, ["pool"])])
def test_whoever_waited_longest_has_the_turn(qapp, applied: int, drawn: list[str]) -> None:
    found: list[str] = []
    docks = [Dock("pool", False, 0.0, found), Dock("rows", True, 0.01, found), Dock("words", True, 0.1, found),
             Dock("early", True, -0.1, found)]  # fmt: skip
    deck = type("Deck", (), {"docks": {dock.name: dock for dock in docks}})()
    frame = Frame(scene(64, 4, 5), deck, None)  # type: ignore[arg-type]
    frame._applied = applied
    frame._draw_views(Kinds.STEPS, 10.0)
    assert found == drawn
    docks[1]._waited, docks[3].urgent = frames._PATIENCE + 1, True
    found.clear()
    frame._draw_views(Kinds.STEPS, 10.0)
    assert found == ["pool", "rows", "early"]  # who waited too long, and what the user did, whatever there is to apply

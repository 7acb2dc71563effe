"""Pictures that are copied until they change: the latest of them, in as many bytes as two screens have."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QSize
from PySide6.QtGui import QImage, QPixmap

from ui.paint.pictures import Pictures

SCREEN = QSize(100, 50)  # 20,000 bytes, and twice as many are kept


def image(wide: int = 50, tall: int = 50) -> QImage:
    return QImage(wide, tall, QImage.Format.Format_RGB32)  # 10,000 bytes


@pytest.fixture
def pictures() -> Pictures[QImage]:
    found: Pictures[QImage] = Pictures()
    found.fit(SCREEN)
    return found


def test_the_same_key_is_painted_once(pictures):
    first = pictures.of("a", image)
    assert pictures.of("a", lambda: pytest.fail("painted twice")) is first
    assert (len(pictures), pictures.bytes) == (1, 10_000)


def test_those_not_asked_for_the_longest_go_first(pictures):
    for key in "abcd":
        pictures.of(key, image)
    pictures.of("a", image)
    pictures.of("e", image)
    assert pictures.bytes == 40_000
    for key in "acde":
        pictures.of(key, lambda: pytest.fail("it is held"))
    assert pictures.of("b", lambda: image(25, 50)).width() == 25


def test_one_larger_than_the_room_is_held_alone(pictures):
    pictures.of("a", image)
    pictures.of("b", lambda: image(500, 50))
    assert (len(pictures), pictures.bytes) == (1, 100_000)
    pictures.of("c", image)
    assert (len(pictures), pictures.bytes) == (1, 10_000)


def test_a_smaller_view_keeps_less(pictures):
    for key in "abcd":
        pictures.of(key, image)
    pictures.fit(QSize(50, 50))
    pictures.of("e", image)
    assert pictures.bytes == 20_000


def test_pixmaps_are_counted_as_they_are(qapp):
    found: Pictures[QPixmap] = Pictures()
    found.fit(SCREEN)
    found.of(1, lambda: QPixmap(10, 10))
    assert found.bytes == 400

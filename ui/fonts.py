"""The two families that ship in assets, so that a bare machine renders the same: Inter for words and figures,
JetBrains Mono for tokens and ids. Falls back to the system's own when a file is missing."""

from __future__ import annotations

from importlib.resources import files

from PySide6.QtGui import QFont, QFontDatabase, QFontInfo

FACES = ("Inter-Regular.otf", "Inter-Medium.otf", "Inter-SemiBold.otf", "JetBrainsMono-Regular.ttf")
SANS, MONO = "Inter", "JetBrains Mono"

# role: (family, pixels at text scale 1, weight)
_ROLES: dict[str, tuple[str, int, QFont.Weight]] = {
    "small": (SANS, 12, QFont.Weight.Normal),
    "body": (SANS, 13, QFont.Weight.Normal),
    "strong": (SANS, 13, QFont.Weight.DemiBold),
    "title": (SANS, 14, QFont.Weight.DemiBold),
    "brand": (SANS, 18, QFont.Weight.DemiBold),
    "headline": (SANS, 25, QFont.Weight.DemiBold),
    "mono": (MONO, 12, QFont.Weight.Normal),
    "mono_small": (MONO, 11, QFont.Weight.Normal),
}
ROLES = tuple(_ROLES)
SMALLEST = min(pixels for _, pixels, _ in _ROLES.values())


def load() -> None:
    """Make the shipped faces known to Qt. Needs a QGuiApplication; harmless when repeated."""
    if {SANS, MONO} <= set(QFontDatabase.families()):
        return
    for face in FACES:
        entry = files("assets") / "fonts" / face
        if entry.is_file():
            QFontDatabase.addApplicationFontFromData(entry.read_bytes())


def pixels(role: str, scale: float) -> int:
    """Height of a role's font in pixels."""
    return round(_ROLES[role][1] * scale)


def make(role: str, scale: float) -> QFont:
    """The font of a role, with figures of one width so that running numbers don't jitter."""
    family, _, weight = _ROLES[role]
    font = QFont(family)
    font.setPixelSize(pixels(role, scale))
    font.setWeight(weight)
    font.setStyleHint(QFont.StyleHint.Monospace if family == MONO else QFont.StyleHint.SansSerif)
    font.setHintingPreference(QFont.HintingPreference.PreferNoHinting)
    if family == SANS:
        font.setFeature(QFont.Tag("tnum"), 1)
    return font


def shipped(font: QFont) -> bool:
    """Whether Qt really draws this font with a shipped family."""
    return QFontInfo(font).family().startswith((SANS, MONO))

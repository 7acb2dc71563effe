"""The look of the window: named colours, fonts and sizes, and the signal that they changed. No colour literal
and no font size lives anywhere else.

Dark by default; light for bright rooms. Every colour is given in OKLCH (see `palette`), so that the two themes are
the same hues at other lightnesses. The meanings that must never be confused (prefill, decode, accepted, rejected)
also differ in lightness, because hue alone is lost to a colour-blind eye; views put a shape beside them as well.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtGui import QBrush, QColor, QFont, QPalette, QPen

from ui import fonts, palette, style

Name = Literal["dark", "light"]
Lch = tuple[float, float, float]

# token: (dark, light), each lightness, chroma, hue
_TOKENS: dict[str, tuple[Lch, Lch]] = {
    # surfaces and words
    "bg": ((0.155, 0.012, 258), (0.935, 0.005, 255)),
    "panel": ((0.205, 0.014, 255), (0.995, 0.002, 255)),
    "raised": ((0.262, 0.016, 255), (0.962, 0.004, 255)),
    "hover": ((0.315, 0.018, 255), (0.915, 0.008, 255)),
    "border": ((0.315, 0.016, 255), (0.855, 0.008, 255)),
    "text": ((0.965, 0.004, 255), (0.215, 0.015, 255)),
    "text_dim": ((0.790, 0.012, 255), (0.420, 0.016, 255)),
    "text_faint": ((0.680, 0.014, 255), (0.510, 0.016, 255)),
    "accent": ((0.740, 0.120, 278), (0.500, 0.180, 278)),
    "selection": ((0.990, 0.015, 100), (0.150, 0.020, 260)),
    # what tokens are
    "prefill": ((0.750, 0.150, 65), (0.520, 0.150, 45)),
    "decode": ((0.780, 0.120, 190), (0.520, 0.100, 200)),
    "accepted": ((0.860, 0.180, 146), (0.480, 0.160, 140)),
    "rejected": ((0.680, 0.240, 352), (0.550, 0.250, 355)),
    "bonus": ((0.690, 0.140, 262), (0.500, 0.190, 265)),
    # what blocks are
    "free": ((0.262, 0.014, 255), (0.935, 0.005, 255)),
    "cached": ((0.430, 0.050, 205), (0.780, 0.040, 205)),
    # lines
    "limit": ((0.800, 0.020, 255), (0.400, 0.020, 255)),
    "target": ((0.860, 0.020, 255), (0.350, 0.020, 255)),
    "mark": ((0.730, 0.150, 310), (0.520, 0.190, 310)),
    # how it stands
    "warning": ((0.820, 0.150, 88), (0.520, 0.110, 75)),
    "danger": ((0.700, 0.180, 25), (0.520, 0.200, 27)),
    "measured": ((0.790, 0.150, 152), (0.490, 0.130, 150)),
    "simulated": ((0.790, 0.140, 75), (0.530, 0.120, 65)),
    "derived": ((0.750, 0.110, 245), (0.500, 0.140, 250)),
    "unavailable": ((0.690, 0.012, 255), (0.500, 0.012, 255)),
    # two runs on one plot: far apart in lightness too
    "run_a": ((0.870, 0.140, 98), (0.530, 0.110, 88)),
    "run_b": ((0.670, 0.150, 252), (0.450, 0.190, 260)),
    # parts of memory
    "weights": ((0.620, 0.040, 262), (0.560, 0.045, 262)),
    "kv_used": ((0.780, 0.120, 190), (0.520, 0.100, 200)),
    "kv_cached": ((0.520, 0.080, 192), (0.730, 0.080, 195)),
    "kv_free": ((0.330, 0.025, 215), (0.880, 0.020, 205)),
    "host_pool": ((0.640, 0.090, 228), (0.620, 0.090, 230)),
    "draft": ((0.680, 0.085, 335), (0.620, 0.095, 335)),
    "graphs": ((0.640, 0.110, 300), (0.600, 0.130, 300)),
    "slack": ((0.500, 0.050, 285), (0.760, 0.045, 285)),
    "baseline": ((0.440, 0.030, 265), (0.690, 0.030, 265)),
    "rest": ((0.600, 0.080, 85), (0.660, 0.090, 85)),
}
TOKENS = tuple(_TOKENS)
# tokens that views also write words in; each has 4.5:1 on `panel` and `raised`
WORDS = (
    "text", "text_dim", "text_faint", "accent", "prefill", "decode", "accepted", "rejected", "bonus", "limit", "target",
    "mark", "warning", "danger", "measured", "simulated", "derived", "unavailable",
    "run_a", "run_b",
)  # fmt: skip

SEQUENCE_HUES = 24
_HUE_STRIDE = 7  # coprime to 24, and 105°: sequences next to each other in number are far apart in hue
_SEQUENCE_TONES: dict[Name, tuple[tuple[float, float], ...]] = {
    # three lightnesses in turn, so that neighbours in hue still differ where hue can't be seen
    "dark": ((0.78, 0.125), (0.71, 0.130), (0.64, 0.125)),
    "light": ((0.68, 0.130), (0.63, 0.130), (0.74, 0.115)),
}
SCALES = (1.0, 1.25, 1.5, 1.75, 2.0)


def token_rgb(token: str, name: Name) -> palette.Rgb:
    """sRGB, 0..1, of a token; for tests of contrast."""
    return palette.oklch_to_rgb(*_TOKENS[token][0 if name == "dark" else 1])


class Theme(QObject):
    """Colours, fonts and sizes in force.

    Signals:
        changed: the palette or the text scale is another one now.

    Attributes:
        name: "dark" or "light".
        scale: text scale, 1.0 to 2.0.
    """

    changed = Signal()

    def __init__(
        self, name: Name = "dark", scale: float = 1.0, parent: QObject | None = None, largest: float = SCALES[-1]
    ):
        super().__init__(parent)
        fonts.load()
        self.name: Name = name
        self.scale = min(largest, max(1.0, scale))
        self._build()

    def set_name(self, name: Name) -> None:
        if name != self.name:
            self.name = name
            self._build()
            self.changed.emit()

    def set_scale(self, scale: float) -> None:
        scale = min(SCALES[-1], max(SCALES[0], scale))
        if scale != self.scale:
            self.scale = scale
            self._build()
            self.changed.emit()

    def color(self, token: str, alpha: float = 1.0) -> QColor:
        """The colour of a token; `alpha` 0..1."""
        colour = QColor(self._colors[token])
        if alpha < 1.0:
            colour.setAlphaF(alpha)
        return colour

    def mix(self, token: str, share: float, surface: str = "panel") -> QColor:
        """`share` of a token over a surface, opaque: tints that cost no blending."""
        a, b = self._colors[token], self._colors[surface]
        parts = zip((a.red(), a.green(), a.blue()), (b.red(), b.green(), b.blue()), strict=True)
        return QColor(*(round(x * share + y * (1 - share)) for x, y in parts))

    def sequence_color(self, seq: int) -> QColor:
        """The hue of a sequence, the same in every view and for as long as it is known."""
        return QColor(*(int(c) for c in self._sequences[seq % SEQUENCE_HUES]))

    def sequence_rgb(self) -> NDArray[np.uint8]:
        """(24, 3): the colour of sequence `seq` is row `seq % 24`."""
        return self._sequences.copy()

    def ink_on(self, color: QColor) -> QColor:
        """Near-black or near-white, whichever reads better on `color`."""
        rgb = (color.redF(), color.greenF(), color.blueF())
        dark, light = token_rgb("text", "light"), token_rgb("text", "dark")
        best = dark if palette.contrast(rgb, dark) >= palette.contrast(rgb, light) else light
        return QColor.fromRgbF(*best)

    def px(self, n: float) -> int:
        """`n` pixels at text scale 1, scaled."""
        return round(n * self.scale)

    def font(self, role: str) -> QFont:
        """Roles: small, body, strong, title, headline, mono, mono_small."""
        return QFont(self._fonts[role])

    def pen(self, token: str, width: float = 1) -> QPen:
        """Opaque and solid: the kind that draws fast. Pixels as they are, not scaled."""
        pen = QPen(self._colors[token])
        pen.setWidthF(width)
        pen.setCosmetic(True)
        pen.setCapStyle(Qt.PenCapStyle.FlatCap)
        return pen

    def brush(self, token: str) -> QBrush:
        return QBrush(self._colors[token])

    def qss(self) -> str:
        """The style sheet of the whole window."""
        return style.sheet(self)

    def qpalette(self) -> QPalette:
        """For what the style sheet doesn't reach: dialogs, selections in text, disabled words."""
        roles = QPalette.ColorRole
        colours = {
            roles.Window: "bg", roles.Base: "panel", roles.AlternateBase: "raised", roles.Button: "raised",
            roles.ToolTipBase: "raised", roles.WindowText: "text", roles.Text: "text", roles.ButtonText: "text",
            roles.ToolTipText: "text", roles.PlaceholderText: "text_faint", roles.Highlight: "accent",
            roles.HighlightedText: "panel", roles.Link: "accent",
        }  # fmt: skip
        result = QPalette()
        for role, token in colours.items():
            result.setColor(role, self._colors[token])
        for role in (roles.WindowText, roles.Text, roles.ButtonText):
            result.setColor(QPalette.ColorGroup.Disabled, role, self._colors["text_faint"])
        return result

    def _build(self) -> None:
        self._colors = {token: QColor.fromRgbF(*token_rgb(token, self.name)) for token in _TOKENS}
        self._fonts = {role: fonts.make(role, self.scale) for role in fonts.ROLES}
        tones = _SEQUENCE_TONES[self.name]
        step = 360 / SEQUENCE_HUES
        self._sequences = np.array(
            [
                palette.oklch_to_rgb8(*tones[i % len(tones)], 20 + step * (i * _HUE_STRIDE % SEQUENCE_HUES))
                for i in range(SEQUENCE_HUES)
            ],
            dtype=np.uint8,
        )

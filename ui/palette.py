"""Colour arithmetic: OKLCH in, sRGB out; contrast and colour-vision checks. No Qt.

OKLCH (Ottosson 2020) is used because equal steps of its lightness look equal, so that hues of one lightness weigh
the same to the eye. Colours outside sRGB keep lightness and hue and give up chroma.
"""

from __future__ import annotations

import math

Rgb = tuple[float, float, float]  # 0..1, gamma-encoded unless said


def oklch_to_rgb(lightness: float, chroma: float, hue: float) -> Rgb:
    """sRGB of an OKLCH colour (hue in degrees), its chroma lowered until it fits the gamut."""
    if _fits(_linear(lightness, chroma, hue)):
        return _encode(_linear(lightness, chroma, hue))
    low, high = 0.0, chroma
    for _ in range(20):
        middle = (low + high) / 2
        if _fits(_linear(lightness, middle, hue)):
            low = middle
        else:
            high = middle
    return _encode(_linear(lightness, low, hue))


def oklch_to_rgb8(lightness: float, chroma: float, hue: float) -> tuple[int, int, int]:
    r, g, b = oklch_to_rgb(lightness, chroma, hue)
    return round(r * 255), round(g * 255), round(b * 255)


def rgb_to_oklab(rgb: Rgb) -> tuple[float, float, float]:
    r, g, b = (_decode(c) for c in rgb)
    lms = (
        0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b,
        0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b,
        0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b,
    )
    l_, m_, s_ = (math.copysign(abs(v) ** (1 / 3), v) for v in lms)
    return (
        0.2104542553 * l_ + 0.7936177850 * m_ - 0.0040720468 * s_,
        1.9779984951 * l_ - 2.4285922050 * m_ + 0.4505937099 * s_,
        0.0259040371 * l_ + 0.7827717662 * m_ - 0.8086757660 * s_,
    )


def difference(a: Rgb, b: Rgb) -> float:
    """Distance in OKLab; about 0.02 is the least that is seen side by side."""
    return math.dist(rgb_to_oklab(a), rgb_to_oklab(b))


def luminance(rgb: Rgb) -> float:
    """Relative luminance (WCAG 2), 0..1."""
    r, g, b = (_decode(c) for c in rgb)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(a: Rgb, b: Rgb) -> float:
    """WCAG 2 contrast ratio, 1..21."""
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


# Machado et al. 2009, severity 1.0, on linear RGB
_DEFICIENCIES = {
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritan": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
DEFICIENCIES = tuple(_DEFICIENCIES)


def seen_with(rgb: Rgb, deficiency: str) -> Rgb:
    """The colour as an eye with full protanopia, deuteranopia or tritanopia sees it."""
    linear = [_decode(c) for c in rgb]
    rows = _DEFICIENCIES[deficiency]
    r, g, b = (sum(weight * c for weight, c in zip(row, linear, strict=True)) for row in rows)
    return _encode((r, g, b))


def _linear(lightness: float, chroma: float, hue: float) -> Rgb:
    a, b = chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))
    l_ = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    m_ = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    s_ = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    return (
        4.0767416621 * l_ - 3.3077115913 * m_ + 0.2309699292 * s_,
        -1.2684380046 * l_ + 2.6097574011 * m_ - 0.3413193965 * s_,
        -0.0041960863 * l_ - 0.7034186147 * m_ + 1.7076147010 * s_,
    )


def _fits(linear: Rgb) -> bool:
    return all(-1e-4 <= c <= 1 + 1e-4 for c in linear)


def _encode(linear: Rgb) -> Rgb:
    r, g, b = (
        12.92 * c if c <= 0.0031308 else 1.055 * c ** (1 / 2.4) - 0.055 for c in (min(1.0, max(0.0, v)) for v in linear)
    )
    return r, g, b


def _decode(c: float) -> float:
    return c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4

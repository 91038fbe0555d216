"""The colours of every picture, as data: ink per theme, a hue and a letter per op family.

Families are given in OKLCH, equal in lightness and different in hue; static pictures use the resolved hex values.
Conversions after Björn Ottosson, "A perceptual color space for image processing" (2020).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Literal

Theme = Literal["light", "dark"]


@dataclass(frozen=True, slots=True)
class Ink:
    """The colours of one theme, each with one meaning everywhere."""

    bg: str
    bg2: str
    bg3: str
    line: str
    text: str
    muted: str
    accent: str
    accent_bg: str
    ok: str
    warn: str
    error: str
    edge: str


INK: dict[Theme, Ink] = {
    "light": Ink(
        bg="#ffffff",
        bg2="#f6f7f9",
        bg3="#eceff3",
        line="#dfe3e8",
        text="#1a1f26",
        muted="#5d6773",
        accent="#2458e6",
        accent_bg="#e9efff",
        ok="#1a7f4b",
        warn="#b35900",
        error="#c2293a",
        edge="#868f9b",
    ),
    "dark": Ink(
        bg="#14171b",
        bg2="#1b1f25",
        bg3="#262b33",
        line="#313842",
        text="#e7eaee",
        muted="#9aa5b1",
        accent="#7ea6ff",
        accent_bg="#1f2d4d",
        ok="#5fcf95",
        warn="#f0a95a",
        error="#ff7b86",
        edge="#7a8592",
    ),
}


@dataclass(frozen=True, slots=True)
class OpFamily:
    """An op family: its letter, because meaning is never colour alone, and its hue; `chroma` at full strength."""

    letter: str
    hue: float
    chroma: float = 0.13


FAMILIES: dict[str, OpFamily] = {
    "leaf": OpFamily("L", 195),
    "elementwise": OpFamily("E", 245),
    "contraction": OpFamily("C", 292),
    "reduction": OpFamily("R", 70),
    "loss": OpFamily("X", 22),
    "movement": OpFamily("M", 255, 0.03),
    "index": OpFamily("I", 150),
    "random": OpFamily("N", 340),
    "update": OpFamily("U", 150),
}

LIGHTNESS: dict[Theme, float] = {"light": 0.49, "dark": 0.76}
FILL: dict[Theme, float] = {"light": 0.08, "dark": 0.14}
BORDER = 0.8
LANE_TINT = 0.05
LANE_FAMILY = {"forward": "elementwise", "adjoint": "reduction", "optimizer": "update"}


@dataclass(frozen=True, slots=True)
class FamilyInk:
    """A family in one theme: its colour at full strength, a node's fill and border."""

    letter: str
    full: str
    fill: str
    border: str


@cache
def family_ink(family: str, theme: Theme) -> FamilyInk:
    """Return the colours of a family's nodes on the canvas of a theme."""
    known = FAMILIES[family]
    full = oklch(LIGHTNESS[theme], known.chroma, known.hue)
    bg = INK[theme].bg
    return FamilyInk(known.letter, full, mix(full, bg, FILL[theme]), mix(full, bg, BORDER))


@cache
def lane_tint(lane: str, theme: Theme) -> str:
    """Return the colour of the column behind a lane: `forward`, `adjoint` or `optimizer`."""
    return mix(family_ink(LANE_FAMILY[lane], theme).full, INK[theme].bg, LANE_TINT)


def oklch(lightness: float, chroma: float, hue: float) -> str:
    """Return the sRGB hex value of an OKLCH colour; its chroma is lowered to the most that sRGB has at that lightness
    and hue."""
    if _fits(_linear(*_oklab(lightness, chroma, hue))):
        return _hex(_linear(*_oklab(lightness, chroma, hue)))
    low, high = 0.0, chroma
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if _fits(_linear(*_oklab(lightness, middle, hue))) else (low, middle)
    return _hex(_linear(*_oklab(lightness, low, hue)))


def mix(colour: str, ground: str, share: float) -> str:
    """Mix `share` of a colour with a ground, in OKLab like CSS `color-mix(in oklab, …)`."""
    a, b = _lab(colour), _lab(ground)
    return _hex(_linear(*(share * x + (1 - share) * y for x, y in zip(a, b, strict=True))))


def _oklab(lightness: float, chroma: float, hue: float) -> tuple[float, float, float]:
    turn = math.radians(hue)
    return lightness, chroma * math.cos(turn), chroma * math.sin(turn)


def _linear(lightness: float, a: float, b: float) -> tuple[float, float, float]:
    """Convert OKLab to linear sRGB."""
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    mid = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    return (
        4.0767416621 * long - 3.3077115913 * mid + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * mid - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * mid + 1.7076147010 * short,
    )


def _lab(colour: str) -> tuple[float, float, float]:
    """Return a hex colour in OKLab."""
    r, g, b = _channels(colour)
    long = math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b)
    mid = math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b)
    short = math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b)
    return (
        0.2104542553 * long + 0.7936177850 * mid - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * mid + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * mid - 0.8086757660 * short,
    )


def _channels(colour: str) -> tuple[float, float, float]:
    """Return a hex colour in linear sRGB."""
    r, g, b = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return _decode(r), _decode(g), _decode(b)


def _decode(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4


def _encode(value: float) -> float:
    return 12.92 * value if value <= 0.0031308 else 1.055 * value ** (1 / 2.4) - 0.055


def _fits(linear: tuple[float, float, float]) -> bool:
    return all(-1e-6 <= value <= 1 + 1e-6 for value in linear)


def _hex(linear: tuple[float, float, float]) -> str:
    return "#" + "".join(f"{round(255 * _encode(min(1.0, max(0.0, value)))):02x}" for value in linear)

"""The contrast of two colours, after WCAG 2.2: `contrast("#000000", "#ffffff")` is 21."""

from __future__ import annotations

from gdlab.view.picture.palette import _channels


def contrast(a: str, b: str) -> float:
    """The WCAG contrast of two hex colours, 1 … 21."""
    dark, light = sorted((luminance(a), luminance(b)))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    """The relative luminance of a hex colour, 0 … 1."""
    r, g, b = _channels(colour)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b

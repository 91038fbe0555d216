"""The colours: contrast computed from the table, conversions against known values."""

from __future__ import annotations

import re

import pytest
from colours import contrast

from gdlab.view.picture.palette import FAMILIES, INK, LANE_FAMILY, Theme, family_ink, lane_tint, mix, oklch

THEMES: tuple[Theme, ...] = ("light", "dark")


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_node_can_be_read(family: str, theme: Theme) -> None:
    ink, node = INK[theme], family_ink(family, theme)
    assert contrast(ink.text, node.fill) >= 4.5
    assert contrast(ink.muted, node.fill) >= 4.5
    assert contrast(node.full, node.fill) >= 4.5, "a person's name for the node, and the letter"
    grounds = [ink.bg, node.fill, *(lane_tint(lane, theme) for lane in LANE_FAMILY)]
    assert min(contrast(node.border, ground) for ground in grounds) >= 3
    assert min(contrast(node.full, ground) for ground in grounds) >= 3


@pytest.mark.parametrize("theme", THEMES)
def test_ink_on_every_ground(theme: Theme) -> None:
    ink = INK[theme]
    grounds = [ink.bg, ink.bg2, *(lane_tint(lane, theme) for lane in LANE_FAMILY)]
    for ground in grounds:
        assert contrast(ink.text, ground) >= 4.5
        assert contrast(ink.muted, ground) >= 4.5
        assert contrast(ink.accent, ground) >= 4.5
        assert contrast(ink.edge, ground) >= 3
        assert contrast(ink.warn, ground) >= 3
        assert contrast(ink.error, ground) >= 4.5
    assert contrast(ink.text, ink.accent_bg) >= 4.5
    assert contrast(ink.muted, ink.accent_bg) >= 4.5
    assert contrast(ink.muted, ink.bg3) >= 4.5
    assert contrast(ink.bg, ink.accent) >= 4.5, "the primary button"
    assert contrast(ink.warn, ink.bg) >= 4.5
    assert contrast(ink.ok, ink.bg) >= 4.5


def test_families_differ() -> None:
    assert len({family.letter for family in FAMILIES.values()}) == len(FAMILIES)
    for theme in THEMES:
        hues = {family_ink(name, theme).full for name in FAMILIES if name != "update"}
        assert len(hues) == 8
        assert all(re.fullmatch("#[0-9a-f]{6}", hue) for hue in hues)
        lightness = [contrast(hue, "#000000") for hue in hues]
        assert max(lightness) <= 1.25 * min(lightness), "equal in lightness: none shouts"


def test_conversions() -> None:
    assert oklch(1, 0, 0) == "#ffffff"
    assert oklch(0, 0, 0) == "#000000"
    assert oklch(0.6279554, 0.2576833, 29.2338) == "#ff0000"
    assert oklch(0.4520137, 0.3132144, 264.0520) == "#0000ff"
    assert oklch(0.49, 0.13, 292) == "#634fa3"
    assert oklch(0.49, 0.13, 195) == oklch(0.49, 0.0837, 195), "outside sRGB: less chroma, same lightness and hue"
    assert mix("#ff0000", "#0000ff", 0.5) == "#8c53a2"
    assert mix("#123456", "#ffffff", 1) == "#123456"
    assert mix("#123456", "#abcdef", 0) == "#abcdef"


def test_contrast() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)
    assert contrast("#ffffff", "#777777") == contrast("#777777", "#ffffff")

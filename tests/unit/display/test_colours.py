"""The steps of the scales of colours: legible, ordered, and as the guidelines define contrast."""

from __future__ import annotations

import math
import re

import pytest

from embgrad.display import colours


@pytest.mark.parametrize(
    ("first", "second", "ratio"),
    [("#000000", "#ffffff", 21.0), ("#777777", "#ffffff", 4.48), ("#ff0000", "#ffffff", 4.0),
        ("#0000ff", "#ffffff", 8.59)],
)  # fmt: skip
def test_contrasts_are_those_of_the_guidelines(first: str, second: str, ratio: float) -> None:
    assert colours.contrast(first, second) == colours.contrast(second, first) == pytest.approx(ratio, abs=0.005)
    assert colours.contrast(first, first) == 1


def test_the_luminance_of_a_colour_is_the_sum_of_its_channels() -> None:
    alone = [colours._luminance(colour) for colour in ("#ff0000", "#00ff00", "#0000ff")]
    assert alone == pytest.approx([0.2126, 0.7152, 0.0722])
    assert colours._luminance("#0a0a0a") == pytest.approx(10 / 255 / 12.92)
    assert colours._luminance("#0b0b0b") == pytest.approx(((11 / 255 + 0.055) / 1.055) ** 2.4)
    assert colours._luminance("#ffffff") == pytest.approx(1)


def test_mixed_colours_and_the_ink_on_them() -> None:
    assert [colours.mix("#000000", "#ff8040", share) for share in (0, 0.5, 1)] == ["#000000", "#804020", "#ff8040"]
    assert (colours.ink("#ffffff"), colours.ink("#000000"), colours.ink("#0072b2")) == ("#000000", "#ffffff", "#ffffff")
    for scheme, palette in colours.PALETTES.items():
        assert colours.step(scheme, "p", 0).background == palette["paper"]
        assert colours.step(scheme, "p", colours.LEVELS).background == palette["p"]
        for scale in "npm":
            for level in range(colours.LEVELS + 1):
                drawn = colours.step(scheme, scale, level)
                assert colours.contrast(drawn.background, drawn.text) >= colours.LEAST_CONTRAST
    half = colours.mix("#ffffff", "#d55e00", 0.5**0.8)
    assert colours.step("light", "p", colours.LEVELS // 2).background == half


@pytest.mark.parametrize(
    ("figure", "largest", "signed", "expected"),
    [(0.0, 1.0, True, ("", 0)), (math.nan, 1.0, True, ("", 0)), (math.inf, 1.0, False, ("", 0)),
        (1.0, 1.0, True, ("p", 16)), (-1.0, 1.0, True, ("m", 16)), (-1.0, 1.0, False, ("n", 16)),
        (0.5, 1.0, False, ("n", 8)), (7.0, 1.0, True, ("p", 16)), (1.0, 0.0, True, ("p", 16)),
        (0.25, 2.0, True, ("p", 2))],
)  # fmt: skip
def test_the_shade_of_a_figure(figure: float, largest: float, signed: bool, expected: tuple[str, int]) -> None:
    assert colours.shade(figure, largest, signed) == expected


def test_the_stylesheet_has_a_class_for_each_step_of_each_scheme() -> None:
    bars, light, dark = (part := colours.token_css().splitlines())[:-2], part[-2], part[-1]
    assert bars == [f".{s}{n}{{--w:{n / 16:.2%}}}" for s in "npm" for n in range(1, 17)]
    assert re.findall(r"\.([npm]\d+)\{--b:#", light) == [f"{s}{n}" for s in "npm" for n in range(1, 17)]
    assert dark.startswith("@media screen and (prefers-color-scheme:dark){.n1{--b:")
    assert dark.count("--f:") == 48
    assert ".p16{--b:#d55e00;--f:#000000}" in light
    assert ".p16{--b:#f0a04b;--f:#000000}" in dark


def test_tints_are_half_opaque_at_most() -> None:
    assert colours.tint("p", 16) == "rgba(213,94,0,0.50)"
    assert colours.tint("m", 8) == "rgba(0,114,178,0.25)"
    assert colours.tint("n", 16, 1.0) == "rgba(106,44,145,1.00)"


def test_a_step_is_never_paler_than_the_one_before() -> None:
    for scheme, palette in colours.PALETTES.items():
        for scale in "npm":
            steps = [colours.step(scheme, scale, level).background for level in range(colours.LEVELS + 1)]
            away = [colours.contrast(step, palette["paper"]) for step in steps]
            assert away == sorted(away)

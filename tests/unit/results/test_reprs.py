"""Every public result is shown in a few lines, however large it is."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import embgrad
from embgrad.results.certificate import Certificate, Slope
from embgrad.results.port_records import PortWeights, WeightPair
from tests.unit.stored import CERTIFICATE
from tests.unit.streams import run

#: The types of fields that Python's own representation of a dataclass shows in a few characters each.
SHORT = {"str", "int", "float", "bool", "Path", "Lookup | None"}
#: Names that a model has few of: a point's roles and axes, a finding's causes and layers.
FEW = {"tuple[str, ...]", "tuple[int, ...]", "tuple[str, str]"}


@pytest.mark.parametrize("name", embgrad.results.__all__)
def test_no_result_shows_its_arrays_or_lists(name: str) -> None:
    kind = getattr(embgrad.results, name)
    assert kind.__repr__ is not object.__repr__
    if dataclasses.is_dataclass(kind) and hasattr(kind.__repr__, "__wrapped__"):  # it is made by `dataclass`
        types = {field.type.removesuffix(" | None") for field in dataclasses.fields(kind) if field.repr}
        assert types <= SHORT | FEW | {"Lookup"}, name


def expect_short(made: Any) -> str:
    text = repr(made)
    assert len(text) < 250
    assert "\n" not in text
    return text


def test_a_certificate_is_summed_up() -> None:
    assert expect_short(CERTIFICATE) == "Certificate(1 slopes, all hold, scatter 1e-08)"
    wrong = Slope("gradient", 1.0, 2.0, 1e-9, 1e-6)
    many = Certificate(
        CERTIFICATE.slopes * 500 + (wrong,), 1e-8, 0.25, tuple(range(99)), 0.5, None, 0.125, {"order": "x"}
    )
    assert expect_short(many) == (
        "Certificate(501 slopes, 1 wrong, scatter 1e-08, independence 0.25, neighbours 0.5, padding 0.12, "
        "99 examples not tested, not run: order)"
    )


def test_the_weights_of_a_port_are_counted() -> None:
    fields = {field.name: False for field in dataclasses.fields(WeightPair)}
    pair = WeightPair(**{**fields, "a": "w", "b": "v", "distance": 0.0, "relation": ""})
    weights = PortWeights((pair, dataclasses.replace(pair, is_equal=True)) * 400, {"w": ("v",)}, ("a",) * 3, ())
    assert expect_short(weights) == (
        "PortWeights(800 pairs, 400 of them different, 1 fused or split, without a partner 3 of the reference and 0 of the port)"
    )


def test_a_stream_says_what_it_yields() -> None:
    stream = run(None, at=["word", "block"])
    next(stream)
    assert expect_short(stream) == "Stream(gradients at 'word', 'block', keep='all', 2 examples done)"
    assert expect_short(next(run(None, keep="saliency"))).startswith("Attribution(2 × ")

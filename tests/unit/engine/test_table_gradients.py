"""The ledger of a table's gradient: what comes by its lookups, and what by other ways."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.errors import NoGradientError, PointError, UnknownPointError
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.unit.numerics import differences
from tests.unit.refusals import refused

VOCAB, DIM = 7, 4
IDS = np.array([[3, 5, 3], [2, 6, 1]])
LABELS = [4, 0]
WEIGHTS = {
    "E": np.random.default_rng(0).normal(size=(VOCAB, DIM)),
    "F": np.random.default_rng(1).normal(size=(VOCAB, DIM)),
    "W": np.random.default_rng(2).normal(size=(DIM, DIM)),
}


def model(forward: Any, dtype: str = "float64") -> ReferenceModel:
    return ReferenceModel(forward, {name: value.astype(dtype) for name, value in WEIGHTS.items()})


def hidden(model: Any, rows: Tensor) -> Tensor:
    return (rows @ model["W"]).tanh().mean(1)


def tied(model: Any, input_ids: np.ndarray) -> Tensor:
    return hidden(model, lookup(model["E"], input_ids)) @ model["E"].swap(0, 1)


def untied(model: Any, input_ids: np.ndarray) -> Tensor:
    return hidden(model, lookup(model["E"], input_ids)) @ model["F"].swap(0, 1)


def twice(model: Any, input_ids: np.ndarray) -> Tensor:
    """Look the ids and their neighbours up in one table, which is the head too."""
    rows = lookup(model["E"], input_ids) * lookup(model["E"], (input_ids + 1) % VOCAB)
    return hidden(model, rows) @ model["E"].swap(0, 1)


def same(model: Any, input_ids: np.ndarray) -> Tensor:
    rows = lookup(model["E"], input_ids) * lookup(model["E"], input_ids)
    return hidden(model, rows) @ model["F"].swap(0, 1)


def penalised(model: Any, input_ids: np.ndarray) -> Tensor:
    """Add a penalty on the table, and detach the lookup."""
    rows = lookup(model["E"], input_ids).detach()
    return hidden(model, rows) @ model["F"].swap(0, 1) + (model["E"] * model["E"]).sum(1)


def computed(model: Any, input_ids: np.ndarray) -> Tensor:
    return hidden(model, lookup(model["E"] @ model["W"], input_ids)) @ model["F"].swap(0, 1)


@pytest.mark.parametrize("forward", [tied, untied, twice, same])
def test_the_total_is_the_whole_gradient_of_the_table(forward: Any) -> None:
    objective = embgrad.CrossEntropy(LABELS)

    def total(table: np.ndarray) -> float:
        built = model(forward)
        built["E"].value[...] = table
        return float(embgrad.gradients(built, IDS, objective, at="E#0").objective.sum())

    actual = embgrad.tables.table_gradients(model(forward), IDS, objective, at="E#0")
    np.testing.assert_allclose(actual.total, differences(total, WEIGHTS["E"]), atol=1e-9)
    np.testing.assert_array_equal(actual.total, actual.lookup + actual.head)
    assert actual.apart < 1e-14
    assert (actual.names, actual.tied, actual.path, actual.padding) == (("E",), forward in (tied, twice), "E", None)
    assert actual.lookups == (2 if forward in (twice, same) else 1)
    assert actual.head.any() == (forward in (tied, twice))


def test_a_gradient_that_differs_from_the_frameworks_own_is_warned_of() -> None:
    passes: list[int] = []

    def drifting(model: Any, input_ids: np.ndarray) -> Tensor:
        passes.append(len(passes))
        return tied(model, input_ids) * float(len(passes))

    with pytest.warns(
        embgrad.EmbgradWarning, match=r"of the table 'E' .* differ by .* computes something else in each"
    ):
        embgrad.tables.table_gradients(model(drifting), IDS, embgrad.Sum())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtypes_repr_and_provenance(dtype: str) -> None:
    actual = embgrad.tables.table_gradients(model(tied, dtype), IDS, embgrad.CrossEntropy(LABELS))
    for array in (actual.lookup, actual.head, actual.total, actual.own):
        assert array.flags.c_contiguous
        assert array.dtype == dtype
    assert actual.apart < 1e-6
    assert repr(actual).startswith("TableGradients('E', 7 × 4, norms: lookup ")
    assert repr(actual).endswith("; tied)")
    assert actual.provenance["compute_dtype"] == dtype
    assert actual.provenance["backend"] == "reference"


def test_figures_of_gradients_whose_squares_are_no_float32() -> None:
    actual = embgrad.tables.table_gradients(model(untied, "float32"), IDS, embgrad.CrossEntropy(LABELS))
    tiny = replace(
        actual, lookup=actual.lookup * np.float32(1e-30), head=actual.head * np.float32(1e-30), own=actual.lookup
    )
    assert tiny.apart == pytest.approx(1.0)
    off = replace(tiny, own=tiny.lookup * np.float32(1.5))
    assert off.apart == pytest.approx(1 / 3, rel=1e-5)
    first = replace(actual, own=actual.total + np.eye(VOCAB, 1))
    assert first.apart > 0.1  # no row is that of padding
    assert replace(first, padding=0).apart < 1e-6
    assert "norms: lookup 0," not in repr(off)


def test_a_table_that_is_reached_by_other_ways_alone() -> None:
    objective = embgrad.Sum()
    actual = embgrad.tables.table_gradients(model(penalised), IDS, objective)
    assert not actual.lookup.any()
    np.testing.assert_allclose(actual.head, 2 * 2 * WEIGHTS["E"], atol=1e-14)  # for each of two examples
    assert actual.apart < 1e-15


def test_training_mode_draws_random_numbers_once() -> None:
    def dropping(model: Any, input_ids: np.ndarray) -> Tensor:
        return model.dropout(hidden(model, lookup(model["E"], input_ids)), 0.5) @ model["E"].swap(0, 1)

    built, own = model(dropping), model(dropping)
    actual = embgrad.tables.table_gradients(built, IDS, embgrad.Sum(), training=True)
    result = embgrad.gradients(own, IDS, embgrad.Sum(), training=True)  # the same random numbers
    np.testing.assert_allclose(actual.lookup, result.table().to_dense(), atol=1e-14)
    assert actual.own is actual.apart is None
    assert built.random.bit_generator.state == own.random.bit_generator.state


@pytest.mark.parametrize(
    ("forward", "options", "kind", "message"),
    [
        (computed, {}, PointError,
            "the table of 'word', 'lookup', is no parameter .*parameter_gradients"),
        (tied, {"at": "F"}, UnknownPointError, "no point 'F'"),
        (tied, {"at": "wrod"}, UnknownPointError, "Did you mean 'word'"),
        (tied, {"at": ["word"]}, PointError,
            r"at is \['word'\]: expected the name of a point.*for each table"),
        (tied, {"at": None}, PointError, "at is None: expected the name of a point, such as 'word'"),
    ],
)  # fmt: skip
def test_anything_but_a_table_is_refused(forward: Any, options: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        embgrad.tables.table_gradients(model(forward), IDS, embgrad.Sum(), **options)


def test_a_module_has_no_table() -> None:
    def moduled(model: Any, input_ids: np.ndarray) -> Tensor:
        return model.module("layer", lambda x: x.tanh(), lookup(model["E"], input_ids)).mean(1)

    with refused(PointError, "the point 'layer' is layer#0 (shape ", " expected a lookup, such as 'word'"):
        embgrad.tables.table_gradients(model(moduled), IDS, embgrad.Sum(), at="layer")


def test_an_objective_that_does_not_depend_on_the_table() -> None:
    def detached(model: Any, input_ids: np.ndarray) -> Tensor:
        return hidden(model, lookup(model["E"], input_ids).detach()) @ model["F"].swap(0, 1)

    with pytest.raises(NoGradientError, match="does not depend on the table 'E': no path in the graph leads"):
        embgrad.tables.table_gradients(model(detached), IDS, embgrad.Sum())


@pytest.mark.parametrize("way", ["lookups", "other uses"])
def test_a_gradient_that_is_not_finite(way: str) -> None:
    def steep(model: Any, input_ids: np.ndarray) -> Tensor:
        rows, table = lookup(model["E"], input_ids), model["E"]
        spiked = rows if way == "lookups" else table
        spiked = Tensor(spiked.value * 0, [(spiked, lambda g: g * np.nan)])
        return rows.mean(1) + (spiked.mean(1) if way == "lookups" else spiked.sum(0))

    message = rf"of the table 'E' through its {way} is nan at row \d, and in \d+ of 28"
    with pytest.raises(NoGradientError, match=message):
        embgrad.tables.table_gradients(model(steep), IDS, embgrad.Sum())

"""Probes: a model that refuses the batch of a probe is taken as before, and a mistake in embgrad's own code is raised."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.attribution.passes import Passes
from embgrad.attribution.text_inputs import _has_effect
from embgrad.backend.protocol import BoundModel
from embgrad.backend.registry import bind
from embgrad.engine.check_examples import Reruns, _measure
from embgrad.engine.company import Company, company_of
from embgrad.engine.descent import with_roles_of_text
from embgrad.engine.encoder_decoders import further_text
from embgrad.engine.input_warnings import warn_of_left_padding
from embgrad.engine.locate import meanings_in_sub_batch
from embgrad.engine.output_axes import _is_prefixed, _layout, expect_examples_first
from embgrad.engine.probe import (
    Order,
    _remember,
    _with_one_other_id,
    example_axis,
    expect_embedding,
    order_of,
    with_layout,
    with_shared,
    word_resolved,
)
from embgrad.inputs.conventions import batch_of
from embgrad.model_points.gather import gather_of
from embgrad.model_points.points import Layout, Lookup, Point
from embgrad.objectives.objective import Layouts, OpenAxesError, OpenPositionsError
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.unit.engine import test_descent as towers

IDS = np.array([[5, 3, 4], [6, 2, 5], [3, 6, 6], [4, 2, 3]])
BATCH = embgrad.TokenBatch(IDS)
PADDED = embgrad.TokenBatch(np.array([[3, 4, 5], [6, 2, 0]]), np.array([[1, 1, 1], [1, 1, 0]]))
WEIGHTS = {"E": np.random.default_rng(0).normal(size=(8, 2)), "e": np.random.default_rng(1).normal(size=(8, 1))}


def forward(model: Any, input_ids: Any) -> Tensor:
    return lookup(model["E"], input_ids).sum(1)


class Failing(BoundModel):
    """A model whose passes all raise; that of the batch is taken to have been run before."""

    fail: Callable[..., Any]

    def points(self, batch: Any) -> Any:
        return self.fail()

    def run(self, batch: Any, request: Any) -> Any:
        return self.fail()


def refuse(*_: Any) -> Any:
    raise RuntimeError("the model does not take this batch")


def refuse_ids(*_: Any) -> Any:
    raise embgrad.BatchError("the id 9 is outside of the table")


def mistake(code: str) -> Callable[..., Any]:
    """Return a function of embgrad's with a mistake in it."""
    namespace: dict[str, Any] = {"__name__": "embgrad.engine.planted"}
    exec(f"def fail(*args):\n    {code}", namespace)
    return namespace["fail"]


def model_of(fail: Callable[..., Any], model: Any = None) -> Failing:
    bound = bind(ReferenceModel(forward, WEIGHTS) if model is None else model)
    failing = Failing(bound.backend, bound.model)
    object.__setattr__(failing, "fail", fail)
    return failing


def lookup_of(ids: np.ndarray, table: str = "E", *, dim: int = 2, determined: bool = True) -> Lookup:
    """Return a lookup of the batch's ids."""
    return Lookup(table, 0, ids, 8, dim, Layout((ids.shape[0], ids.shape[1]), transposed=False, determined=determined))


def word(ids: np.ndarray, table: str = "E") -> Point:
    lookup_ = lookup_of(ids, table)
    return Point(lookup_.key, ("word",), lookup_.shape, lookup_, lookup_.key)


def ambiguous(probe: Callable[[], Any]) -> bool:
    """Return whether a probe that failed is reported as such."""
    with pytest.raises(embgrad.AmbiguousPointError) as caught:
        probe()
    return isinstance(caught.value.__cause__, RuntimeError | embgrad.BatchError)


Fail = Callable[..., Any]


def several_lookups(fail: Fail) -> bool:
    return ambiguous(lambda: word_resolved(model_of(fail), BATCH, [word(IDS), word(IDS, "F")]))


def ids_that_read_both_ways(fail: Fail) -> bool:
    ids = np.array([[3, 4, 3]])
    own = lookup_of(ids)
    return with_layout(model_of(fail), embgrad.TokenBatch(ids), own) is own


def an_order_that_only_a_probe_shows(fail: Fail) -> bool:
    changed = Point("E#0", (), (4, 3, 2), Lookup("E", 0, IDS + 1, 8, 2, None), "E#0")
    return order_of(model_of(fail), BATCH, [changed]) == Order(False)


def as_many_examples_as_positions(fail: Fail) -> bool:
    return ambiguous(lambda: example_axis(model_of(fail), BATCH[:3], Point("h", (), (3, 3, 2), key="h")))


def ids_that_could_be_positions(fail: Fail) -> bool:
    ids = np.array([[0, 1, 2]])
    expect_embedding(model_of(fail), embgrad.TokenBatch(ids), lookup_of(ids))
    return True


def inputs_that_examples_may_share(fail: Fail) -> bool:
    batch = embgrad.TokenBatch(IDS, extras={"scale": np.ones(4)})
    return with_shared(model_of(fail), batch) is batch


def names_in_a_sub_batch(fail: Fail) -> bool:
    return meanings_in_sub_batch(model_of(fail), ["layer.0"], BATCH) is None


def layers_of_a_text_or_an_image(fail: Fail) -> bool:
    model = towers.dual(image_first=True)
    batch = batch_of(towers.batch(), None)
    reached = bind(model).points(batch)
    return ambiguous(lambda: with_roles_of_text(model_of(fail, model), batch, reached, reached, ["layer.0"]))


def a_second_text(fail: Fail) -> bool:
    batch = embgrad.TokenBatch(IDS, extras={"tgt": IDS[:, ::-1]})
    return further_text(model_of(fail), batch) is None


def an_output_whose_first_axis_may_be_positions(fail: Fail) -> bool:
    expect_examples_first(model_of(fail), BATCH[:3], None, (3, 3), Layouts(), lambda batch: batch)
    return True


def an_axis_of_positions_or_classes(fail: Fail) -> bool:
    open_axis = OpenAxesError(None, (2, 3), 1)
    with pytest.raises(OpenAxesError) as caught:
        _layout(model_of(fail), PADDED, lambda batch: batch, open_axis)
    return caught.value is open_axis


def an_output_with_more_positions(fail: Fail) -> bool:
    return not _is_prefixed(model_of(fail), BATCH, OpenPositionsError(None, (4, 5, 2), 2))


def the_company_of_an_example(fail: Fail) -> bool:
    own = embgrad.gradients(ReferenceModel(forward, WEIGHTS), IDS[:1], embgrad.Logit(0))
    return company_of(fail, own, 4) is Company.FIXED


def padding_on_the_left(fail: Fail) -> bool:
    batch = embgrad.TokenBatch(np.array([[3, 4, 5], [0, 0, 6]]), np.array([[1, 1, 1], [0, 0, 1]]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_left_padding(model_of(fail), batch)
    return True


def a_check_on_other_examples(fail: Fail) -> bool:
    made = Reruns()
    _measure("order", fail, made)
    return "order" in made.unrun


def an_order_of_the_indices(fail: Fail) -> bool:
    return gather_of(fail, BATCH, lookup_of(IDS[:, ::-1], determined=False)) is None


def numbers_that_l_may_depend_on(fail: Fail) -> bool:
    batch = embgrad.TokenBatch(IDS, extras={"n": np.arange(12).reshape(4, 3)})
    model = ReferenceModel(lambda model, input_ids, n: forward(model, input_ids), WEIGHTS)
    passes = Passes(bind(model), batch, embgrad.Logit(0), "word", training=False)
    return _has_effect(passes, "n", (lambda numbers: fail(),))


PROBES: list[Callable[[Fail], bool]] = [
    several_lookups,
    ids_that_read_both_ways,
    an_order_that_only_a_probe_shows,
    as_many_examples_as_positions,
    ids_that_could_be_positions,
    inputs_that_examples_may_share,
    names_in_a_sub_batch,
    layers_of_a_text_or_an_image,
    a_second_text,
    an_output_whose_first_axis_may_be_positions,
    an_axis_of_positions_or_classes,
    an_output_with_more_positions,
    the_company_of_an_example,
    padding_on_the_left,
    a_check_on_other_examples,
    an_order_of_the_indices,
    numbers_that_l_may_depend_on,
]
each_probe = pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.__name__)


@each_probe
@pytest.mark.parametrize("fail", [refuse, refuse_ids])
def test_a_model_that_refuses_the_batch_of_a_probe_is_taken(probe: Callable[[Fail], bool], fail: Fail) -> None:
    assert probe(fail)


@each_probe
@pytest.mark.parametrize(
    ("code", "error"), [("assert not True, 'planted'", AssertionError), ("return None + 1", TypeError)]
)
def test_a_mistake_in_own_code_in_a_probe_is_raised(
    probe: Callable[[Fail], bool], code: str, error: type[Exception]
) -> None:
    with pytest.raises(error) as caught:
        probe(mistake(code))
    assert type(caught.value) is error
    assert caught.traceback[-1].name == "fail"


@pytest.mark.parametrize(
    ("ids", "last"), [([[1, 2], [3, 4]], 1), ([[2, 2], [2, 5]], 5), ([[1, 1], [1, 1]], 0), ([[0, 0], [0, 0]], 1)]
)
def test_the_last_id_of_the_first_example_becomes_another_of_the_batch(ids: list[list[int]], last: int) -> None:
    other = _with_one_other_id(embgrad.TokenBatch(ids, tokens=[["a", "b"], ["c", "d"]]))
    assert other.ids.tolist() == [[ids[0][0], last], ids[1]]
    assert other.tokens is None


def test_64_forms_are_remembered_and_then_all_are_forgotten() -> None:
    known: dict[Any, int] = {}
    for number in range(65):
        _remember(known, number, -number)
        assert len(known) == (number + 1 if number < 64 else 1)
    assert known == {64: -64}


@pytest.mark.parametrize(
    ("examples", "positions", "shape"), [(3, 3, (3, 4, 2)), (3, 3, (9, 2)), (1, 1, (1, 1, 2)), (2, 3, (2, 3, 4))]
)
def test_axes_that_their_lengths_show_take_no_probe(examples: int, positions: int, shape: tuple[int, ...]) -> None:
    batch = embgrad.TokenBatch(np.arange(examples * positions).reshape(examples, positions))
    assert example_axis(model_of(refuse), batch, Point("h", (), shape, key="h")) is None
    flat = lookup_of(batch.ids.reshape(1, -1), dim=3)
    assert example_axis(model_of(refuse), batch, Point("E#0", (), (3, 3), flat, "E#0")) is None


@pytest.mark.parametrize(("inputs", "probes"), [(0, 0), (1, 2), (2, 4), (3, 8), (4, 15)])
@pytest.mark.parametrize("examples", [2, 4])
def test_at_most_three_inputs_are_tried_together_as_shared(inputs: int, probes: int, examples: int) -> None:
    seen: list[embgrad.TokenBatch] = []

    class Watched(Failing):
        def points(self, batch: Any) -> Any:
            seen.append(batch)
            raise RuntimeError("never")

    bound = bind(ReferenceModel(forward, WEIGHTS))
    extras = {f"further{number}": np.zeros(examples) for number in range(inputs)}
    batch = embgrad.TokenBatch(IDS[:examples], extras=extras)
    assert with_shared(Watched(bound.backend, bound.model), batch) is batch
    assert len(seen) == probes
    assert {len(probe) for probe in seen} <= {3 if examples == 2 else 2}
    alone = embgrad.TokenBatch(IDS[:1], extras={name: value[:1] for name, value in extras.items()})
    assert with_shared(Watched(bound.backend, bound.model), alone) is alone
    assert len(seen) == probes
    assert with_shared(Watched(bound.backend, bound.model), alone, repeated=True) is alone
    assert len(seen) == 2 * probes


def test_the_other_ids_are_rows_of_the_smallest_table() -> None:
    seen: list[embgrad.TokenBatch] = []

    class Watched(Failing):
        def points(self, batch: Any) -> Any:
            seen.append(batch)
            return []

    bound = bind(ReferenceModel(forward, WEIGHTS))
    small, large = word(IDS), word(IDS, "F")
    assert large.lookup is not None
    large = replace(large, lookup=replace(large.lookup, rows=1000))
    word_resolved(Watched(bound.backend, bound.model), BATCH, [large, small])
    (other,) = seen
    assert other.ids.max() < 8
    assert (other.ids != IDS).any()


def test_an_open_layout_is_that_of_the_same_lookup_in_the_probe() -> None:
    ids = np.full((2, 2), 3)
    turned = replace(lookup_of(ids), layout=Layout((2, 2), transposed=True))
    other = lookup_of(ids, "F")
    points = [Point(one.key, (), one.shape, one, one.key) for one in (other, turned)]
    points.insert(0, Point("h", (), (2, 2, 2), None, "h"))
    assert with_layout(model_of(lambda: points), embgrad.TokenBatch(ids), lookup_of(ids)).layout == turned.layout


def test_the_axis_of_the_examples_is_that_of_the_same_point_in_the_probe() -> None:
    shapes = {"other": (3, 2, 4), "h": (2, 3, 4), "vectors": (2, 4)}
    points = [Point(key, (), shape, key=key) for key, shape in shapes.items()]
    model, batch = model_of(lambda: points), BATCH[:3]
    axes = [example_axis(model, batch, Point(key, (), (3, 3, 4), key=key)) for key in ("h", "other")]
    assert axes == [0, 1]
    for key in ("vectors", "absent"):
        with pytest.raises(
            embgrad.AmbiguousPointError, match="did not show them either: run it with another batch_size"
        ):
            example_axis(model, batch, Point(key, (), (3, 3, 4), key=key))


def test_a_lookup_of_one_number_for_each_token_is_no_embedding() -> None:
    weights = {**WEIGHTS, "E": WEIGHTS["E"][:, :1], "H": np.ones((1, 2))}
    model = ReferenceModel(lambda own, ids: lookup(own["E"], ids).mean(1) @ own["H"], weights)
    for options in ({}, {"batch_size": 1}, {"training": True}):
        with pytest.raises(
            embgrad.errors.PointNotReachedError,
            match=r"^the lookup E#0 .* has one number for each token, .* as in at='E'",
        ):
            embgrad.gradients(model, IDS, embgrad.Logit(0), **options)
    found = embgrad.gradients(model, IDS, embgrad.Logit(0), at="E")
    np.testing.assert_array_equal(found.values, np.full((*IDS.shape, 1), 1 / IDS.shape[1]))

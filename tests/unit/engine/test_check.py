"""Certificates: right gradients pass, wrong ones do not, and the figures are what they say."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.backend.registry import bind
from embgrad.engine import check
from embgrad.engine.check_examples import Reruns, _other_ids, _Trial
from embgrad.engine.finite_differences import PRECISION, Slopes
from embgrad.engine.options import GradientOptions
from embgrad.engine.question import Question
from embgrad.results.certificate import Certificate, Slope, worst
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from embgrad.testing.tensors import observing

DIM, CLASSES = 4, 3
IDS = np.array([[3, 5], [2, 9], [7, 1]])
PROJECTION = embgrad.Projection(np.random.default_rng(4).normal(size=CLASSES))
Wrong = Callable[[np.ndarray], np.ndarray]


def weights(dtype: str = "float64", **scales: float) -> dict[str, np.ndarray]:
    shapes = {"E": (12, DIM), "pos": (6, DIM), "W": (DIM, DIM), "H": (DIM, CLASSES)}
    return {
        name: (np.random.default_rng(seed).normal(size=shape) * scales.get(name, 1.0)).astype(dtype)
        for seed, (name, shape) in enumerate(shapes.items())
    }


def classify(model: Any, x: Tensor) -> Tensor:
    return x.tanh().mean(1) @ model["H"]


def layered(model: Any, input_ids: np.ndarray, wrong: Wrong | None = None) -> Tensor:
    """Run two layers, and between them an operation that may have a wrong pullback."""

    def layer(x: Tensor) -> Tensor:
        return x + (x @ model["W"]).tanh()

    x = lookup(model["E"], input_ids) + lookup(model["pos"], np.arange(input_ids.shape[1])[None])
    x = model.module("layers.0", layer, x)
    if wrong is not None:
        x = Tensor(x.value, [(x, wrong)])
    return classify(model, model.module("layers.1", layer, x))


def linear(model: Any, input_ids: np.ndarray) -> Tensor:
    return lookup(model["E"], input_ids).mean(1) @ model["H"]


def quadratic(model: Any, input_ids: np.ndarray) -> Tensor:
    rows = lookup(model["E"], input_ids)
    return (rows * rows * rows).mean(1) @ model["H"]


def softened(model: Any, input_ids: np.ndarray) -> Tensor:
    return ((lookup(model["E"], input_ids) @ model["W"]).softmax()).mean(1) @ model["H"]


def tied(model: Any, input_ids: np.ndarray) -> Tensor:
    return (lookup(model["E"], input_ids) @ model["W"]).tanh().mean(1) @ model["E"].swap(0, 1)


def twice(model: Any, input_ids: np.ndarray) -> Tensor:
    return classify(model, lookup(model["E"], input_ids) + lookup(model["E"], input_ids[:, ::-1]).tanh())


def centred(model: Any, input_ids: np.ndarray) -> Tensor:
    hidden = lookup(model["E"], input_ids).mean(1)
    return (hidden + hidden.mean(0) * -1.0).tanh() @ model["H"]


def saturated(model: Any, input_ids: np.ndarray) -> Tensor:
    """Depend on the lookup with a gradient of zero."""
    return classify(model, lookup(model["E"], input_ids) * 1e4)


def certificate(
    forward: Any, objective: Any = PROJECTION, dtype: str = "float64", batch: Any = IDS, **options: Any
) -> Any:
    scales = options.pop("scales", {})
    model = ReferenceModel(forward, weights(dtype, **scales))
    result = embgrad.gradients(model, batch, objective, check=True, **options)
    return result.certificate if isinstance(result, embgrad.results.EmbeddingGradients) else result


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("forward", [layered, linear, quadratic, softened, tied, twice, centred, saturated])
def test_right_gradients_pass(forward: Any, dtype: str) -> None:
    objective = embgrad.Logit(1) if forward is tied else PROJECTION
    actual = certificate(forward, objective, dtype)
    assert [slope.direction for slope in actual.slopes if slope.expected] or forward is saturated
    assert all(slope.holds for slope in actual.slopes)
    assert actual.scatter < 1e-6
    assert actual.independence < 1e-6 or forward is centred


def test_half_precision_passes() -> None:
    assert certificate(layered, dtype="float16").slopes


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    "scales", [{"E": 1e-6}, {"E": 1e-2}, {"E": 1e3}, {"H": 1e-8}, {"H": 1e8}, {"E": 1e-4, "H": 1e-4}, {"E": 0.0}]
)
def test_right_gradients_of_every_size_pass(scales: dict[str, float], dtype: str) -> None:
    assert certificate(layered, dtype=dtype, scales=scales).slopes
    assert certificate(linear, dtype=dtype, scales=scales).slopes


@pytest.mark.parametrize("name", ["word", "position", "pos", "layers.0", "layer.0", "layers.1:input", "layer.-1"])
@pytest.mark.parametrize("split", [False, True])
def test_every_point_can_be_tested(name: str, split: bool) -> None:
    if name == "pos" and split:
        return  # it has no examples
    actual = certificate(layered, at=name, split=split)
    directions = {slope.direction.partition(",")[0] for slope in actual.slopes}
    assert directions == {"gradient", "random 1", "random 2"}
    assert (actual.scatter is None) == ("layer" in name)
    assert (actual.independence is None) == (name == "pos")


@pytest.mark.parametrize(
    "objective",
    [
        embgrad.CrossEntropy([0, 2, 1]),
        embgrad.Logit([1, 0, 2]),
        embgrad.Margin(0, against=[1, 2, 1]),
        embgrad.Sum(),
        lambda logits: logits.column(1),
        embgrad.Scalar(lambda logits: logits.column(1).sum(0)),
    ],
)
def test_every_objective_can_be_tested(objective: Any) -> None:
    actual = certificate(layered, objective)
    assert all(slope.holds for slope in actual.slopes)
    assert (actual.independence is None) == isinstance(objective, embgrad.Scalar)


@pytest.mark.parametrize("at", ["word", "position"])
@pytest.mark.parametrize("split", [False, True])
def test_an_example_whose_gradient_is_zero(split: bool, at: str) -> None:
    objective = embgrad.Projection(np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [1.0, -1.0, 0.5]]))
    assert certificate(layered, objective, split=split, at=at).slopes
    assert certificate(layered, embgrad.Projection(np.zeros(3)), split=split, at=at).slopes


def test_several_points_have_certificates_of_their_own() -> None:
    results = certificate(layered, at=["word", "layer.0"])
    assert results["word"].certificate.slopes != results["layer.0"].certificate.slopes
    assert embgrad.gradients(ReferenceModel(layered, weights()), IDS, PROJECTION).certificate is None


def test_the_slopes_are_those_of_the_objective() -> None:
    model = ReferenceModel(layered, weights())
    result = embgrad.gradients(model, IDS, PROJECTION, check=True)
    slope = result.certificate.slopes[0]
    length = np.linalg.norm(result.activations)
    assert slope.direction == "gradient"
    np.testing.assert_allclose(slope.expected, np.linalg.norm(result.values) * length, rtol=1e-12)
    direction = result.values * length / np.linalg.norm(result.values)
    h = 1e-5
    sides = [
        embgrad.gradients(model, IDS, PROJECTION, add={"word": s * h * direction}).objective.sum() for s in (1, -1)
    ]
    np.testing.assert_allclose(slope.found, (sides[0] - sides[1]) / (2 * h), rtol=1e-6)


def test_with_override_and_add_the_gradient_is_tested_at_the_new_values() -> None:
    value, step = np.random.default_rng(7).normal(size=(2, 3, 2, DIM))
    for changes in (
        {"override": {"word": value}},
        {"add": {"word": step}},
        {"add": {"layers.0": step}},
        {"override": {"word": value}, "add": {"word": lambda given: 0.1 * given}},
    ):
        actual = certificate(layered, **changes)
        assert all(slope.holds for slope in actual.slopes)
        assert actual.scatter is None  # the table's own gradient is of other values
        plain = certificate(layered)
        assert actual.slopes[0].expected != plain.slopes[0].expected
        assert actual.independence < 1e-12


@pytest.mark.parametrize("batch_size", [1, 2])
def test_each_sub_batch_is_tested(batch_size: int) -> None:
    whole, pieces = certificate(layered), certificate(layered, batch_size=batch_size)
    count = -(-3 // batch_size)
    assert len(pieces.slopes) == count * len(whole.slopes)
    step = np.random.default_rng(7).normal(size=(3, 2, DIM))
    changed = certificate(layered, add={"layers.0": step}, batch_size=batch_size)
    assert changed.independence is None or changed.independence < 1e-12


def test_padding_is_tested_with_the_chosen_treatment() -> None:
    def masked(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
        rows = lookup(model["E"], input_ids) * Tensor(0.5 + attention_mask[..., None])  # pads leak
        return classify(model, rows)

    batch = embgrad.TokenBatch(IDS, [[1, 1], [1, 0], [1, 1]])
    for pads in ("keep", "zero"):
        assert all(slope.holds for slope in certificate(masked, batch=batch, pads=pads).slopes)

    def masked_wrongly(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
        rows = lookup(model["E"], input_ids)
        return classify(model, Tensor(rows.value, [(rows, lambda g: g * 1.5)]))

    with pytest.raises(embgrad.errors.CertificationError):
        certificate(masked_wrongly, batch=batch, pads="zero")


WRONG: dict[str, Wrong] = {
    "factor": lambda g: 2 * g,
    "a little more": lambda g: g * g.dtype.type(1.02),
    "sign": lambda g: -g,
    "zero": lambda g: 0 * g,
    "one component missing": lambda g: g * np.array([1, 1, 1, 0], g.dtype),
    "one component smaller": lambda g: g * np.array([1, 1, 0.8, 1], g.dtype),
    "components exchanged": lambda g: g[..., ::-1],
    "one position missing": lambda g: g * np.array([1, 0], g.dtype)[:, None],
    "one position of one example": lambda g: g * np.array([[1, 1], [1, 0.5], [1, 1]], g.dtype)[..., None],
    "positions exchanged": lambda g: g[:, ::-1],
    "examples exchanged": lambda g: g[::-1],
    "a constant more": lambda g: g + g.dtype.type(0.05),
    "noise": lambda g: g + (0.05 * np.random.default_rng(9).normal(size=g.shape)).astype(g.dtype),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_gradients_do_not_pass(wrong: str, dtype: str) -> None:
    def forward(model: Any, input_ids: np.ndarray) -> Tensor:
        back = WRONG[wrong]
        return layered(model, input_ids, lambda g: back(g) if g.shape == (3, 2, DIM) else g)

    with pytest.raises(
        embgrad.errors.CertificationError, match="the gradient at 'word' is wrong: in the direction"
    ) as caught:
        certificate(forward, dtype=dtype)
    for fragment in ("makes the objective change by", "finite differences by", "custom gradients, straight-through"):
        assert fragment in str(caught.value)
    assert isinstance(caught.value.certificate, embgrad.results.Certificate)
    assert not all(slope.holds for slope in caught.value.certificate.slopes)
    assert all(slope.tolerance > 0 and slope.uncertainty >= 0 for slope in caught.value.certificate.slopes)
    with pytest.raises(embgrad.errors.CertificationError):
        certificate(forward, dtype=dtype, at="layer.0")
    assert all(slope.holds for slope in certificate(forward, dtype=dtype, at="layer.1").slopes)  # behind it all is well


@pytest.mark.parametrize("scales", [{"H": 1e-8}, {"H": 1e8}, {"E": 1e-4}, {"E": 1e-4, "H": 1e-6}])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_wrong_gradients_of_every_size_do_not_pass(scales: dict[str, float], dtype: str) -> None:
    with pytest.raises(embgrad.errors.CertificationError, match="the gradient at 'word' is wrong"):
        certificate(lambda model, input_ids: layered(model, input_ids, lambda g: 2 * g), dtype=dtype, scales=scales)


def with_a_detached_part(model: Any, input_ids: np.ndarray) -> Tensor:
    rows = lookup(model["E"], input_ids)
    return classify(model, rows + rows.detach() * 0.1)


def straight_through(model: Any, input_ids: np.ndarray) -> Tensor:
    rows = lookup(model["E"], input_ids)
    return classify(model, Tensor(np.round(rows.value, 1), [(rows, lambda g: g)]))


@pytest.mark.parametrize(
    ("forward", "dtype", "message"),
    [
        (with_a_detached_part, "float64", "detached parts"),
        (with_a_detached_part, "float32", "detached parts"),
        (straight_through, "float64", "could not be tested"),
    ],
)
def test_detached_parts_and_straight_through_estimators_do_not_pass(forward: Any, dtype: str, message: str) -> None:
    with pytest.raises(embgrad.errors.CertificationError, match=message):
        certificate(forward, dtype=dtype)


def test_a_wrong_gradient_by_the_positions_is_found() -> None:
    with pytest.raises(embgrad.errors.CertificationError, match="the gradient at 'position' is wrong"):
        certificate(lambda model, input_ids: layered(model, input_ids, lambda g: 1.1 * g), at="position")


def looked_up(table: Tensor, ids: np.ndarray, change: Wrong) -> Tensor:
    """Return a lookup for which the table's gradient is another than the sum."""

    def back(g: np.ndarray) -> np.ndarray:
        whole = np.zeros_like(table.value)
        np.add.at(whole, ids, change(g))
        return whole

    def compute() -> Tensor:
        return Tensor(table.value[ids], [(table, back)])

    observer = observing.get()
    return compute() if observer is None else observer.at_lookup(table, ids, compute)


def one_entry_less(rows: np.ndarray) -> np.ndarray:
    """Return the rows with the largest entry less by 1 %."""
    return np.where(np.abs(rows) == np.abs(rows).max(), 0.99, 1) * rows


@pytest.mark.parametrize("options", [{}, {"dtype": "float32", "scales": {"H": 1e-27}}, {"dtype": "float32"}])
@pytest.mark.parametrize(("wrong", "said"), [(lambda rows: rows * 1.5, r"0\.33"), (one_entry_less, r"0\.00")])
def test_a_wrong_gradient_of_the_table_is_found(wrong: Wrong, said: str, options: dict[str, Any]) -> None:
    """The gradient of the lookup is right; the gradient of the table is not."""

    def forward(model: Any, input_ids: np.ndarray) -> Tensor:
        return classify(model, looked_up(model["E"], input_ids, wrong))

    message = rf"'word' and the framework's own gradient of the table differ by {said}\d* \(relative\)"
    with pytest.raises(embgrad.errors.CertificationError, match=message):
        certificate(forward, **options)


def test_an_objective_lost_in_rounding_cannot_be_certified() -> None:
    def forward(model: Any, input_ids: np.ndarray) -> Tensor:
        logits = layered(model, input_ids)
        return logits + Tensor(np.full((1, CLASSES), 1e5, logits.value.dtype))

    with pytest.raises(embgrad.errors.CertificationError, match=r"could not be tested: .* pass the model in float64"):
        certificate(forward, dtype="float32")
    assert certificate(forward).slopes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"edit": {"word": lambda grad: grad}}, r"check=True tests .* edit=\.\.\. replaces it by another: omit one"),
        ({"training": True}, "check=True compares forward passes .* training=True draws random numbers"),
    ],
)
def test_options_that_exclude_a_check_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(embgrad.errors.UnsupportedError, match=message):
        certificate(layered, **options)


def test_a_shared_tensor_without_the_part_from_padding_is_refused() -> None:
    model, batch = ReferenceModel(layered, weights()), embgrad.TokenBatch(IDS, [[1, 1], [1, 0], [1, 1]])
    for options in ({"pads": "zero"}, {"check": True}):
        assert embgrad.gradients(model, batch, PROJECTION, at="position", **options).values.shape == (3, 2, DIM)
    with pytest.raises(embgrad.errors.UnsupportedError, match="pads='zero' sets the part of it from padding to zero"):
        embgrad.gradients(model, batch, PROJECTION, at="position", pads="zero", check=True)


def test_independence_is_large_where_examples_interact() -> None:
    assert certificate(layered).independence < 1e-12
    assert certificate(centred).independence > 0.05
    assert certificate(centred, dtype="float32", scales={"H": 1e-27}).independence > 0.05  # of numbers without squares
    assert certificate(layered, batch=IDS[:1]).independence is None


def test_independence_goes_by_each_examples_own_arguments() -> None:
    objective = embgrad.CrossEntropy([0, 2, 1])
    assert certificate(layered, objective).independence < 1e-14
    pieces = certificate(layered, objective, batch_size=2)  # the second piece begins at the last example
    assert pieces.independence < 1e-14


def test_the_certificate_of_several_has_the_worst_figures() -> None:
    item, other = certificate(layered), certificate(centred)
    both = worst([item, None, other])
    assert both.slopes == item.slopes + other.slopes
    assert both.independence == other.independence
    assert both.scatter == max(item.scatter, other.scatter)
    assert worst([None]) == embgrad.results.Certificate(())


def relu(x: Tensor) -> Tensor:
    counted = x.value > 0
    return Tensor(x.value * counted, [(x, lambda g: g * counted)])


def kinked(model: Any, input_ids: np.ndarray, wrong: Wrong = lambda g: g) -> Tensor:
    """Run two layers of ReLU and a maximum over positions."""
    rows = lookup(model["E"], input_ids)
    hidden = relu(Tensor(rows.value, [(rows, wrong)]) @ model["A"] + model["a"])
    hidden = relu(hidden @ model["B"])
    first = hidden.value.argmax(1)[:, None]
    value = np.take_along_axis(hidden.value, first, 1)[:, 0]

    def back(g: np.ndarray) -> np.ndarray:
        whole = np.zeros_like(hidden.value)
        np.put_along_axis(whole, first, g[:, None], 1)
        return whole

    return Tensor(value, [(hidden, back)]) @ model["C"]


def kinked_model(seed: int, dtype: str, **options: Any) -> ReferenceModel:
    random = np.random.default_rng(seed)
    shapes = {"E": (12, DIM), "A": (DIM, 24), "a": (24,), "B": (24, 24), "C": (24, CLASSES)}
    made = {name: (random.normal(size=shape) / shape[0] ** 0.5).astype(dtype) for name, shape in shapes.items()}
    return ReferenceModel(lambda model, input_ids: kinked(model, input_ids, **options), made)


MORE_IDS = np.array([[5, 2, 9, 4, 0, 7], [3, 8, 1, 0, 6, 2], [5, 10, 2, 7, 3, 1]])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("seed", range(20))
def test_right_gradients_pass_where_steps_cross_kinks(seed: int, dtype: str) -> None:
    objective = embgrad.CrossEntropy([0, 2, 1])
    for split in (False, True):
        result = embgrad.gradients(kinked_model(seed, dtype), MORE_IDS, objective, check=True, split=split)
        assert all(slope.holds for slope in result.certificate.slopes)


@pytest.mark.parametrize(
    ("dtype", "wrong"), [("float64", "a little more"), ("float64", "examples exchanged"), ("float32", "factor")]
)
def test_wrong_gradients_do_not_pass_among_kinks(dtype: str, wrong: str) -> None:
    for seed in range(10):
        model = kinked_model(seed, dtype, wrong=WRONG[wrong])
        with pytest.raises(embgrad.errors.CertificationError, match="the gradient at 'word' is wrong"):
            embgrad.gradients(model, MORE_IDS, embgrad.CrossEntropy([0, 2, 1]), check=True)


def test_a_tie_for_a_maximum_cannot_be_certified() -> None:
    def largest(model: Any, input_ids: np.ndarray) -> Tensor:
        rows = lookup(model["E"], input_ids)
        value = rows.value.max(1)
        return Tensor(value, [(rows, lambda g: g[:, None] * (rows.value == value[:, None]))]) @ model["H"]

    ids = np.array([[7, 7, 7, 7], [9, 4, 2, 3]])
    with pytest.raises(embgrad.errors.CertificationError, match=r"could not be tested: .* a tied maximum"):
        certificate(largest, batch=ids)
    assert certificate(largest, batch=ids[1:]).slopes


def test_lower_precision_inside_the_model_is_not_reported_as_an_error() -> None:
    def cast(model: Any, input_ids: np.ndarray) -> Tensor:
        rows = lookup(model["E"], input_ids)
        inner = Tensor(rows.value.astype(np.float32).astype(np.float64), [(rows, lambda g: g)])
        return classify(model, inner @ model["W"])

    actual = certificate(cast)
    assert all(slope.holds for slope in actual.slopes)
    assert actual.slopes[0].uncertainty < 1e-2 * actual.slopes[0].found


def weighed(factors: list[float]) -> Any:
    """Return a forward pass whose backward pass multiplies each example's gradient."""

    def broken(model: Any, input_ids: np.ndarray) -> Tensor:
        rows = lookup(model["E"], input_ids)
        back = np.array(factors)[-len(input_ids) :, None, None]
        return classify(model, Tensor(rows.value, [(rows, lambda g: g * back)]))

    return broken


@pytest.mark.parametrize("count", [4, 12])
def test_every_example_is_tested_by_split(count: int) -> None:
    ids = np.arange(2 * count).reshape(count, 2) % 12
    for example in (3, count - 1):
        factors = [5.0 if one == example else 1.0 for one in range(count)]
        with pytest.raises(embgrad.errors.CertificationError, match=rf"'gradient, example {example}'"):
            certificate(weighed(factors), batch=ids, split=True)
        actual = certificate(weighed([1.0] * count), batch=ids, split=True)
    assert {slope.direction for slope in actual.slopes} == {
        f"{name}, example {one}" for name in ("gradient", "random 1", "random 2") for one in range(count)
    }
    assert actual.untested == ()


def test_a_sample_of_interacting_examples_is_tested_one_by_one() -> None:
    objective = embgrad.Projection([1.0, 2.0, 3.0])
    ids = np.arange(24).reshape(12, 2) % 12
    actual = certificate(centred, objective, batch=ids, split=True)
    tested = {int(slope.direction.rpartition(" ")[2]) for slope in actual.slopes}
    sample = np.random.default_rng(0).permutation(12)  # the same in each run
    assert (tested, {*actual.untested}) == ({*sample[:8]}, {*sample[8:]})
    assert all(slope.holds for slope in actual.slopes)
    assert certificate(centred, split=True).untested == ()


ABOVE = np.nextafter(1.0, 2.0)


def slope_of(found: float, uncertainty: float = 0.1, tolerance: float = 1.0, direction: str = "gradient") -> Slope:
    return Slope(direction, 4.0, found, uncertainty, tolerance)


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        (
            {"slopes": (slope_of(5.0), slope_of(3.0))},
            {"slopes": (slope_of(5.0), slope_of(3 - 1e-9))},
            "1 of 2 directions",
        ),
        ({"slopes": (slope_of(4.0, 0.8),)}, {"slopes": (slope_of(4.0, 0.8 * ABOVE),)}, "could not be tested"),
        ({"slopes": (slope_of(4.0, 0.1, 1.99),)}, {"slopes": (slope_of(4.0, 0.1, 2.0),)}, "could not be tested"),
        ({"slopes": (slope_of(4.0, 9.0), slope_of(4.0))}, {"slopes": (slope_of(4.0, 9.0),) * 2}, "could not be tested"),
        ({"slopes": (slope_of(4.0, 9.0, direction="random 1"),)}, {"slopes": (slope_of(-4.0),)}, "is wrong"),
        ({"slopes": (), "scatter": 1e-5}, {"slopes": (), "scatter": 1.1e-5}, "differ by 1.1e-05"),
    ],
)
def test_a_certificate_is_right_up_to_its_tolerances(right: Any, wrong: Any, message: str) -> None:
    given = {"scatter": None, "independence": None}
    check._expect_right("word", Certificate(**{**given, **right}), 1e-5)
    with pytest.raises(embgrad.errors.CertificationError, match=message):
        check._expect_right("word", Certificate(**{**given, **wrong}), 1e-5)


@pytest.mark.parametrize(
    ("chosen", "expected", "share", "values", "sizes", "kinks"),
    [
        (None, [12], [56**0.5], [29], [6], [0]),
        ([0, 1, 2], [6, 6, 0], [20**0.5, 6, 0], [1, -2, 30], [5, 6, 6], [0, 6.1e-6, 1e-12]),
        ([1], [6], [6], [-2], [6], [0]),
    ],
)
def test_the_slopes_in_a_direction(
    chosen: Any, expected: Any, share: Any, values: Any, sizes: Any, kinks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, steps = np.ones((3, 1, 2)), []

    def differences(value: Any, precision: Any, wanted: np.ndarray, counts: np.ndarray) -> Slopes:
        np.testing.assert_allclose(wanted, expected)
        np.testing.assert_allclose(counts, share)
        np.testing.assert_array_equal(value(0.5), (values, sizes))
        measured = [5.9e-6, 6.1e-6, 1e-12] if len(wanted) == 3 else [5.9e-6]
        return Slopes(wanted, 0 * wanted, np.array(measured), wanted > 6)

    def objective_with(question: Any, located: Any, key: str, moved: Any) -> Any:
        steps.append(moved(None))
        return np.array([1.0, -2, 30]), 6.0  # with the size of the numbers of all three together

    monkeypatch.setattr(check, "differences", differences)
    monkeypatch.setattr(check, "objective_with", objective_with)
    question = SimpleNamespace(batch=IDS, examples=slice(4, 7))
    located = {
        "word": SimpleNamespace(key="E#0", arrangement=SimpleNamespace(shared=False, to_native_axes=np.negative))
    }
    result = SimpleNamespace(values=np.array([[[3.0, 3.0]], [[0.0, 6.0]], [[0.0, 0.0]]]))
    result.values[:2] = [[[2.0, 4.0]], [[6.0, 0.0]]]
    trial = check._Trial(question, located, "word", result, PRECISION["float64"])  # type: ignore[arg-type]
    lines = trial._along("gradient", change, chosen)
    np.testing.assert_array_equal(steps, [-0.5 * change])
    assert [line.slope.direction for line in lines] == [
        "gradient" if chosen is None else f"gradient, example {4 + one}" for one in chosen or [0]
    ]
    assert [line.slope.found for line in lines] == expected
    assert [line.kink for line in lines] == kinks
    assert all(line.moves for line in lines)


def test_examples_of_sub_batches_are_numbered_in_the_whole_batch() -> None:
    actual = certificate(layered, split=True, batch_size=2)
    assert {slope.direction.rpartition(", ")[2] for slope in actual.slopes} == {f"example {one}" for one in range(3)}


def test_an_example_that_cannot_be_tested_is_listed() -> None:
    def forward(model: Any, input_ids: np.ndarray) -> Tensor:
        logits = layered(model, input_ids)
        weights = Tensor(np.array([[1.0], [1e-9], [1.0]], logits.value.dtype)[: len(input_ids)])
        return logits * weights + Tensor(np.array([[0.0], [10.0], [0.0]], logits.value.dtype)[: len(input_ids)])

    assert certificate(forward, dtype="float32", split=True).untested == (1,)


@pytest.mark.parametrize("with_head", [False, True])
@pytest.mark.parametrize(
    ("factors", "why"),
    [
        (lambda ids: 1.0 / np.bincount(ids.ravel())[ids][..., None], "how often the row is looked up"),
        (lambda ids: np.zeros((*ids.shape, 1)), "detached"),
    ],
)
def test_the_certificate_says_why_the_table_gradient_is_not_a_sum(factors: Any, why: str, with_head: bool) -> None:
    ids = np.array([[7, 7, 7, 1], [9, 4, 7, 3]])

    def forward(model: Any, input_ids: np.ndarray) -> Tensor:
        rows = looked_up(model["E"], input_ids, lambda g: g * factors(input_ids))
        hidden = (rows @ model["W"]).tanh().mean(1)
        return hidden @ (model["E"].swap(0, 1) if with_head else model["H"])

    actual = certificate(forward, embgrad.Logit(1), batch=ids)
    assert actual.scatter is None
    assert why in actual.unscattered
    assert embgrad.results.Certificate.from_dict(json.loads(json.dumps(actual.to_dict()))) == actual
    assert worst([certificate(layered), actual]).unscattered == actual.unscattered


def test_a_certificate_without_the_later_figures_is_read() -> None:
    actual = certificate(layered)
    old = {name: figure for name, figure in actual.to_dict().items() if name not in ("untested", "unscattered")}
    assert embgrad.results.Certificate.from_dict(old) == actual
    for wrong in ({"untested": 3}, {"untested": [True]}, {"unscattered": 3}):
        with pytest.raises(TypeError):
            embgrad.results.Certificate.from_dict({**old, **wrong})


# Examples that are run again

PADDED = embgrad.TokenBatch([[3, 5, 7, 2], [2, 9, 0, 0], [7, 1, 4, 0]], [[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]])


def masked(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
    """Return a model's output that reads no padding."""
    rows = lookup(model["E"], input_ids) * Tensor(attention_mask[..., None].astype(model["E"].value.dtype))
    return rows.tanh().sum(1) @ model["H"]


def test_examples_are_the_same_alone_and_beside_others_and_without_padding() -> None:
    for objective in (PROJECTION, embgrad.CrossEntropy([0, 2, 1]), embgrad.Logit([1, 0, 2])):
        for dtype in ("float64", "float32"):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                found = certificate(masked, objective, batch=PADDED, dtype=dtype)
            assert max(found.independence, found.neighbours, found.order, found.padding) < 1e-5
            assert found.unrun == {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert certificate(masked, batch=PADDED[:1]).padding is None
        alone = certificate(masked, batch=PADDED[1:2])
    assert alone.padding < 1e-12
    assert alone.neighbours is None is alone.order


def test_per_position_objectives_without_padding() -> None:
    def forward(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
        rows = lookup(model["E"], input_ids)
        return (
            rows + (rows * Tensor(attention_mask[..., None] * 1.0)).sum(1).reshape(len(rows.value), 1, DIM)
        ).tanh() @ model["H"]

    moved = embgrad.TokenBatch(PADDED.ids[:, ::-1], PADDED.mask[:, ::-1])
    for batch, position in ((PADDED, [3, 1, 0]), (PADDED, [-1, -2, -1]), (moved, [0, 3, 2]), (moved, None)):
        found = certificate(forward, embgrad.Logit(1, position=position), batch=batch)
        assert found.padding < 1e-12
        assert found.order < 1e-12
    labels = np.where(PADDED.mask, PADDED.ids % CLASSES, -100)
    found = certificate(forward, embgrad.CrossEntropy(labels), batch=PADDED)
    assert found.padding is None
    assert found.unrun == {"padding": "the objective has a label for each position"}
    function = certificate(forward, lambda outputs: outputs.sum(2).mean(1), batch=PADDED)
    assert set(function.unrun) == {"order", "padding"}


def test_padding_that_is_read_is_warned_of() -> None:
    def leaking(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
        rows = lookup(model["E"], input_ids)
        return (rows + rows.mean(1).reshape(len(rows.value), 1, DIM)).tanh().mean(1) @ model["H"]

    with pytest.warns(embgrad.EmbgradWarning, match=r"without its padding an example has another gradient at 'word'"):
        found = certificate(leaking, batch=PADDED)
    assert found.padding > 0.1
    assert max(found.independence, found.order, found.neighbours) < 1e-12

    def counted(outputs: Tensor) -> Tensor:
        return outputs.sum(2).mean(1)

    def hidden(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
        return lookup(model["E"], input_ids).tanh()

    first = embgrad.TokenBatch(PADDED.ids[[1, 0, 2]], PADDED.mask[[1, 0, 2]])
    with pytest.warns(embgrad.EmbgradWarning, match="the model or the objective reads padding"):
        assert certificate(hidden, counted, batch=first).padding > 0.1


@pytest.mark.filterwarnings("ignore:check=True")
@pytest.mark.parametrize("at", ["word", "rows"])
def test_rows_of_other_examples_are_wrong(at: str) -> None:
    """A model that sorts its batch, as for packing: the rows inside are in its order."""

    def forward(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
        order = np.argsort(-attention_mask.sum(1), kind="stable")
        back = np.argsort(order)

        def sort(rows: Tensor) -> Tensor:
            made = Tensor(rows.value[order], [(rows, lambda g: g[back])])
            return made * Tensor(attention_mask[order][..., None] * 1.0)

        inside = model.module("rows", sort, lookup(model["E"], input_ids)).tanh()
        return Tensor(inside.value[back], [(inside, lambda g: g[order])]).sum(1) @ model["H"]

    batch = embgrad.TokenBatch(PADDED.ids[[1, 0, 2]], PADDED.mask[[1, 0, 2]])
    model = ReferenceModel(forward, weights(), modules=["rows"])
    if at == "word":
        assert embgrad.gradients(model, batch, PROJECTION, check=True).certificate.order < 1e-12
        return
    with pytest.raises(
        embgrad.errors.CertificationError, match="the rows at 'rows' are not those of the batch's examples"
    ) as error:
        embgrad.gradients(model, batch, PROJECTION, at=at, check=True)
    assert error.value.certificate.order > 0.1
    same = embgrad.TokenBatch(np.full((3, 4), 5), batch.mask)
    with pytest.raises(
        embgrad.errors.CertificationError,
        match="with the examples in another order, their objectives are the same and their rows are not",
    ):
        embgrad.gradients(model, same, PROJECTION, at=at, check=True)


def test_a_state_that_is_carried_from_call_to_call_is_named() -> None:
    def forward(model: Any, input_ids: np.ndarray) -> Tensor:
        sums = lookup(model["E"], input_ids).sum(1)
        kept = model.state if len(model.state) == len(input_ids) else np.zeros((len(input_ids), DIM))
        out = (sums + Tensor(kept)).tanh()
        model.state = out.value * 1.0
        return out @ model["H"]

    model = ReferenceModel(forward, weights())
    model.state = np.random.default_rng(9).normal(size=(3, DIM)) * 3  # type: ignore[attr-defined]
    with pytest.warns(embgrad.EmbgradWarning, match="depend on one another, or on 'state', which the model keeps"):
        found = embgrad.gradients(model, IDS, PROJECTION, check=True).certificate
    assert found.independence > 0.1
    assert found.order > 0.1
    assert found.neighbours < 1e-12


def test_examples_that_depend_on_one_another_are_warned_of() -> None:
    with pytest.warns(
        embgrad.EmbgradWarning, match=r"an example has another gradient at 'word' .* depend on one another\. Give"
    ):
        found = certificate(centred)
    assert found.neighbours > 0.01
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        split = certificate(centred, split=True)
    assert split.neighbours > 0.01

    def similarity(outputs: Tensor) -> Tensor:
        first = outputs.column(0)
        return first * Tensor(first.value[::-1], [(first, lambda g: g[::-1])])

    with pytest.warns(embgrad.EmbgradWarning, match="depend on one another"):
        assert certificate(layered, similarity, batch=IDS[:2]).neighbours > 0.1


def test_a_warning_of_the_call_is_not_given_again_by_its_tests() -> None:
    def unmasked(model: Any, input_ids: np.ndarray) -> Tensor:
        return classify(model, lookup(model["E"], input_ids))

    batch = embgrad.TokenBatch(PADDED.ids[[1, 0, 2]], PADDED.mask[[1, 0, 2]])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        certificate(unmasked, batch=batch)
    texts = [str(item.message) for item in caught]
    assert sum("mask" in text and "check=True" not in text for text in texts) == 1
    assert len(texts) == len(set(texts))


def test_tests_that_the_model_does_not_accept_have_a_reason() -> None:
    def fixed(model: Any, inputs: Any) -> Any:
        if len(inputs) != 3:
            raise RuntimeError("three texts at a time")
        return model.forward(model, inputs)

    model = ReferenceModel(layered, weights())
    found = embgrad.gradients(model, IDS, PROJECTION, call=fixed, check=True).certificate
    assert found.independence is None
    assert found.unrun == {"independence": "RuntimeError: 'three texts at a time'"}
    assert found.order < 1e-12
    same = certificate(layered, batch=np.full((2, 3), 4))
    assert same.unrun == {"neighbours": "all examples hold the same ids"}
    scalar = certificate(layered, embgrad.Scalar(lambda outputs: outputs.sum(1).sum(0)))
    assert set(scalar.unrun.values()) == {"a Scalar objective reduces over the batch"}
    changed = certificate(layered, override={"word": lambda value: value * 2.0})
    assert set(changed.unrun) == {"neighbours", "order"}
    assert certificate(layered, at="pos").unrun["order"] == "the point is not seen as (example, position, dim)"
    further = {"input_ids": PADDED.ids, "attention_mask": PADDED.mask, "spans": np.ones((3, 4))}
    with pytest.warns(embgrad.EmbgradWarning, match="spans"):
        apart = certificate(masked, batch=further)
    assert "'spans'" in apart.unrun["padding"]
    restored = embgrad.results.Certificate.from_dict(json.loads(json.dumps(apart.to_dict())))
    assert restored == apart
    assert worst([apart, found]).unrun == {**apart.unrun, **found.unrun}


@pytest.mark.parametrize(
    ("ids", "mask", "others"),
    [
        ([[1, 5, 2], [1, 7, 2]], None, [[1, 7, 2], [1, 5, 2]]),  # what all hold stays
        ([[1, 5, 2], [1, 2, 2]], None, [[2, 1, 5], [2, 5, 5]]),  # unless only one id is left
        ([[3, 4, 9], [5, 5, 4]], [[1, 1, 1], [1, 1, 0]], [[4, 5, 3], [9, 9, 4]]),  # and padding
        ([[4, 4], [4, 4]], None, [[4, 4], [4, 4]]),
    ],
)
def test_ids_are_exchanged_for_the_next_larger(ids: Any, mask: Any, others: Any) -> None:
    np.testing.assert_array_equal(_other_ids(embgrad.TokenBatch(ids, mask)), others)


def test_differences_are_relative_to_gradients_and_to_slopes() -> None:
    result = SimpleNamespace(
        values=np.array([[[3.0, 4.0]], [[0.0, 0.002]]]),
        activations=np.array([[[0.6, 0.8]], [[2.0, 0.0]]]),
        objective=np.array([-2.0, 1.0]),
    )
    trial = _Trial(None, None, "word", result, 0.0, None)  # type: ignore[arg-type]
    moved = np.array([[0.0, 0.0], [0.0, 0.005]]).reshape(2, 1, 2)
    # The second gradient is shorter than a thousandth of the longest, 0.005.
    assert trial.apart(result.values + moved, result.values) == pytest.approx(1.0)
    assert trial.apart(result.values[:1] * 1.5, result.values[:1]) == pytest.approx(0.5)
    assert trial.apart_in_objective(np.array([2.0]), np.array([1])) == pytest.approx(1 / 5)  # of the slope, 5 · 1
    result.activations *= 0.1
    assert trial.apart_in_objective(np.array([1.0, 2.0]), np.array([1, 0])) == pytest.approx(4 / 2)  # of L
    result.values, result.objective = 0 * result.values, 0 * result.objective
    assert trial.apart(moved, result.values) == pytest.approx(0.005)
    assert trial.apart_in_objective(np.array([0.5]), np.array([0])) == 0.5


CHANGED, OTHERS = "the row of example 0, position 1 changes with another's id", "the rows of others change"


@pytest.mark.parametrize(
    ("rows", "own", "objective", "reads_ids", "message"),
    [
        ({}, 1.0, 0.0, True, None),
        ({(0, 1): 1.0}, 0.0, 0.0, True, CHANGED),
        ({(0, 1): 1.0}, 1.0, 0.0, True, CHANGED),
        ({(0, 1): 1.0}, 0.0, 0.0, False, OTHERS),
        ({(2, 0): 0.21}, 0.0, 0.0, False, OTHERS),
        ({(2, 0): 0.19}, 0.0, 0.0, False, None),  # less than 0.1 of the largest, 2
        ({(0, 1): 1.0}, 1.0, 0.0, False, None),  # and so does the row of the id
        ({(0, 1): 1.0}, 0.0, 1.0, False, None),  # and so does L: the examples meet
    ],
)
def test_rows_that_change_with_the_ids_of_others(
    rows: Any, own: float, objective: float, reads_ids: bool, message: str | None
) -> None:
    batch = embgrad.TokenBatch(IDS)
    question = Question(bind(ReferenceModel(linear, weights()), None), batch, (PROJECTION,), GradientOptions())
    before = embgrad.gradients(ReferenceModel(linear, weights()), IDS, PROJECTION)
    before = replace(before, activations=np.full((3, 2, DIM), 2.0))
    change = np.zeros((3, 2, DIM))
    for place, size in {**rows, (1, 0): own}.items():
        change[(*place, 3)] = size
    after = replace(
        before, activations=2.0 + change, objective=before.objective + np.array([objective, 9.0, objective])
    )
    located = SimpleNamespace(lookup=SimpleNamespace(indices=IDS[::-1]) if reads_ids else None)
    made, asked = Reruns(), []

    def run_question(other: Question) -> Any:
        asked.append(other.batch.ids.tolist())
        return [{"word": after}]

    _Trial(question, located, "word", before, 0.1, run_question).neighbours(made)  # type: ignore[arg-type]
    assert asked == [[[3, 5], [3, 1], [7, 1]]], "the second example has the next larger ids"
    assert (made.misplaced is None) is (message is None)
    assert (message or "") in (made.misplaced or "")

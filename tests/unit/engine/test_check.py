"""Certificates: right gradients pass, wrong ones do not, and the figures are what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.results.certificate import worst
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from embgrad.testing.tensors import observing
from tests.unit.engine.checked import (
    CLASSES,
    DIM,
    IDS,
    PROJECTION,
    Wrong,
    centred,
    certificate,
    classify,
    layered,
    linear,
    weights,
)


def quadratic(model: Any, input_ids: np.ndarray) -> Tensor:
    rows = lookup(model["E"], input_ids)
    return (rows * rows * rows).mean(1) @ model["H"]


def softened(model: Any, input_ids: np.ndarray) -> Tensor:
    return ((lookup(model["E"], input_ids) @ model["W"]).softmax()).mean(1) @ model["H"]


def tied(model: Any, input_ids: np.ndarray) -> Tensor:
    return (lookup(model["E"], input_ids) @ model["W"]).tanh().mean(1) @ model["E"].swap(0, 1)


def twice(model: Any, input_ids: np.ndarray) -> Tensor:
    return classify(model, lookup(model["E"], input_ids) + lookup(model["E"], input_ids[:, ::-1]).tanh())


def saturated(model: Any, input_ids: np.ndarray) -> Tensor:
    """Depend on the lookup with a gradient of zero."""
    return classify(model, lookup(model["E"], input_ids) * 1e4)


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
    [embgrad.CrossEntropy([0, 2, 1]), embgrad.Logit([1, 0, 2]), embgrad.Margin(0, against=[1, 2, 1]), embgrad.Sum(),
        lambda logits: logits.column(1), embgrad.Scalar(lambda logits: logits.column(1).sum(0))],
)  # fmt: skip
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


@pytest.mark.sampled(12)
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
    "factors", [lambda ids: 1.0 / np.bincount(ids.ravel())[ids][..., None], lambda ids: np.zeros((*ids.shape, 1))]
)
def test_a_table_whose_gradient_is_no_sum_is_refused(factors: Any, with_head: bool) -> None:
    ids = np.array([[7, 7, 7, 1], [9, 4, 7, 3]])

    def forward(model: Any, input_ids: np.ndarray) -> Tensor:
        rows = looked_up(model["E"], input_ids, lambda g: g * factors(input_ids))
        hidden = (rows @ model["W"]).tanh().mean(1)
        return hidden @ (model["E"].swap(0, 1) if with_head else model["H"])

    with pytest.raises(
        embgrad.errors.CertificationError, match=r"framework's own gradient of the table differ by .*: expected the sum"
    ):
        certificate(forward, embgrad.Logit(1), batch=ids)

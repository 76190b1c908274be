"""Perturbed passes in the user's own loop, on the reference: closed forms, axes, names, what is refused and in what words."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.testing.reference import ReferenceModel, Tensor, lookup, pull_back
from tests.unit.engine.test_capture import CLASSES, DIM, IDS, LABELS, OTHER, WEIGHTS, model, slope, step
from tests.unit.refusals import refused

RANDOM = np.random.default_rng(8)
DELTA = RANDOM.normal(size=(*IDS.shape, DIM))


def linear(ids_first: bool = True) -> ReferenceModel:
    """Return a model whose gradients have a closed form; its lookup may be by position first."""

    def forward(model: Any, input_ids: Any) -> Tensor:
        rows = lookup(model["E"], input_ids if ids_first else input_ids.T)
        return model.module("pool", lambda x: x.mean(1 if ids_first else 0), rows) @ model["H"]

    return ReferenceModel(forward, {name: WEIGHTS[name].copy() for name in ("E", "H")}, ["pool"])


def gradients_by_hand(delta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the gradient of the mean cross-entropy with respect to the array, the table and the head, in closed form."""
    pooled = (WEIGHTS["E"][IDS] + delta).mean(1)
    logits = pooled @ WEIGHTS["H"]
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    error = (probabilities - np.eye(CLASSES)[LABELS]) / len(IDS)
    at_rows = np.repeat((error @ WEIGHTS["H"].T)[:, None] / IDS.shape[1], IDS.shape[1], axis=1)
    table = np.zeros_like(WEIGHTS["E"])
    np.add.at(table, IDS, at_rows)
    return at_rows, table, pooled.T @ error


@pytest.mark.parametrize("ids_first", [True, False])
@pytest.mark.parametrize("captured_first", [True, False])
def test_gradients_flow_on_to_the_weights(captured_first: bool, ids_first: bool) -> None:
    built = linear(ids_first)
    with contextlib.ExitStack() as stack:
        if captured_first:
            tap = stack.enter_context(embgrad.capture(built))
        perturbation = stack.enter_context(embgrad.perturbed(built, {"word": DELTA}))
        if not captured_first:
            tap = stack.enter_context(embgrad.capture(built))
        logits = built(IDS)
        table, head = pull_back([(logits, slope(logits))], [built["E"], built["H"]])
    at_rows, expected_table, expected_head = gradients_by_hand(DELTA)
    assert table is not None
    assert head is not None
    np.testing.assert_allclose(table, expected_table, atol=1e-12)
    np.testing.assert_allclose(head, expected_head, atol=1e-12)
    np.testing.assert_allclose(tap.steps[0].values, at_rows, atol=1e-12)
    np.testing.assert_array_equal(tap.steps[0].activations, WEIGHTS["E"][IDS] + DELTA)
    assert (perturbation.passes, repr(perturbation)) == (1, "Perturbation(of 'word', 1 forward passes)")


@pytest.mark.parametrize(
    "value",
    [1.5, DELTA[0, 0], DELTA[0], DELTA, DELTA[:, :1], lambda value: 0.1 * value, lambda value: 2.0,
        DELTA[0, 0].tolist()],
    ids=["number", "dim", "position", "example", "one position", "function", "function of a number", "list"],
)  # fmt: skip
@pytest.mark.parametrize("at", ["word", "E", "embeddings", "layer.0", "layer.-1", "layers.1", "layers.1:input"])
def test_arrays_broadcast_to_the_point(at: str, value: Any) -> None:
    built = model()
    expected = embgrad.gradients(built, IDS, embgrad.CrossEntropy(LABELS), at=at, add={at: value})
    with embgrad.perturbed(built, {at: value}), embgrad.capture(built, at) as tap:
        step(built, IDS)
    np.testing.assert_allclose(tap.steps[0].activations, expected.activations, atol=1e-14)
    np.testing.assert_allclose(tap.steps[0].values, expected.values / 2, atol=1e-14)


def test_positions_that_all_examples_share_have_their_own_axes_as_in_a_capture() -> None:
    built, by_hand = model(), model()
    by_hand.parameters["pos"].value = by_hand["pos"].value + np.pad(DELTA[0], [(0, 3), (0, 0)])
    with embgrad.perturbed(built, {"position": DELTA[0]}):
        np.testing.assert_allclose(built(IDS).value, by_hand(IDS).value, atol=1e-14)
    with (
        refused(
            embgrad.errors.PointError,
            "add['position'] has the shape (2, 3, 4): expected one that broadcasts to the point's, (3, 4)",
        ),
        embgrad.perturbed(built, {"position": DELTA}),
    ):
        built(IDS)


def test_several_points_and_several_passes() -> None:
    built = model()
    add = {"word": DELTA, "layer.0": DELTA[0], "pool": 0.5}
    expected = embgrad.gradients(built, IDS, embgrad.CrossEntropy(LABELS), add=add)
    with embgrad.perturbed(built, add) as perturbation, embgrad.capture(built) as tap:
        step(built, IDS, rate=0.0)
        step(built, IDS, rate=0.0)
    assert perturbation.passes == 2
    for item in tap.steps:
        np.testing.assert_allclose(item.values, expected.values / 2, atol=1e-14)


def test_an_array_that_fits_one_batch_and_not_the_next() -> None:
    built = model()
    perturbation = embgrad.perturbed(built, {"word": DELTA})
    with (
        refused(
            embgrad.errors.PointError,
            "add['word'] has the shape (2, 3, 4): expected one that broadcasts to the point's, (2, 2, 4)",
        ),
        perturbation as passes,
    ):
        built(IDS)
        built(IDS[:, :2])
    assert passes.passes == 1
    assert built.around is None


@pytest.mark.parametrize(
    ("add", "kind", "fragments"),
    [
        (None, embgrad.errors.PointError, ["add is None: expected a dict by the names of points"]),
        (DELTA, embgrad.errors.PointError, ["add is ", "expected a dict by the names of points"]),
        ({"": 1.0}, embgrad.errors.PointError, ["add is ", "expected a dict"]),
        (
            {"word": "much"},
            embgrad.errors.PointError,
            ["add['word'] is of dtype <U4: expected an array of real numbers"],
        ),
        ({"word": [[1.0], [1.0, 2.0]]}, embgrad.errors.PointError, ["add['word'] is ", "which is no array of numbers"]),
        ({"word": 1j}, embgrad.errors.PointError, ["add['word'] is of dtype complex128"]),
        ({"wrod": 1.0}, embgrad.errors.UnknownPointError, ["there is no point 'wrod'", "Did you mean 'word'?"]),
        ({"word": 1.0, "layers.7": 1.0}, embgrad.errors.UnknownPointError, ["there is no point 'layers.7'"]),
    ],
)
def test_what_is_refused_on_entry(add: Any, kind: type[Exception], fragments: list[str]) -> None:
    with refused(kind, *fragments):
        embgrad.perturbed(model(), add)


@pytest.mark.parametrize(
    ("add", "kind", "fragments"),
    [
        (
            {"word": np.nan},
            embgrad.errors.PointError,
            ["add['word'] is NaN in 24 of 24 entries", "Divide by its norm", ""],
        ),
        ({"layer.2": 1.0}, embgrad.errors.UnknownPointError, ["the model has 2 layers"]),
        ({"word#1": 1.0}, embgrad.errors.PointError, ["there is no point 'word#1'"]),
        ({"word": lambda value: None}, embgrad.errors.PointError, ["the function add['word'] returned None"]),
        ({"word": lambda value: "much"}, embgrad.errors.PointError, ["add['word'] is of dtype <U4"]),
        (
            {"word": 1.0, "E": 1.0},
            embgrad.errors.AmbiguousPointError,
            ["add names one point several times, as 'E', 'word'"],
        ),
        ({"layer.0": 1.0, "layers.0": 1.0}, embgrad.errors.AmbiguousPointError, ["add names one point several times"]),
        ({"count": 1.0}, embgrad.errors.PointError, ["'count'"]),
    ],
)
def test_what_is_refused_in_the_pass(add: Any, kind: type[Exception], fragments: list[str]) -> None:
    built = model()
    fragments = [fragment.replace("Divide", "divide") for fragment in fragments]
    with refused(kind, *fragments), embgrad.perturbed(built, add):
        built(IDS)
    assert built.around is None
    np.testing.assert_array_equal(built(IDS).value, model()(IDS).value)


def test_a_point_that_the_pass_does_not_reach() -> None:
    def shallow(model: Any, input_ids: Any) -> Tensor:
        rows = lookup(model["E"], input_ids)
        if input_ids[0, 0] == IDS[0, 0]:
            rows = model.module("layers.0", lambda x: x.tanh(), rows)
        return rows.sum(1) @ model["H"]

    built = model(shallow)
    with (
        refused(embgrad.errors.PointNotReachedError, "did not reach the point 'layers.0"),
        embgrad.perturbed(built, {"layers.0": 1.0}),
    ):
        built(IDS)
        built(OTHER)

    def changed(model: Any, input_ids: Any) -> Tensor:
        return lookup(model["E"], input_ids[:, ::-1] // 2).sum(1) @ model["H"]

    built = model(changed)
    with (
        refused(embgrad.errors.PointNotReachedError, "the model made no lookup whose indices are"),
        embgrad.perturbed(built, {"word": 1.0}),
    ):
        built(IDS)


def test_a_model_that_is_called_without_ids() -> None:
    def floats(model: Any, rows: np.ndarray) -> Tensor:
        return model.module("pool", lambda x: x.tanh(), lookup(model["E"], rows.astype(int))) @ model["H"]

    built = model(floats)
    with (
        refused(
            embgrad.errors.PointNotReachedError,
            "called without token ids: its integer arguments are none",
            "than 'word'",
        ),
        embgrad.perturbed(built, {"word": 1.0}),
    ):
        built(IDS.astype(float))
    with embgrad.perturbed(built, {"pool": DELTA}):
        expected = (np.tanh(WEIGHTS["E"][IDS]) + DELTA) @ WEIGHTS["H"]
        np.testing.assert_allclose(built(IDS.astype(float)).value, expected, atol=1e-14)


def test_models_that_are_refused() -> None:
    with refused(
        embgrad.errors.UnsupportedError, "a sequence of 2 parts", "are perturbed; open one perturbation for each part"
    ):
        embgrad.perturbed([model(), model()], {"word": 1.0})
    with pytest.raises(embgrad.errors.BackendError):
        embgrad.perturbed(3, {"word": 1.0})


def test_a_perturbation_is_opened_once() -> None:
    perturbation = embgrad.perturbed(model(), {"word": 1.0})
    with (
        perturbation,
        refused(embgrad.EmbgradError, "this perturbation of 'word' is already open", "open a new one, as in"),
    ):
        perturbation.__enter__()
    with refused(embgrad.EmbgradError, "is already closed"):
        perturbation.__enter__()


def test_leaving_without_a_pass_is_fine_unless_a_child_was_called() -> None:
    built = model()
    with embgrad.perturbed(built, {"word": 1.0}):
        pass
    with (
        refused(
            embgrad.errors.PointNotReachedError,
            "the forward of ReferenceModel was never called while the perturbation was open, and that of its child 'pool' was",
            "perturb that child, as in embgrad.perturbed(model.pool, ...)",
        ),
        embgrad.perturbed(built, {"word": 1.0}),
    ):
        built.module("pool", lambda: None)
    assert built.outside is None
    with pytest.raises(ZeroDivisionError), embgrad.perturbed(built, {"word": 1.0}):
        built.module("pool", lambda: 1 / 0)


def test_square_batches_whose_axes_are_unknown() -> None:
    built, ids = model(), IDS[:, :2]
    with (
        pytest.warns(embgrad.EmbgradWarning, match=r"'layer.0' is the same by example.*Perturb a batch"),
        embgrad.perturbed(built, {"layer.0": 1.0}),
    ):
        built(ids)


def test_dropout_draws_as_without_a_perturbation() -> None:
    def dropping(model: Any, input_ids: Any) -> Tensor:
        return model.dropout(lookup(model["E"], input_ids), 0.5).sum(1) @ model["H"]

    built, alone = model(dropping), model(dropping)
    built.training = alone.training = True
    with embgrad.perturbed(built, {"word": 0.0}):
        values = [built(ids).value for ids in (IDS, OTHER, IDS)]
    np.testing.assert_array_equal(values, [alone(ids).value for ids in (IDS, OTHER, IDS)])


def test_a_backend_without_the_ability_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from embgrad.testing.reference import ReferenceBackend

    monkeypatch.setattr(ReferenceBackend, "supports", ReferenceBackend.supports - {"perturb"})
    with refused(embgrad.errors.UnsupportedError, "the backend 'reference' does not support 'perturb'"):
        embgrad.perturbed(model(), {"word": 1.0})


class Attached(np.ndarray):
    """An array that wants a gradient, as a tensor of a framework may."""

    requires_grad = True


def test_a_tensor_that_wants_a_gradient_is_refused() -> None:
    with refused(
        embgrad.errors.PointError, "which requires a gradient, and arrays are added as constants", "by embgrad.capture"
    ):
        embgrad.perturbed(model(), {"word": DELTA.view(Attached)})

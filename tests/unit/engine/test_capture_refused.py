"""What a capture inside the user's own loop refuses: options, models, points, passes without gradients, and broken loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.testing.reference import ReferenceModel, Tensor, lookup, pull_back
from tests.unit.engine.test_capture import (
    CLASSES,
    DIM,
    IDS,
    OTHER,
    WEIGHTS,
    model,
    slope,
    step,
)
from tests.unit.refusals import refused


def test_forward_passes_with_incompatible_shapes_are_refused() -> None:
    def attending(model: Any, input_ids: Any) -> Tensor:
        rows = lookup(model["E"], input_ids)
        scores = model.module("scores", lambda x: x @ model[f"keys.{input_ids.shape[1]}"], rows)
        return scores.tanh().sum(1) @ model[f"head.{input_ids.shape[1]}"]

    random, weights = np.random.default_rng(4), {"E": WEIGHTS["E"]}
    for length in (2, 3):
        weights[f"keys.{length}"] = random.normal(size=(DIM, length))
        weights[f"head.{length}"] = random.normal(size=(length, CLASSES))
    built = ReferenceModel(attending, weights, ["scores"])
    message = (
        r"one backward pass reached 'scores' in the shapes \(2, 3, 3\), \(2, 2, 2\), which cannot be joined into one step: "
        "name another point"
    )
    with pytest.raises(embgrad.errors.PointError, match=message), embgrad.capture(built, at="scores"):
        step(built, IDS, OTHER[:, :2])

    def pooling(model: Any, input_ids: Any) -> Tensor:
        rows = lookup(model["E"], input_ids)
        sums = model.module("sums", lambda x: (x @ model[f"keys.{input_ids.shape[1]}"]).sum(1), rows)
        return sums @ model[f"head.{input_ids.shape[1]}"]

    pooled = ReferenceModel(pooling, weights, ["sums"])
    with refused(embgrad.errors.PointError, "in the shapes (2, 3), (2, 2), which"), embgrad.capture(pooled, at="sums"):
        step(pooled, IDS, OTHER[:, :2])

    def total(model: Any, input_ids: Any) -> Tensor:
        sizes = model.module("total", lambda x: x.sum(1).sum(1).sum(0), lookup(model["E"], input_ids))
        return lookup(model["E"], input_ids).sum(1) @ model["H"] + sizes

    numbers = ReferenceModel(total, WEIGHTS, ["total"])
    with refused(embgrad.errors.PointError, "in the shapes (), (), which"), embgrad.capture(numbers, at="total"):
        step(numbers, IDS, OTHER)


def test_a_model_that_is_called_without_ids() -> None:
    def floats(model: Any, rows: np.ndarray) -> Tensor:
        return model.module("pool", lambda x: x.tanh(), lookup(model["E"], rows.astype(int))) @ model["H"]

    built = model(floats)
    message = "called without token ids: its integer arguments are none"
    with pytest.raises(embgrad.errors.PointNotReachedError, match=message), embgrad.capture(built):
        built(IDS.astype(float))
    with embgrad.capture(built, at="pool") as tap:
        logits = built(IDS.astype(float))
        pull_back([(logits, np.ones(logits.shape))], [built["E"]])
    assert tap.steps[0].values.shape == (2, 3, DIM)


def test_a_capture_without_a_gradient_is_an_error() -> None:
    built = model()
    message = r"called 1 time\(s\), and no gradient reached 'word': expected a backward pass"
    with pytest.raises(embgrad.errors.NoGradientError, match=message), embgrad.capture(built):
        built(IDS)
    assert built.around is None

    def pull_back_to_the_head() -> None:
        logits = built(IDS)
        pull_back([(logits, slope(logits))], [built["H"]])

    with pytest.raises(embgrad.errors.NoGradientError, match=message), embgrad.capture(built):
        pull_back_to_the_head()


@pytest.mark.parametrize("kind", [ZeroDivisionError, KeyboardInterrupt, embgrad.errors.BatchError])
def test_errors_of_the_loop_propagate_and_the_model_is_restored(kind: type[BaseException]) -> None:
    built = model()

    def loop() -> None:
        built(IDS)
        raise kind("of the user's")

    with pytest.raises(kind, match="of the user's"), embgrad.capture(built) as tap:
        loop()
    assert built.around is None
    step(built, IDS)
    assert tap.count == 0


def test_errors_of_the_model_propagate() -> None:
    def broken(model: Any, input_ids: Any) -> Tensor:
        rows = lookup(model["E"], input_ids)
        if input_ids[0, 0] == 7:
            raise RuntimeError("the model broke")
        return rows.tanh().sum(1) @ model["H"]

    built = model(broken)
    with embgrad.capture(built) as tap:
        step(built, IDS)
        with pytest.raises(RuntimeError, match="the model broke"):
            built(OTHER)
        step(built, IDS)
    assert tap.count == 2


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"at": "wrod"}, embgrad.errors.UnknownPointError, r"no point 'wrod': expected a role.* Did you mean 'word'\?"),
        ({"at": "layers.2"}, embgrad.errors.UnknownPointError, r"Did you mean 'layers\.[01]'\?"),
        ({"at": "F"}, embgrad.errors.UnknownPointError, "the path of a module or table, of 'E', 'pos'"),
        ({"at": ""}, embgrad.errors.PointError, "at is '': expected the name of a point.*one capture for each point"),
        ({"at": ["word"]}, embgrad.errors.PointError, r"at is \['word'\]"),
        ({"at": None}, embgrad.errors.PointError, "at is None"),
        ({"keep": "last"}, embgrad.EmbgradError, "keep is 'last': expected 'all' or 'mean'"),
        ({"keep": "means"}, embgrad.EmbgradError, r"Did you mean 'mean'\?"),
        ({"keep": None}, embgrad.EmbgradError, "keep is None"),
        ({"keep": np.array(["all", "mean"])}, embgrad.EmbgradError, "keep is array.*expected 'all' or 'mean'"),
    ],
)
def test_options_are_checked_before_the_loop_begins(options: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        embgrad.capture(model(), **options)


def test_models_that_are_refused() -> None:
    with refused(embgrad.errors.UnsupportedError, "a sequence of 2 parts: expected one model", "one capture for each"):
        embgrad.capture([model(), model()])
    with pytest.raises(embgrad.errors.BackendError):
        embgrad.capture(3)


@pytest.mark.parametrize("at", ["layer.2", "type", "word#1", "layers.0#1", "count"])
def test_points_that_the_first_pass_does_not_reach(at: str) -> None:
    built = model()
    with (
        pytest.raises(embgrad.errors.PointError, match=r"no point|is not reached|was not reached"),
        embgrad.capture(built, at=at),
    ):
        built(IDS)
    assert built.around is None


def test_a_point_that_a_later_pass_does_not_reach() -> None:
    def shallow(model: Any, input_ids: Any) -> Tensor:
        rows = lookup(model["E"], input_ids)
        if input_ids[0, 0] == 3:
            rows = model.module("layers.0", lambda x: x.tanh(), rows)
        return rows.sum(1) @ model["H"]

    built = model(shallow)

    def loop() -> None:
        step(built, IDS)
        step(built, OTHER)

    with (
        pytest.raises(embgrad.errors.PointNotReachedError, match=r"'layers\.0"),
        embgrad.capture(built, at="layers.0") as tap,
    ):
        loop()
    assert tap.count == 1


def test_an_id_outside_the_table_is_refused() -> None:
    built = model()
    with (
        pytest.raises(embgrad.errors.BatchError, match="id 12 at example 0, position 1 is outside"),
        embgrad.capture(built),
    ):
        built(np.array([[3, 12, 4]]))


def test_a_capture_is_opened_once() -> None:
    capturing = embgrad.capture(model())
    with (
        capturing,
        pytest.raises(embgrad.EmbgradError, match="this capture at 'word' is already open, and can be opened once"),
    ):
        capturing.__enter__()
    with pytest.raises(embgrad.EmbgradError, match="is already closed"):
        capturing.__enter__()


def embed_and_pool(built: ReferenceModel) -> None:
    """Run a step through children of the model, without its own `forward`."""
    rows = built.module("embed", lambda ids: lookup(built["E"], ids), IDS)
    logits = built.module("pool", lambda x: x.sum(1).tanh(), rows) @ built["H"]
    pull_back([(logits, slope(logits))], [built["E"]])


def test_calling_only_the_children_of_a_model_is_an_error_that_names_them() -> None:
    built = model()
    message = "forward of ReferenceModel was never called while the capture was open, and those of its children 'embed', 'pool' "
    with pytest.raises(embgrad.errors.NoGradientError, match=message) as caught, embgrad.capture(built) as tap:
        embed_and_pool(built)
    assert caught.value.message.endswith("capture the child that takes the ids, as in embgrad.capture(model.embed)")
    assert built.outside is None
    with pytest.raises(embgrad.errors.NoGradientError, match=message):
        tap.mean()
    with embgrad.capture(built) as tap:
        embed_and_pool(built)
        step(built, IDS)
    assert tap.count == 1


def test_only_direct_children_are_named() -> None:
    built = model()
    with pytest.raises(embgrad.errors.NoGradientError) as caught, embgrad.capture(built):
        built.module("layers", lambda: built.module("layers.0", lambda: None))
    assert caught.value.message == (
        "the forward of ReferenceModel was never called while the capture was open, and that of its child 'layers' was: capture "
        "that child, as in embgrad.capture(model.layers)"
    )


def test_an_empty_capture_says_why_when_it_is_read() -> None:
    with embgrad.capture(model()) as tap:
        assert tap.steps == []
        assert repr(tap) == "Tap(at='word', 0 steps, 0 forward passes)"
    message = "nothing was captured at 'word', as ReferenceModel was not called while the capture was open: expected forward and"
    for ask in (tap.sum, tap.mean, lambda: tap.steps):
        with pytest.raises(embgrad.errors.NoGradientError, match=message):
            ask()
    assert message in repr(tap)


def test_an_ambiguous_pass_without_the_table_of_earlier_steps_is_refused() -> None:
    def elsewhere(model: Any, input_ids: np.ndarray) -> Tensor:
        names = ("E", "pos") if input_ids.shape[1] == 3 else ("W", "pos")
        rows = lookup(model[names[0]], input_ids)
        if names[0] == "W":
            rows = rows + lookup(model["pos"], input_ids)
        return rows.tanh().sum(1) @ model["H"]

    built = model(elsewhere)
    with refused(embgrad.errors.AmbiguousPointError, "'word'", "W#0", "pos#0"), embgrad.capture(built):
        step(built, IDS)
        step(built, np.array([[1, 0], [2, 3]]))

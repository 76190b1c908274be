"""What is said of texts that are longer than a model's positions, and `max_length`, which cuts them; on the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.errors import BatchError, UnsupportedError
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.unit.refusals import refused
from tests.unit.streams import Pieces

MOST = 6
WEIGHTS = {
    "E": np.random.default_rng(0).normal(size=(30, 4)),
    "P": np.random.default_rng(1).normal(size=(MOST, 4)),
    "W": np.random.default_rng(2).normal(size=(4, 3)),
}
IDS = np.random.default_rng(3).integers(1, 30, (3, 10))
MASK = (np.arange(10) < np.array([[5], [9], [10]])).astype(int)
SUM = embgrad.Sum()
TOO_LONG = (
    "example 2 has 10 tokens, and the model takes 6 positions at most: pass max_length=6 with the tokenizer, "
    "or shorter ids"
)


def model(forward: Callable[..., Any]) -> ReferenceModel:
    return ReferenceModel(forward, WEIGHTS)


def by_table(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
    """Look the positions up, as GPT-2 does."""
    rows = lookup(model["E"], input_ids) + lookup(model["P"], np.arange(input_ids.shape[1])[None])
    return rows.tanh().mean(1) @ model["W"]


def by_buffer(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
    """Slice a buffer of positions, as BERT does, which fails before any lookup if the buffer is too short."""
    positions = np.broadcast_to(np.arange(MOST)[None, : input_ids.shape[1]], input_ids.shape)
    return (lookup(model["E"], input_ids) + lookup(model["P"], positions)).tanh().mean(1) @ model["W"]


CALLS: dict[str, Callable[..., Any]] = {
    "gradients": lambda model, batch, **options: embgrad.gradients(model, batch, SUM, **options),
    "micro-batches": lambda model, batch, **options: embgrad.gradients(model, batch, SUM, batch_size=1, **options),
    "a module": lambda model, batch, **options: embgrad.gradients(model, batch, SUM, at="P", **options),
    "split": lambda model, batch, **options: embgrad.gradients(model, batch, SUM, split=True, **options),
    "points": embgrad.points,
    "table": lambda model, batch, **options: embgrad.tables.table_gradients(model, batch, SUM, **options),
    "parameters": lambda model, batch, **options: embgrad.tables.parameter_gradients(model, batch, SUM, **options),
    "bisect": lambda model, batch, **options: embgrad.bisect(model, model, batch, SUM, **options),
}


@pytest.mark.parametrize("forward", [by_table, by_buffer])
@pytest.mark.parametrize("call", CALLS)
def test_an_example_that_is_too_long_is_named(call: str, forward: Any) -> None:
    with pytest.raises(BatchError) as caught:
        CALLS[call](model(forward), {"input_ids": IDS, "attention_mask": MASK})
    assert caught.value.message == TOO_LONG
    assert caught.value.__cause__ is not None


def test_an_example_that_is_too_long_is_named_where_there_are_further_inputs() -> None:
    def weighted(model: Any, input_ids: np.ndarray, attention_mask: Any, factor: Any) -> Tensor:
        rows = lookup(model["E"], input_ids) * Tensor(factor[:, None, None])
        return (rows + lookup(model["P"], np.arange(input_ids.shape[1])[None])).tanh().mean(1) @ model["W"]

    batch = {"input_ids": IDS, "attention_mask": MASK, "factor": np.ones(len(IDS))}
    with pytest.raises(BatchError) as caught:
        embgrad.gradients(model(weighted), batch, SUM)
    assert caught.value.message == TOO_LONG


def test_the_longest_example_is_tried_where_the_positions_are_those_of_real_ids() -> None:
    def counted(model: Any, input_ids: np.ndarray, attention_mask: Any) -> Tensor:
        """Count the ids that are no padding, as RoBERTa does."""
        rows = lookup(model["E"], input_ids) + lookup(model["P"], (input_ids > 0).cumsum(1) - 1)
        return rows.tanh().mean(1) @ model["W"]

    with refused(BatchError, TOO_LONG):
        embgrad.gradients(model(counted), {"input_ids": (IDS * MASK)[:, ::-1], "attention_mask": MASK[:, ::-1]}, SUM)


def test_padding_that_is_too_long_has_its_own_message() -> None:
    mask = (np.arange(10) < np.array([[5], [4], [2]])).astype(int)
    with pytest.raises(BatchError) as caught:
        embgrad.gradients(model(by_table), {"input_ids": IDS, "attention_mask": mask}, SUM)
    assert caught.value.message == (
        "the batch has 10 positions, padding included, and the model accepts at most 6: pad only to the longest example, "
        "which has 5 tokens"
    )


def test_other_errors_of_the_model_propagate() -> None:
    def broken(model: Any, input_ids: np.ndarray) -> Tensor:
        raise ZeroDivisionError("at any length")

    def picky(model: Any, input_ids: np.ndarray) -> Tensor:
        if input_ids.shape[1] % 4:
            raise ValueError("not a multiple of 4")
        return by_table(model, input_ids)

    def one_id(model: Any, input_ids: np.ndarray) -> Tensor:
        if (input_ids != input_ids[0, 0]).any():
            raise ValueError("another id")
        return lookup(model["E"], input_ids).mean(1) @ model["W"]

    for forward, kind in ((broken, ZeroDivisionError), (picky, ValueError), (one_id, ValueError)):
        with pytest.raises(kind):
            embgrad.gradients(model(forward), IDS[:, :6], SUM)


def test_an_id_outside_the_table_is_reported_before_the_length() -> None:
    ids = IDS[:, :5].copy()
    ids[1, 3] = 30
    with pytest.raises(BatchError, match="id 30 at example 1, position 3 is outside the table"):
        embgrad.gradients(model(by_table), ids, SUM)


PIECES = Pieces(str.split)
TEXTS = ["one two three four five six seven", "one two"]


@pytest.mark.parametrize("call", CALLS)
def test_texts_are_cut_wherever_a_tokenizer_is_taken(call: str) -> None:
    with pytest.raises(BatchError, match="example 0 has 9 tokens, and the model takes 6 positions at most"):
        CALLS[call](model(by_table), TEXTS, tokenizer=PIECES)
    CALLS[call](model(by_table), TEXTS, tokenizer=PIECES, max_length=6)
    with refused(
        BatchError,
        "max_length=6 cuts texts, and the batch holds ids: expected ids of that length, ids[:, :6]",
    ):
        CALLS[call](model(by_table), IDS, max_length=6)


def test_truncated_texts_give_the_gradients_of_the_remaining_tokens() -> None:
    cut = embgrad.gradients(model(by_table), TEXTS, SUM, tokenizer=PIECES, max_length=6)
    batch = embgrad.encode(TEXTS, PIECES, max_length=6)
    np.testing.assert_array_equal(cut.values, embgrad.gradients(model(by_table), batch, SUM).values)
    assert cut.provenance["truncated"] == [3, 0]
    report = embgrad.metrics.padding_report(model(by_table), TEXTS, SUM, tokenizer=PIECES, max_length=6)
    assert report.positions == 12


@pytest.mark.parametrize("given", ["types", "labels"])
def test_an_invalid_input_is_not_reported_as_too_long(given: str) -> None:
    def picky(model: Any, input_ids: np.ndarray, token_type_ids: Any = None, labels: Any = None) -> Tensor:
        for value in (token_type_ids, labels):
            if value is not None and (np.asarray(value) > 1).any():
                raise ValueError("it holds a 2")
        return lookup(model["E"], input_ids).tanh().mean(1) @ model["W"]

    values = np.zeros_like(IDS)
    values[:, 7] = 2
    batch = {"input_ids": IDS, "token_type_ids" if given == "types" else "labels": values}
    with pytest.raises(ValueError, match="it holds a 2"):
        embgrad.gradients(model(picky), batch, SUM)


def with_decoder(
    model: Any, input_ids: np.ndarray, attention_mask: Any = None, decoder_input_ids: Any = None
) -> Tensor:
    """Make decoder ids from the encoder's if there are none, as BART does, or fail."""
    if decoder_input_ids is None and (model.strict or input_ids.shape[1] > MOST):
        raise RuntimeError("no decoder ids")
    return by_table(model, input_ids)


def encoder_decoder(*, strict: bool) -> ReferenceModel:
    built = model(with_decoder)
    built.strict = strict
    return built


def test_an_encoder_decoder_without_decoder_ids_is_named() -> None:
    with pytest.raises(BatchError, match="is an encoder-decoder, and raised RuntimeError without decoder ids"):
        embgrad.gradients(encoder_decoder(strict=True), IDS[:, :4], SUM)
    for batch, call in ((IDS[:, :4], lambda model, ids: model(ids)), ({"input_ids": IDS[:, :4], "labels": IDS}, None)):
        with pytest.raises((RuntimeError, TypeError)):
            embgrad.gradients(encoder_decoder(strict=True), batch, SUM, call=call)


def test_an_encoder_decoder_reports_the_length_first() -> None:
    with pytest.raises(BatchError, match="example 0 has 10 tokens, and the model takes 6 positions at most"):
        embgrad.gradients(encoder_decoder(strict=False), IDS, SUM)


def test_errors_of_an_objective_under_split_propagate() -> None:
    def fixed(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
        if len(input_ids) != 3:
            raise ValueError("three examples")
        return by_table(model, input_ids)

    class Broken(embgrad.Sum):
        def evaluate(self, output: np.ndarray, batch: Any) -> Any:
            raise KeyError("the user's own")

    with pytest.raises(KeyError, match="the user's own"):
        embgrad.gradients(model(fixed), IDS[:, :4], Broken(), split=True)


def plain(model: Any, ids: np.ndarray) -> Tensor:
    return lookup(model["E"], ids).tanh().mean(1) @ model["W"]


@pytest.mark.parametrize(
    ("call", "count", "options"),
    [(embgrad.gradients, 2, {"batch_size": 2}), (embgrad.gradients, 2, {"split": True, "at": "P"}),
        (embgrad.evaluate, 1, {"batch_size": 1}), (embgrad.memory, 1, {})],
)  # fmt: skip
def test_a_model_that_takes_no_sub_batch(call: Any, count: int, options: Any) -> None:
    def fixed(model: Any, input_ids: np.ndarray) -> Tensor:
        if len(input_ids) != 3:
            raise ValueError("three examples")
        return by_table(model, input_ids)

    with refused(
        BatchError,
        f"the model takes all 3 examples at once, and raised ValueError for {count} of them: batch_size=... and split=... need",
    ):
        call(model(fixed), IDS[:, :4], SUM, **options)


def test_errors_of_the_models_and_the_users_own_go_on() -> None:
    def broken(*inputs: Any) -> Any:
        raise ZeroDivisionError("my own")

    for call in (
        lambda: embgrad.gradients(model(broken), IDS, SUM),
        lambda: embgrad.gradients(model(plain), IDS, SUM, call=broken),
        lambda: embgrad.gradients(model(plain), IDS, broken, batch_size=2),
    ):
        with pytest.raises(ZeroDivisionError, match="my own"):
            call()


# An evaluation mode without a backward pass


def _without_backward(model: Any, input_ids: np.ndarray) -> Tensor:
    """Return the sum of the rows, by a faster path in evaluation mode that has no backward pass."""
    rows = lookup(model["E"], input_ids).sum(1)
    if model.training:
        return rows * 2.0

    def back(g: np.ndarray) -> np.ndarray:
        raise RuntimeError("this path is for inference")

    return Tensor(rows.value * 2.0, [(rows, back)])


def test_an_evaluation_mode_without_a_backward_pass_is_explained() -> None:
    model = ReferenceModel(_without_backward, {"E": np.random.default_rng(0).normal(size=(9, 2))})
    ids, objective = np.array([[1, 2, 3], [4, 5, 6]]), embgrad.Logit(1)
    for call in (embgrad.gradients, lambda *given: embgrad.attribute(*given, embgrad.methods.IntegratedGradients(2))):
        with pytest.raises(
            UnsupportedError,
            match="runs in evaluation mode without gradients, and raised RuntimeError in the pass with them: 'this path is",
        ) as error:
            call(model, ids, objective)
        assert isinstance(error.value.__cause__, RuntimeError)
    right = embgrad.gradients(model, ids, objective, training=True)
    np.testing.assert_array_equal(right.values[..., 1], 2.0)

    def training(model: Any, inputs: Any) -> Any:
        model.training = True
        return model(inputs)

    found = embgrad.attribute(model, ids, objective, "input_x_gradient", call=training)
    np.testing.assert_allclose(found.scores, 2 * model["E"].value[ids][..., 1])
    assert not model.training
    np.testing.assert_allclose(embgrad.evaluate(model, ids, objective), right.objective)


class Own(Exception):
    """An error of the user's."""


@pytest.mark.parametrize("error", [Own(), ValueError(), ZeroDivisionError(), RuntimeError("CUDA out of memory. Tried")])
def test_an_error_that_is_not_of_a_missing_backward_pass_stays(error: Exception) -> None:
    def back(g: np.ndarray) -> np.ndarray:
        raise error

    def forward(model: Any, input_ids: np.ndarray) -> Tensor:
        rows = lookup(model["E"], input_ids).sum(1)
        return Tensor(rows.value, [(rows, back)])

    with pytest.raises(type(error)):
        embgrad.gradients(ReferenceModel(forward, {"E": np.ones((9, 2))}), [[1, 2]], embgrad.Logit(1))


@pytest.mark.parametrize(
    ("refuses", "probes", "is_said"),
    [
        (lambda count: count > 6, [10, 5, 7, 6, 5], True),
        (lambda count: count > 1, [10, 5, 2, 1], True),
        (lambda count: count > 6 or count % 2 == 1, [10, 5, 2, 3, 1], False),  # a number of positions that it needs
        (lambda count: True, [10, 5, 2, 1], False),
    ],
)
def test_the_most_positions_are_found_by_halves(
    refuses: Callable[[int], bool], probes: list[int], is_said: bool
) -> None:
    given: list[dict[str, Any]] = []

    def limited(model: Any, **inputs: Any) -> Tensor:
        given.append(inputs)
        if refuses(inputs["input_ids"].shape[1]):
            raise embgrad.BatchError("no such position")
        return plain(model, inputs["input_ids"])

    types = np.array([[1, *[0] * 9]])
    batch = {"input_ids": IDS[:1], "attention_mask": types | 1, "token_type_ids": types}
    with pytest.raises(embgrad.BatchError) as caught:
        embgrad.gradients(model(limited), batch, SUM)
    assert ("positions at most" in str(caught.value)) is is_said
    # Each probe repeats the first position's.
    for inputs, probe in zip(given[1:], probes, strict=True):
        for name, value in batch.items():
            assert inputs[name].tolist() == [[value[0, 0]] * probe]

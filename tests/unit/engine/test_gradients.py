"""The call: forms of batches, options, what is said, and what is refused; on the reference backend."""

from __future__ import annotations

import json
import platform
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import embgrad
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.unit.refusals import refused

VOCAB, DIM, CLASSES = 20, 4, 3
WEIGHTS = {
    "E": np.random.default_rng(0).normal(size=(VOCAB, DIM)),
    "P": np.random.default_rng(1).normal(size=(6, DIM)),
    "W": np.random.default_rng(2).normal(size=(DIM, CLASSES)),
}
IDS = np.array([[3, 5, 7], [2, 9, 1]])
RIGHT = np.array([[1, 1, 1], [1, 1, 0]])
LABELS = [0, 2]


def model(forward: Callable[..., Any], dtype: str = "float64") -> ReferenceModel:
    return ReferenceModel(forward, {name: value.astype(dtype) for name, value in WEIGHTS.items()})


def mean(model: Any, input_ids: np.ndarray) -> Tensor:
    return lookup(model["E"], input_ids).tanh().mean(1) @ model["W"]


def masked(model: Any, input_ids: np.ndarray, attention_mask: Any = None, token_type_ids: Any = None) -> Tensor:
    mask = np.ones(input_ids.shape) if attention_mask is None else attention_mask
    weights = mask if token_type_ids is None else mask * (1 + token_type_ids)
    return (lookup(model["E"], input_ids) * Tensor(weights[..., None].astype(float))).sum(1) @ model["W"]


def time_major(model: Any, input_ids: np.ndarray) -> Tensor:
    return lookup(model["E"], input_ids.T).tanh().mean(0) @ model["W"]


def flat_time_major(model: Any, input_ids: np.ndarray) -> Tensor:
    rows = lookup(model["E"], input_ids.T.reshape(-1))
    return rows.reshape(*input_ids.T.shape, DIM).tanh().mean(0) @ model["W"]


def positional(model: Any, input_ids: np.ndarray) -> Tensor:
    positions = lookup(model["P"], np.arange(input_ids.shape[1])[None])
    return (lookup(model["E"], input_ids) + positions).tanh().mean(1) @ model["W"]


def siamese(model: Any, input_ids: np.ndarray, hypothesis: np.ndarray) -> Tensor:
    return (lookup(model["E"], input_ids).mean(1) * lookup(model["E"], hypothesis).mean(1)) @ model["W"]


def gradients(forward: Callable[..., Any] = mean, batch: Any = IDS, objective: Any = None, **options: Any) -> Any:
    return embgrad.gradients(model(forward), batch, objective or embgrad.CrossEntropy(LABELS), **options)


def expected_of_mean(ids: np.ndarray, labels: Sequence[int]) -> np.ndarray:
    """Return the closed form: softmax less one-hot, back through W, the mean and the tanh."""
    hidden = np.tanh(WEIGHTS["E"][ids])
    logits = hidden.mean(1) @ WEIGHTS["W"]
    slope = np.exp(logits) / np.exp(logits).sum(1, keepdims=True) - np.eye(CLASSES)[list(labels)]
    return np.asarray((slope @ WEIGHTS["W"].T)[:, None] / ids.shape[1] * (1 - hidden**2))


@given(
    st.integers(1, 4).flatmap(
        lambda width: st.lists(st.lists(st.integers(0, 3), min_size=width, max_size=width), min_size=1, max_size=4)
    ),
    st.sampled_from([mean, time_major, flat_time_major]),
)
def test_any_ids_in_any_arrangement(rows: list[list[int]], forward: Any) -> None:
    ids = np.array(rows)
    labels = np.arange(len(ids)) % CLASSES
    result = gradients(forward, ids, embgrad.CrossEntropy(labels))
    np.testing.assert_allclose(result.values, expected_of_mean(ids, labels), atol=1e-14)


def test_an_ambiguous_layout_is_refused() -> None:
    one_row = ReferenceModel(mean, {"E": WEIGHTS["E"][:1], "W": WEIGHTS["W"]})
    with refused(
        embgrad.errors.AmbiguousPointError, "do not show which axis of E#0 ", "holds the examples", "batch_size=1"
    ):
        embgrad.gradients(one_row, np.zeros((2, 2)), embgrad.CrossEntropy(LABELS))
    each = embgrad.gradients(one_row, np.zeros((2, 2)), embgrad.CrossEntropy(LABELS), batch_size=1)
    np.testing.assert_allclose(each.values, expected_of_mean(np.zeros((2, 2), int), LABELS), atol=1e-14)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float16", 5e-3)])
def test_single_and_half_precision(dtype: str, tolerance: float) -> None:
    result = embgrad.gradients(model(mean, dtype), IDS, embgrad.CrossEntropy(LABELS))
    assert result.values.dtype == result.activations.dtype == np.float32
    assert result.objective.dtype == np.float64
    assert result.provenance["compute_dtype"] == dtype
    np.testing.assert_allclose(result.values, expected_of_mean(IDS, LABELS), atol=tolerance)


@pytest.mark.parametrize(
    ("batch", "options", "message"),
    [
        (["a film"], {}, "raw text, and a model reads token ids: pass tokenizer="),
        (IDS, {"tokenizer": list}, "the tokenizer is the class list: expected an instance"),
        (
            {"input_ids": IDS},
            {"tokenizer": len},
            "the batch holds ids, and the tokenizer, a builtin_function_or_method, cannot name them: expected an object with "
            "convert_ids_to_tokens or id_to_token, a list of tokens, or texts as the batch. Leave the tokenizer out for ids "
            "without tokens",
        ),
        ([[1, 2], [3]], {}, "cannot be read as a rectangular array"),
        ([], {}, "the batch is empty"),
        ([[1.5, 2.0]], {}, "holds 1.5 at example 0, position 0"),
        (IDS, {"pads": "zeros"}, "pads is 'zeros': expected 'keep' or 'zero'. Did you mean 'zero'"),
        (IDS, {"pads": None}, "pads is None"),
        (IDS, {"batch_size": 0}, "batch_size is 0: expected a whole number of at least 1, or None"),
        *((IDS, {"batch_size": size}, f"batch_size is {size!r}") for size in (-1, 1.0, True, "2")),
        (IDS, {"call": "forward"}, r"call is 'forward': expected a function, call\(model, inputs\) -> outputs"),
        ([[3, VOCAB]], {}, "id 20 at example 0, position 1 is outside the table: table 'E' has 20 rows: expected"),
        ([[3, 2**40]], {}, "id 1099511627776 at example 0, position 1"),
    ],
)
def test_batches_and_options_that_are_refused(batch: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(embgrad.errors.BatchError, match=message):
        gradients(mean, batch, **options)


@pytest.mark.parametrize("name", ["training", "split", "check", "compile"])
@pytest.mark.parametrize("flag", ["no", 0, None, np.array([1, 0])])
def test_flags_are_true_or_false(name: str, flag: Any) -> None:
    with pytest.raises(embgrad.errors.BatchError, match=rf"{name} is .*: expected True or False"):
        gradients(**{name: flag})


def test_numpy_booleans_are_flags_and_calls_must_be_functions() -> None:
    np.testing.assert_array_equal(gradients(split=np.True_).values, gradients(split=True).values)
    for function in (embgrad.tables.table_gradients, embgrad.tables.parameter_gradients):
        with pytest.raises(embgrad.errors.BatchError, match="training is 'no': expected True or False"):
            function(model(mean), IDS, embgrad.Sum(), training="no")
        with pytest.raises(embgrad.errors.BatchError, match=r"call is 3: expected a function, call\(model, inputs\)"):
            function(model(mean), IDS, embgrad.Sum(), call=3)
    with pytest.raises(embgrad.errors.BatchError, match=r"call is \[\]: expected a function"):
        embgrad.points(model(mean), IDS, call=[])


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (None, "the objective is None: expected CrossEntropy, LogProbability"),
        (3, "the objective is 3"),
        ("logits", "the objective is 'logits'"),
        (embgrad.CrossEntropy, r"the objective is the class CrossEntropy: expected an instance; write CrossEntropy\("),
        (embgrad.Scalar, "the objective is the class Scalar"),
        (embgrad.CrossEntropy([0]), "label has 1 entries: expected 2, one for each example"),
        (embgrad.CrossEntropy([0, 3]), "label 3 at example 1 is out of range"),
    ],
)
def test_objectives_that_are_refused(objective: Any, message: str) -> None:
    with pytest.raises(embgrad.errors.ObjectiveError, match=message):
        embgrad.gradients(model(mean), IDS, objective)


@pytest.mark.parametrize("at", [None, 3, "", [], ["word", "word"], ["word", 3], [None], b"word", [""]])
def test_names_that_are_refused(at: Any) -> None:
    with pytest.raises(
        embgrad.errors.PointError, match="expected the name of a point, such as 'word', or several different"
    ):
        gradients(at=at)


def test_a_list_of_names_gives_a_dict_by_the_names_as_given() -> None:
    for names in (["word"], ("word", "E", "E#0", "word#0"), iter(["E", "word"])):
        results = gradients(at=names)
        for name, result in results.items():
            np.testing.assert_array_equal(result.values, gradients().values)
            assert (result.provenance["point"], result.provenance["path"]) == (name, "E#0")
    assert list(gradients(at=("word", "E", "E#0", "word#0"))) == ["word", "E", "E#0", "word#0"]


def test_points_lists_the_lookups_in_order() -> None:
    seen = embgrad.points(model(positional), IDS)
    assert [(point.name, point.roles) for point in seen] == [("P#0", ("position",)), ("E#0", ("word",))]
    assert repr(seen[1]) == "Point(name='E#0', roles=('word',), shape=(2, 3, 4))"
    assert [point.name for point in embgrad.points(model(mean), ["ab"], tokenizer=lambda text: [1, 2])] == ["E#0"]


def test_positions_that_equal_the_ids_are_not_mistaken_for_the_word_lookup() -> None:
    def one_hot(model: Any, input_ids: np.ndarray) -> Tensor:
        positions = lookup(model["P"], np.arange(input_ids.shape[1])[None])
        return (Tensor(np.eye(VOCAB)[input_ids]) @ model["E"] + positions).tanh().mean(1) @ model["W"]

    message = r"made no lookup of the batch's ids: the indices of P#0 .* equal them by chance"
    with pytest.raises(embgrad.errors.PointNotReachedError, match=message):
        gradients(one_hot, np.arange(3)[None], embgrad.Sum())


def test_distinguishing_lookups_draws_no_random_numbers() -> None:
    def dropping(model: Any, input_ids: np.ndarray) -> Tensor:
        positions = lookup(model["P"], np.arange(input_ids.shape[1])[None])
        return model.dropout(lookup(model["E"], input_ids) + positions, 0.5).tanh().mean(1) @ model["W"]

    ids = np.arange(3)[None]  # as the positions are
    built, own = model(dropping), model(dropping)
    result = embgrad.gradients(built, ids, embgrad.Sum(), training=True)
    own.training = True
    np.testing.assert_allclose(result.objective, own(ids).value.sum(1), rtol=1e-12)
    assert built.random.bit_generator.state == own.random.bit_generator.state


def test_a_model_that_fails_with_other_ids_leaves_the_word_ambiguous() -> None:
    def particular(model: Any, input_ids: np.ndarray) -> Tensor:
        if input_ids.tolist() != [[0, 1, 2]]:
            raise ValueError("not these")
        return positional(model, input_ids)

    with refused(embgrad.errors.AmbiguousPointError, "'word' fits 2 lookups, P#0 ", "raised ValueError: name one of"):
        gradients(particular, np.arange(3)[None], embgrad.Sum())


def test_another_lookup_of_as_many_examples() -> None:
    batch = {"input_ids": IDS, "hypothesis": IDS[::-1] + 1}
    results = embgrad.gradients(model(siamese), batch, embgrad.Sum(), at=["word", "E#1"])
    other = results["E#1"]
    np.testing.assert_array_equal(other.ids, IDS[::-1] + 1)
    np.testing.assert_array_equal(other.activations, WEIGHTS["E"][IDS[::-1] + 1])
    assert other.mask is other.types is other.tokens is None
    expected = WEIGHTS["E"][IDS].mean(1) * WEIGHTS["W"].sum(1) / 3
    np.testing.assert_allclose(other.values, np.repeat(expected[:, None], 3, 1))


def test_a_lookup_that_all_examples_share_by_its_path_keeps_its_own_axes() -> None:
    result = gradients(positional, at="P")
    assert result.shape == (1, 3, DIM)
    assert result.mask is result.types is result.tokens is None
    np.testing.assert_array_equal(result.ids, [[0, 1, 2]])
    np.testing.assert_allclose(result.values[0], expected_of_positional().sum(0), atol=1e-14)
    np.testing.assert_allclose(result.table().to_dense()[:3], expected_of_positional().sum(0), atol=1e-14)
    with pytest.raises(
        embgrad.errors.PointError, match=r"shape \(1, 3, 4\): expected .* by its role, such as at='position'"
    ):
        result.per_example()


@pytest.mark.parametrize("split", [False, True])
def test_a_lookup_that_all_examples_share_by_its_role_gives_each_example_its_own(split: bool) -> None:
    batch = embgrad.TokenBatch(IDS, types=np.zeros_like(IDS), tokens=[list("abc")] * 2)
    result = gradients(positional, batch, at="position", split=split)
    np.testing.assert_allclose(result.values, expected_of_positional(), atol=1e-14)
    np.testing.assert_array_equal(result.ids, [[0, 1, 2]] * 2)
    np.testing.assert_array_equal(result.activations, np.stack([WEIGHTS["P"][:3]] * 2))
    assert result.tokens == batch.tokens
    for example, table in enumerate(result.per_example()):
        np.testing.assert_allclose(table.to_dense()[:3], expected_of_positional()[example], atol=1e-14)
    np.testing.assert_allclose(result.table().to_dense()[:3], expected_of_positional().sum(0), atol=1e-14)


def test_a_lookup_that_all_examples_share_beside_others_and_in_micro_batches() -> None:
    both = gradients(positional, at=["word", "position"])
    for name in both:
        np.testing.assert_allclose(both[name].values, expected_of_positional(), atol=1e-14)
    pieces = gradients(positional, at="position", batch_size=1)
    np.testing.assert_allclose(pieces.values, expected_of_positional(), atol=1e-14)
    native = gradients(positional, objective=lambda logits: logits.column(1), at=["word", "position"])
    np.testing.assert_allclose(native["position"].values, native["word"].values, atol=1e-14)
    with pytest.raises(
        embgrad.errors.UnsupportedError, match=r"all examples share one tensor .* a Scalar objective has one"
    ):
        gradients(positional, objective=embgrad.Scalar(lambda logits: logits.column(1).sum(0)), at="position")


def expected_of_positional() -> np.ndarray:
    """Return the closed form, as `expected_of_mean`, for the sum of each row and its position."""
    hidden = np.tanh(WEIGHTS["E"][IDS] + WEIGHTS["P"][:3])
    logits = hidden.mean(1) @ WEIGHTS["W"]
    slope = np.exp(logits) / np.exp(logits).sum(1, keepdims=True) - np.eye(CLASSES)[LABELS]
    return np.asarray((slope @ WEIGHTS["W"].T)[:, None] / 3 * (1 - hidden**2))


def test_pads_of_a_point_without_positions_cannot_be_zeroed() -> None:
    def pooled(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
        rows = lookup(model["E"], input_ids) * Tensor(attention_mask[..., None].astype(float))
        return model.module("pool", lambda x: x.mean(1).tanh(), rows) @ model["W"]

    batch = embgrad.TokenBatch(IDS, RIGHT)
    assert gradients(pooled, batch, at="pool").shape == (2, DIM)
    message = (
        r"pads='zero' sets the gradient at padding to zero, and the point 'pool' has the shape \(2, 4\): expected "
        r"\(example, position, …\), \(2, 3\) first; omit pads"
    )
    with pytest.raises(embgrad.errors.UnsupportedError, match=message):
        gradients(pooled, batch, at="pool", pads="zero")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_native_objective_that_is_not_finite(value: float) -> None:
    with refused(embgrad.errors.ObjectiveError, f"the objective is {value} for example 1: expected finite numbers"):
        gradients(mean, objective=lambda logits: logits.column(0) + Tensor(np.array([0.0, value])))
    with pytest.raises(embgrad.errors.ObjectiveError, match=f"the objective is {value}: expected"):
        gradients(mean, objective=embgrad.Scalar(lambda logits: logits.column(0).sum(0) + Tensor(value)))


@pytest.mark.parametrize(
    ("function", "options"),
    [(embgrad.gradients, {}), (embgrad.gradients, {"batch_size": 1}), (embgrad.tables.parameter_gradients, {}),
        (embgrad.tables.table_gradients, {}), (embgrad.metrics.padding_report, {})],
)  # fmt: skip
def test_the_warning_of_an_unused_mask_points_at_the_call(function: Any, options: dict[str, Any]) -> None:
    ids = np.where(RIGHT == 1, IDS, 0)
    with pytest.warns(embgrad.EmbgradWarning, match="cannot take the mask, so that it reads padding as text") as caught:
        result = function(model(mean), embgrad.TokenBatch(ids, RIGHT), embgrad.CrossEntropy(LABELS), **options)
    assert {warning.filename for warning in caught} == {__file__}
    if function is embgrad.gradients:
        assert result.provenance["unused"] == ["mask"]


def test_other_unused_inputs_are_a_warning() -> None:
    batch = {"input_ids": IDS, "token_type_ids": [[0, 1, 1]] * 2, "position_ids": IDS}
    with pytest.warns(
        embgrad.EmbgradWarning, match=r"the types, so that .* and the input 'position_ids'; .*call=lambda"
    ):
        result = gradients(mean, batch)
    assert result.provenance["unused"] == ["types", "position_ids"]


@pytest.mark.parametrize("name", ["mask", "types"])
def test_an_unused_input_with_a_reserved_name_is_a_warning(name: str) -> None:
    with pytest.warns(embgrad.EmbgradWarning, match=f"cannot take the input '{name}'"):
        gradients(mean, {"input_ids": IDS, name: RIGHT})


@pytest.mark.parametrize("batch", [embgrad.TokenBatch(IDS, np.ones_like(IDS), np.zeros_like(IDS)), IDS])
def test_unused_inputs_without_effect_are_no_warning(batch: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradients(mean, batch)


def premise_and_hypothesis(
    model: Any, input_ids: np.ndarray, hypothesis_ids: np.ndarray, hypothesis_mask: Any
) -> Tensor:
    premise = lookup(model["E"], input_ids).mean(1)
    hypothesis = lookup(model["E"], hypothesis_ids) * Tensor(hypothesis_mask[..., None].astype(float))
    return (premise * hypothesis.sum(1)) @ model["W"]


@pytest.mark.parametrize(
    ("ids_name", "mask_name"),
    [("hypothesis_ids", "hypothesis_mask"), ("hypothesis_ids", "hypothesis_attention_mask"),
        ("decoder_input_ids", "decoder_attention_mask"), ("input_ids_b", "attention_mask_b")],
)  # fmt: skip
def test_a_second_lookup_has_the_mask_of_its_ids(ids_name: str, mask_name: str) -> None:
    def forward(model: Any, input_ids: np.ndarray, **further: np.ndarray) -> Tensor:
        return premise_and_hypothesis(model, input_ids, further[ids_name], further[mask_name])

    more, mask = np.array([[4, 0], [8, 6]]), np.array([[1, 0], [1, 1]])
    batch = {"input_ids": IDS, ids_name: more, mask_name: mask}
    results = gradients(forward, batch, at=["E#0", "E#1"])
    assert results["E#1"].ids.tolist() == more.tolist()
    assert results["E#1"].mask.tolist() == mask.tolist()
    assert results["E#0"].mask is None
    assert gradients(forward, batch, at="E#1", batch_size=1).mask.tolist() == mask.tolist()


def test_padding_of_a_second_lookup_is_reported_or_zeroed() -> None:
    more, mask = np.array([[4, 0], [8, 6]]), np.array([[1, 0], [1, 1]])

    def forward(model: Any, input_ids: np.ndarray, hypothesis_ids: np.ndarray, hypothesis_mask: Any) -> Tensor:
        return premise_and_hypothesis(model, input_ids, hypothesis_ids, np.ones_like(hypothesis_mask))

    batch = {"input_ids": IDS, "hypothesis_ids": more, "hypothesis_mask": mask}
    kept = gradients(forward, batch, at="E#1")
    assert kept.pad_leak == np.abs(kept.values[0, 1]).max() > 0
    zeroed = gradients(forward, batch, at="E#1", pads="zero")
    assert not zeroed.values[0, 1].any()
    np.testing.assert_array_equal(zeroed.values[mask == 1], kept.values[mask == 1])
    for other in ({"hypothesis_mask": mask * -1e4}, {"hypothesis_mask": mask[:, :1]}):  # which is no mask of these ids
        assert gradients(forward, {**batch, **other}, at="E#1").mask is None


class Holder:
    """An object that holds a model and a tokenizer, such as a pipeline."""

    def __init__(self, model: Any, **others: Any) -> None:
        self.model = model
        vars(self).update(others)


def letters(text: str) -> list[int]:
    return [ord(letter) - 96 for letter in text]


def test_an_object_that_holds_a_model_and_a_tokenizer() -> None:
    held = model(masked)
    holder = Holder(held, tokenizer=letters)
    objective = embgrad.CrossEntropy(LABELS)
    result = embgrad.gradients(holder, ["cab", "b"], objective)
    plain = embgrad.gradients(held, ["cab", "b"], objective, tokenizer=letters)
    np.testing.assert_array_equal(result.values, plain.values)
    other = embgrad.gradients(holder, ["cab", "b"], objective, tokenizer=lambda text: letters(text)[::-1])
    assert other.ids.tolist() == [[2, 1, 3], [2, 0, 0]]  # what is given goes first
    np.testing.assert_array_equal(embgrad.gradients(holder, IDS, objective).ids, IDS)
    with pytest.raises(embgrad.errors.BackendError, match=r"takes a model of type .*Holder"):
        embgrad.gradients(Holder(3), IDS, objective)


class Vocabulary:
    """A tokenizer that can only name ids."""

    def id_to_token(self, number: int) -> str | None:
        return chr(96 + number) if 0 < number < 10 else None


def test_a_tokenizer_beside_ids_names_the_tokens() -> None:
    for batch in (IDS, {"input_ids": IDS}, embgrad.TokenBatch(IDS)):
        result = gradients(mean, batch, tokenizer=Vocabulary())
        assert result.tokens == (("c", "e", "g"), ("b", "i", "a"))
        np.testing.assert_array_equal(result.values, gradients(mean, batch).values)
    named = embgrad.TokenBatch(IDS, tokens=[["x", "y", "z"]] * 2)
    assert gradients(mean, named, tokenizer=Vocabulary()).tokens == named.tokens
    message = "the tokenizer, a Vocabulary, has no token for the id 11: expected the tokenizer that made the ids"
    with pytest.raises(embgrad.errors.BatchError, match=message):
        gradients(mean, [[3, 11]], embgrad.Sum(), tokenizer=Vocabulary())


def test_provenance() -> None:
    batch = embgrad.TokenBatch(IDS, truncated=[0, 3])
    objective = embgrad.CrossEntropy(LABELS)
    provenance = gradients(mean, batch, objective).provenance
    assert provenance == {
        "embgrad": embgrad.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "backend": "reference",
        "versions": {"numpy": np.__version__},
        "model": "embgrad.testing.tensors.ReferenceModel",
        "point": "word",
        "path": "E#0",
        "objective": {"class": "CrossEntropy", "labels": [0, 2], "of": "logits"},
        "compute_dtype": "float64",
        "training": False,
        "pads": "keep",
        "split": False,
        "unused": [],
        "truncated": [0, 3],
        "convention": "huggingface",
        "mask_is_bool": False,
        "extras": [],
        "output_shape": [2, 3],
        "matrices": 3,
    }
    assert json.loads(json.dumps(provenance)) == provenance
    parts = [model(mean), model(mean)]
    both = embgrad.gradients(parts, IDS, objective, call=lambda parts, inputs: parts[1](inputs))
    assert both.provenance["model"] == " + ".join(["embgrad.testing.tensors.ReferenceModel"] * 2)
    assert both.provenance["path"] == "1.E#0"


def test_provenance_of_native_objectives() -> None:
    def positive(logits: Tensor) -> Tensor:
        return logits.column(0)

    class Column:
        def __call__(self, logits: Tensor) -> Tensor:
            return logits.column(0)

    for objective, name in ((positive, "positive"), (Column(), "Column")):
        described = gradients(objective=objective).provenance["objective"]
        assert described["class"] == "callable"
        assert described["name"].endswith(name)


def test_the_result_is_not_the_batchs_memory() -> None:
    batch = embgrad.TokenBatch(IDS, np.ones_like(IDS), np.zeros_like(IDS), words=np.zeros_like(IDS))
    result = gradients(mean, batch)
    for name in ("ids", "mask", "types", "words_of", "values", "activations", "objective"):
        getattr(result, name)[...] = 1
    np.testing.assert_array_equal(batch.ids, IDS)
    assert not batch.words.any()

"""What `attribute` refuses, and what it says."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
import tokenizers

import embgrad
from embgrad.errors import BatchError, ObjectiveError, UnsupportedError
from embgrad.inputs.special_tokens import id_of_special, special_ids
from embgrad.testing.reference import ReferenceModel, lookup
from tests.unit.attribution.models import BATCH, IDS, Tokenizer, curved

LOGIT = embgrad.Logit(0)
METHODS = {
    "steps is 0: expected a whole number of at least 1": lambda: embgrad.methods.IntegratedGradients(0),
    "steps is 2.5: expected a whole number of at least 1": lambda: embgrad.methods.SequentialIntegratedGradients(2.5),
    "keep_first is 'no': expected True or False": lambda: embgrad.methods.IntegratedGradients(keep_first="no"),
    "rule is 'gauss': expected one of 'gausslegendre'": lambda: embgrad.methods.IntegratedGradients(rule="gauss"),
    "tolerance is -1: expected a finite number of at least 0": lambda: embgrad.methods.IntegratedGradients(
        tolerance=-1
    ),
    "baseline is 'zeros': expected 'zero', 'pad', 'mask', 'mean', an id, or an array at the point. Did you mean 'zero'": (
        lambda: embgrad.methods.IntegratedGradients(baseline="zeros")
    ),
    "baseline is -1: expected an id, which is not negative": lambda: embgrad.methods.Lime(baseline=-1),
    "replacement is None: expected 'zero'": lambda: embgrad.methods.Occlusion(None),
    "baseline is [nan": lambda: embgrad.methods.KernelShap(baseline=np.full(3, np.nan)),
    "baselines is 'zero': expected an array of shape (n, position, dim)": lambda: embgrad.methods.GradientShap("zero"),
    "baselines is 5: expected an array of shape (n, position, dim)": lambda: embgrad.methods.GradientShap(5),
    "baselines is [[0.0": lambda: embgrad.methods.GradientShap(np.zeros((4, 3))),
    "keep_special is 'no'": lambda: embgrad.methods.Occlusion(keep_special="no"),
    "kernel_width is 0: expected a positive number": lambda: embgrad.methods.Lime(kernel_width=0),
    "sigma is nan: expected a finite number of at least 0": lambda: embgrad.methods.SmoothGrad(sigma=float("nan")),
    "reduce is 'median': expected one of 'mean', 'square', 'variance'": lambda: embgrad.methods.SmoothGrad(
        reduce="median"
    ),
    "of is Occlusion(": lambda: embgrad.methods.SmoothGrad(of=embgrad.methods.Occlusion()),
    "samples is 3: expected a whole number of at least 4": lambda: embgrad.methods.KernelShap(3),
    "steps is 1: expected a whole number of at least 2": lambda: embgrad.methods.DiscretizedIntegratedGradients(1),
    "strategy is 'greed': expected one of 'greedy', 'maxcount'. Did you mean": (
        lambda: embgrad.methods.DiscretizedIntegratedGradients(strategy="greed")
    ),
    "baseline is no row of the table: expected 'pad', 'mask'": (
        lambda: embgrad.methods.DiscretizedIntegratedGradients(baseline="zero")
    ),
    "seed is -1: expected a whole number of at least 0": lambda: embgrad.methods.Lime(seed=-1),
}


@pytest.mark.parametrize("message", METHODS)
def test_the_arguments_of_a_method_are_checked_when_it_is_made(message: str) -> None:
    with pytest.raises(embgrad.EmbgradError, match=re.escape(message)):
        METHODS[message]()


@pytest.mark.parametrize("name", [name for name in dir(embgrad.methods) if name[0].isupper()])
def test_every_argument_of_every_method_is_checked_when_it_is_made(name: str) -> None:
    method = getattr(embgrad.methods, name)
    needed = {"baselines": [0]} if method is embgrad.methods.GradientShap else {}
    for entry in dataclasses.fields(method):
        with pytest.raises(embgrad.EmbgradError, match=f"^{entry.name} is 'no': expected"):
            method(**{**needed, entry.name: "no"})


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("integrated_gradient", "Did you mean 'integrated_gradients'"),
        (embgrad.methods.Saliency, "the method is the class Saliency: expected an instance; write Saliency(...)"),
        ([], "method is []: expected one method at least"),
        ({1: "saliency"}, "method names a method 1: expected names that are text"),
        (3, "method is 3: expected a method, such as embgrad.methods.IntegratedGradients(), or one of 'saliency'"),
    ],
)
def test_an_unknown_method_is_refused(method: Any, message: str) -> None:
    with pytest.raises(embgrad.EmbgradError, match=re.escape(message)):
        embgrad.attribute(curved(), BATCH, LOGIT, method)


@pytest.mark.parametrize(
    ("method", "error", "message"),
    [
        (embgrad.methods.IntegratedGradients(baseline=np.zeros(5)), embgrad.EmbgradError,
            "baseline has the shape (5,)"),
        (embgrad.methods.Occlusion("mask"), BatchError,
            "the id of the mask is not known, which 'mask' puts in place of"),
        (embgrad.methods.Occlusion(99), BatchError,
            "id 99 at example 0, position 0 is outside the table"),
        (embgrad.methods.Occlusion("zero", keep_special=True), BatchError,
            "keep_special=True, and neither the batch's"),
    ],
)  # fmt: skip
def test_a_baseline_that_does_not_fit_is_refused(method: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        embgrad.attribute(curved(), BATCH, LOGIT, method)


def test_the_id_of_the_padding_is_read_from_the_batch() -> None:
    ids = np.where(BATCH.mask, IDS, 0)
    batch = embgrad.TokenBatch(ids, BATCH.mask)
    by_batch = embgrad.attribute(curved(), batch, LOGIT, embgrad.methods.Occlusion("pad"))
    by_tokenizer = embgrad.attribute(curved(), batch, LOGIT, embgrad.methods.Occlusion("pad"), tokenizer=Tokenizer())
    np.testing.assert_array_equal(by_batch.scores, by_tokenizer.scores)
    with pytest.raises(BatchError, match="the id of the padding is not known"):
        embgrad.attribute(curved(), [[1, 2]], LOGIT, embgrad.methods.Occlusion("pad"))


def test_a_tokenizer_of_the_package_tokenizers_knows_its_special_tokens() -> None:
    vocabulary = {"[UNK]": 1, "[PAD]": 0, "[MASK]": 11, "[CLS]": 2, "[SEP]": 5, "a": 7}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[PAD]"))
    tokenizer.add_special_tokens(["[CLS]", "[SEP]", "[MASK]", "[PAD]"])
    for remove in ("mask", "pad"):
        method = embgrad.methods.Occlusion(remove, keep_special=True)
        both = [
            embgrad.attribute(curved(), [[2, 7, 7, 5]], LOGIT, method, tokenizer=known)
            for known in (tokenizer, Tokenizer())
        ]
        np.testing.assert_array_equal(both[0].scores, both[1].scores)
    tokenizer.add_special_tokens(["[UNK]"])
    assert special_ids(tokenizer) == [0, 2, 5, 11]
    padded = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="a"))
    padded.enable_padding(pad_id=9)
    assert id_of_special(padded, "pad") == 9


def typed(model: Any, input_ids: np.ndarray, token_type_ids: np.ndarray) -> Any:
    return (lookup(model["E"], input_ids) + lookup(model["T"], token_type_ids)).sum(1) @ model["W"]


def test_an_id_is_no_baseline_of_another_lookup_than_that_of_the_ids() -> None:
    random = np.random.default_rng(0)
    weights = {"E": random.normal(size=(12, 3)), "T": random.normal(size=(2, 3)), "W": random.normal(size=(3, 2))}
    model = ReferenceModel(typed, weights)
    batch = embgrad.TokenBatch(IDS, types=[[0, 0, 1, 1], [0, 1, 1, 1]])
    with pytest.raises(UnsupportedError, match="the lookup at 'T' does not read the batch's ids, so that 1 is no"):
        embgrad.attribute(model, batch, LOGIT, embgrad.methods.IntegratedGradients(3, baseline=1), at="T")
    found = embgrad.attribute(model, batch, LOGIT, embgrad.methods.IntegratedGradients(3), at="T")
    np.testing.assert_allclose(found.scores, weights["T"][batch.types] @ weights["W"][:, 0], rtol=1e-12)


def test_a_point_without_positions_is_refused() -> None:
    model = curved()

    def pooling(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Any:
        return model.module("pool", lambda rows: rows.sum(1), lookup(model["E"], input_ids)) @ model["W"]

    pooled = ReferenceModel(
        pooling, {name: tensor.value for name, tensor in model.parameters.items()}, modules=["pool"]
    )
    with pytest.raises(UnsupportedError, match=re.escape("the point 'pool' has the shape (2, 3): expected (example")):
        embgrad.attribute(pooled, IDS, LOGIT, "saliency", at="pool")


def test_paths_along_rows_need_the_table_of_the_ids() -> None:
    method = embgrad.methods.DiscretizedIntegratedGradients(3, baseline=1)
    with pytest.raises(UnsupportedError, match="the point 'block' has no table of the batch's ids, along whose"):
        embgrad.attribute(curved(), BATCH, LOGIT, method, at="block")
    with pytest.raises(BatchError, match="baseline is the id 99: expected a row of the table of 12"):
        embgrad.attribute(curved(), BATCH, LOGIT, embgrad.methods.DiscretizedIntegratedGradients(baseline=99))


def test_the_points_of_a_decoder_are_refused() -> None:
    def translating(model: Any, input_ids: np.ndarray, decoder_input_ids: np.ndarray) -> Any:
        rows = lookup(model["E"], input_ids).sum(1) + lookup(model["E"], decoder_input_ids).sum(1)
        return rows.tanh() @ model["W"]

    random = np.random.default_rng(0)
    model = ReferenceModel(translating, {"E": random.normal(size=(12, 3)), "W": random.normal(size=(3, 2))})
    batch = embgrad.TokenBatch(IDS, extras={"decoder_input_ids": np.array([[0, 5, 6, 8], [0, 4, 3, 7]])})
    assert embgrad.attribute(model, batch, LOGIT, embgrad.methods.Occlusion("zero")).scores.all()
    with pytest.raises(UnsupportedError, match="the point 'E#1' is of the decoder's positions, and an attribution is"):
        embgrad.attribute(model, batch, LOGIT, "saliency", at="E#1")


def test_values_that_are_no_rows_have_no_paths_along_rows() -> None:
    method = embgrad.methods.DiscretizedIntegratedGradients(3, baseline=1)
    with pytest.raises(UnsupportedError, match="the values at 'word' were changed, and Discretized"):
        embgrad.metrics.sensitivity(curved(), BATCH, LOGIT, method)


def test_an_objective_of_your_own_with_a_value_for_each_example_has_to_say_how_it_is_cut() -> None:
    class Own(embgrad.Objective):
        def __init__(self, labels: Any) -> None:
            super().__init__()
            self.labels = np.array(labels)

        def _rows(self, rows: Any) -> Any:
            columns = self.labels[rows.examples]
            cotangent = np.zeros_like(rows.values)
            cotangent[np.arange(len(columns)), columns] = 1
            return rows.values[np.arange(len(columns)), columns], cotangent

    with pytest.raises(ObjectiveError, match="Own has the attribute 'labels' with 2 entries, as many as the batch has"):
        embgrad.gradients(curved(), BATCH, Own([0, 1]), batch_size=1)

    class Cut(Own):
        def take(self, examples: Any, count: int) -> Any:
            return Cut(self.labels[examples])

    cut = embgrad.gradients(curved(), BATCH, Cut([0, 1]), batch_size=1)
    np.testing.assert_array_equal(cut.values, embgrad.gradients(curved(), BATCH, embgrad.Logit([0, 1])).values)


def test_an_objective_of_the_whole_batch_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="a Scalar objective reduces over the batch"):
        embgrad.attribute(curved(), BATCH, embgrad.Scalar(lambda output: output.sum()), "saliency")


def test_an_objective_that_is_not_finite_on_the_path_is_named() -> None:
    class Logarithm(embgrad.Objective):
        def _rows(self, rows: Any) -> Any:
            with np.errstate(all="ignore"):
                return np.log(np.abs(rows.values[:, 0])), np.zeros_like(rows.values)

    with pytest.raises(ObjectiveError, match="at values that the method puts in place of those at 'word', for"):
        embgrad.attribute(curved(), BATCH, Logarithm(), embgrad.methods.IntegratedGradients(3, baseline="zero"))

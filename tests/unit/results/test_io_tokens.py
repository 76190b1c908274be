"""Attributions of output tokens in files: restored bit for bit, and refused where they were changed by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy

import embgrad
from embgrad.comparison.golden import Golden
from embgrad.results.token_attribution import TokenAttribution
from tests.unit.refusals import refused
from tests.unit.results.attributed import attribution_of, byte_level, encoder_decoder, token_attribution_of
from tests.unit.results.searched import search_of
from tests.unit.stored import expect_change_refused, expect_restored

BATCH = embgrad.TokenBatch([[5, 6, 7], [8, 9, 0]], [[1, 1, 1], [1, 1, 0]], tokens=[list("abc"), ["d", "e", "[PAD]"]])
ATTRIBUTION = token_attribution_of(BATCH, [[1, 2], [1]], np.arange(12.0).reshape(2, 2, 3))
OF_OUTPUTS = ("outputs", "output_ids", "contrast_ids")
TEXT = embgrad.encode(["a 🙂 a"], byte_level())


def everything() -> TokenAttribution:
    """Return an attribution with every optional field."""
    return encoder_decoder(
        contrast_ids=np.array([[3, 4, 5]]),
        baseline_objective=np.array([[0.5, 0.25, np.nan]]),
        delta=np.array([[1e-9, 0.0, -1e-9]]),
        mask=np.array([[1, 1, 1, 0]]),
        types=np.zeros((1, 4), np.int64),
        words_of=np.array([[0, 0, 1, -1]]),
        decoder_mask=np.array([[1, 1, 1, 0]]),
        texts=("translate this",),
        offsets=np.array([[(0, 5), (5, 9), (10, 14), (-1, -1)]]),
        parts=np.array([[0, 0, 0, -1]]),
    )


def of_spans() -> TokenAttribution:
    """Return an attribution of spans, with contrasts of several tokens."""
    return replace(
        token_attribution_of(BATCH, [[1, 2], [1]], 1.0),
        outputs=np.array([[[1, 2], [2, -1]], [[1, -1], [-1, -1]]]),
        output_ids=np.array([[[6, 7], [7, -1]], [[9, -1], [-1, -1]]]),
        output_tokens=((("b", "c"), ("c",)), (("e",),)),
        contrast_ids=np.array([[[1, 2, 3], [4, -1, -1]], [[5, 6, -1], [-1, -1, -1]]]),
        contrast_scores=np.arange(12.0).reshape(2, 2, 3),
    )


@pytest.mark.parametrize(
    "attribution",
    [ATTRIBUTION, everything(), token_attribution_of(TEXT, [[2, 3]], 1.0), encoder_decoder(tokens=None), of_spans()],
)
def test_an_attribution_is_restored_bit_for_bit(tmp_path: Path, attribution: TokenAttribution) -> None:
    path = tmp_path / "t.safetensors"
    attribution.save(path)
    expect_restored(attribution, embgrad.load(path))
    embgrad.save(attribution, path)
    expect_restored(attribution, embgrad.load(path))
    with safetensors.safe_open(str(path), "numpy") as file:
        assert json.loads(file.metadata()["embgrad"])["format"] == 1


def test_results_of_all_classes_are_restored_by_name(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    results = {"a.b": ATTRIBUTION, "a": attribution_of(BATCH), "s": search_of([["a"]], [["b"]])}
    embgrad.save(results, path)
    loaded = embgrad.load(path)
    assert type(loaded) is dict
    assert list(loaded) == [*results]
    for name, one in results.items():
        expect_restored(one, loaded[name])


def test_what_compares_results_refuses_them(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    ATTRIBUTION.save(path)
    expected = "is of type TokenAttribution: expected a result of embgrad.gradients or embgrad.attribute"
    for value in (ATTRIBUTION, path, str(path)):
        with refused(embgrad.EmbgradError, f"a {expected}"):
            embgrad.compare(value, value)
    search, of_search = search_of([["a"]], [["b"]]), expected.replace("TokenAttribution", "Search")
    with refused(embgrad.EmbgradError, f"a {of_search}"):
        embgrad.compare(search, search)
    with refused(embgrad.EmbgradError, f"results {expected}"):
        Golden(tmp_path / "golden.safetensors").check(ATTRIBUTION)
    embgrad.save({"t": ATTRIBUTION}, path)
    with refused(embgrad.EmbgradError, f"a['t'] {expected}"):
        embgrad.compare(path, path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays, entry: arrays.pop("outputs"), "lacks the arrays ['outputs']"),
        (lambda arrays, entry: entry.pop("output_tokens"), "lacks the fields ['output_tokens']"),
        (lambda arrays, entry: arrays.update(ids=np.arange(4)), "holds ids of shape (4,): expected (example, position)"),
        (lambda arrays, entry: arrays.pop("decoder_ids"), "holds a part of a decoder alone"),
        (lambda arrays, entry: [arrays.pop(name) for name in ("decoder_ids", "decoder_scores")], "part of a decoder alone"),
        (lambda arrays, entry: arrays.update(decoder_ids=np.arange(4)), "of shape (4,): expected (1, decoder_position)"),
        (lambda arrays, entry: arrays.update(decoder_ids=np.ones((2, 4), int)), "decoder_ids of shape (2, 4): expected (1,"),
        (lambda arrays, entry: arrays.update(decoder_ids=np.ones((1, 0), int)), "of shape (1, 0): expected (example, decoder_po"),
        (lambda arrays, entry: arrays.update(outputs=np.array([[1, 2, 3]] * 2)), "holds outputs of shape (2, 3): expected"),
        (lambda arrays, entry: arrays.update(outputs=np.zeros((1, 0), int)), "holds outputs of shape (1, 0): expected"),
        (lambda arrays, entry: arrays.update(decoder_ids=np.full((1, 4), -1)), "holds -1 in decoder_ids"),
        (lambda arrays, entry: arrays.update(decoder_mask=np.full((1, 4), 2)), "holds 2 in decoder_mask"),
        (lambda arrays, entry: entry.update(decoder_tokens=[["a"]]), "holds tokens that are not one for each"),
        (lambda arrays, entry: arrays.update(outputs=np.array([1, 2])), "holds outputs of shape (2,): expected"),
        (lambda arrays, entry: arrays.update(outputs=np.array([[1, 2, 4]])), "holds outputs that are not positions below 4"),
        (
            lambda arrays, entry: arrays.update(dict.fromkeys(OF_OUTPUTS, np.array([[1, -1, 2]]))),
            "with -1 after an example's last",
        ),
        (lambda arrays, entry: arrays.update(outputs=np.array([[1, 2, -2]])), "holds -2 in outputs"),
        (lambda arrays, entry: arrays.update(output_ids=np.array([[1, 2, -1]])), "holds output_ids that are not -1 where"),
        (lambda arrays, entry: arrays.update(contrast_ids=np.array([[1]])), "holds contrast_ids of shape (1, 1): expected"),
        (lambda arrays, entry: arrays.update(delta=np.zeros((1, 2))), "holds delta of shape (1, 2): expected (1, 3)"),
        (lambda arrays, entry: arrays.update(scores=np.zeros((1, 3, 5))), "holds scores of shape (1, 3, 5): expected (1, 3, 4)"),
        (lambda arrays, entry: arrays.update(decoder_scores=np.zeros((1, 2, 4))), "holds decoder_scores of shape (1, 2, 4)"),
        (lambda arrays, entry: entry.update(output_tokens=[["a"]]), "holds output tokens that are not one for each output"),
        (lambda arrays, entry: entry.update(output_tokens=["a"]), "holds output tokens that are not one for each output"),
        (lambda arrays, entry: entry.update(output_tokens=[["a", 3, "b"]]), "holds the output token 3: expected text"),
        (lambda arrays, entry: entry["provenance"].pop("method"), "holds None as provenance['method']"),
    ],
)  # fmt: skip
def test_a_file_changed_by_hand_is_refused(change: Any, message: str) -> None:
    expect_change_refused(everything(), change, message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays, entry: arrays.update(outputs=np.ones((2, 2, 2, 1), int), output_ids=np.ones((2, 2, 2, 1), int)),
            "than three"),
        (lambda arrays, entry: arrays.update(contrast_ids=np.ones((2, 2, 3, 1), int)),
            "holds outputs of more than three axes"),
        (lambda arrays, entry: arrays.update(output_ids=arrays["outputs"][:, :, :1]),
            "holds output_ids of shape (2, 2, 1): expected"),
        (lambda arrays, entry: arrays.update(output_ids=arrays["output_ids"][:, :, ::-1]),
            "holds output_ids that are not -1"),
        (lambda arrays, entry: arrays.update(output_ids=np.where([True, False], arrays["output_ids"], -1)),
            "holds output_ids that are not -1"),
        (lambda arrays, entry: arrays.update(contrast_ids=np.ones((2, 2, 3), int)),
            "holds contrast_ids that are not -1 where"),
        (
            lambda arrays, entry: arrays.update(
                contrast_ids=np.where(arrays["contrast_ids"] == 2, -1, arrays["contrast_ids"])
            ),
            "with -1 after an example's last",
        ),
        (
            lambda arrays, entry: arrays.update(
                {name: arrays[name][::-1] for name in OF_OUTPUTS} | {"outputs": arrays["outputs"] + 1}
            ),
            "holds output_ids that are not -1",
        ),
        (lambda arrays, entry: arrays.update(contrast_scores=np.ones((2, 2, 2))),
            "holds contrast_scores that are not one for each"),
        (lambda arrays, entry: arrays.pop("contrast_ids"),
            "holds contrast_scores that are not one for each of contrast_ids"),
        (lambda arrays, entry: entry.update(output_tokens=[["b", "c"], ["e"]]),
            "holds output tokens that are not a list for each"),
        (lambda arrays, entry: entry.update(output_tokens=[[["b"], ["c"]], [["e"]]]),
            "output tokens that are not a list for each"),
        (lambda arrays, entry: entry.update(output_tokens=[[["b", 3], ["c"]], [["e"]]]),
            "holds the output token 3: expected text"),
        (lambda arrays, entry: entry.update(output_tokens=[[["b", "c"]], [["e"]]]),
            "holds output tokens that are not one for each"),
    ],
)  # fmt: skip
def test_spans_changed_by_hand_are_refused(change: Any, message: str) -> None:
    expect_change_refused(of_spans(), change, message)

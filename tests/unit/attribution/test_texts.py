"""Attributions of texts: `attribute` hands on the texts and the tokens' offsets in them, whatever the method."""

from __future__ import annotations

import numpy as np
import pytest

import embgrad
from tests.unit.attribution.models import curved
from tests.unit.inputs.test_offsets import wordpiece

TEXTS = ["The  films.", ("a plot", "Zürich")]
LOGIT = embgrad.Logit(0)


@pytest.mark.parametrize(
    "method",
    ["saliency", embgrad.methods.IntegratedGradients(20), embgrad.methods.Occlusion(0),
        embgrad.methods.Lime(8, baseline=0)],
)  # fmt: skip
def test_an_attribution_has_the_texts_and_offsets_of_its_batch(method: embgrad.attribution.Method | str) -> None:
    batch = embgrad.encode(TEXTS, wordpiece())
    found = embgrad.attribute(curved(), TEXTS, LOGIT, method, tokenizer=wordpiece(), batch_size=1)
    assert found.texts == batch.texts
    np.testing.assert_array_equal(found.offsets, batch.offsets)
    np.testing.assert_array_equal(found.parts, batch.parts)
    assert found.offsets is not None
    assert found.offsets.flags.writeable  # a copy of the caller's own
    spans = found.spans()[0]
    assert [span.text for span in spans] == ["The", "  ", "film", "s", "."]
    assert [span.score for span in spans if span.positions] == found.scores[0, 1:5].tolist()


def test_a_pair_is_shown_as_it_was_written() -> None:
    found = embgrad.attribute(curved(), TEXTS, LOGIT, ["saliency", "input_x_gradient"], tokenizer=wordpiece())
    for attribution in found.values():
        assert [(span.text, span.part) for span in attribution.spans()[1] if span.positions] == [
            ("a", 0),
            ("plot", 0),
            ("Zürich", 1),
        ]
    assert found.to_html(1).count("Zürich") == 2


def test_ids_have_no_texts() -> None:
    found = embgrad.attribute(curved(), [[4, 5]], LOGIT, "saliency", tokenizer=wordpiece())
    assert (found.texts, found.offsets, found.parts) == (None, None, None)
    assert [word.text for word in found.words()[0]] == ["a", "film"]

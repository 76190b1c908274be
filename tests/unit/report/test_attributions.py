"""Pages of attributions: methods side by side, each on its own scale, coloured by sign."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.cli.result_lines import result_lines
from embgrad.errors import EmbgradError
from embgrad.report.page import render_page
from embgrad.report.sentences import sentences
from tests.unit.attribution.models import IDS, MASK, curved
from tests.unit.results.attributed import attribution_of

TOKENS = [["a", "b", "b", "c"], ["[CLS]", "d", "##e", "f"]]
BATCH = embgrad.TokenBatch(IDS, MASK, tokens=TOKENS)
METHODS: dict[str, Any] = {
    "gradient": "saliency",
    "product": "input_x_gradient",
    "removal": embgrad.methods.Occlusion(0),
}


@pytest.fixture(scope="module")
def attributions() -> embgrad.results.Attributions:
    return embgrad.attribute(curved(), BATCH, embgrad.Logit(0), METHODS)


def test_each_method_has_a_panel_on_its_own_scale(attributions: embgrad.results.Attributions) -> None:
    (kind, panels), *others = sentences(attributions, {})[0][0].rows.items()
    assert (kind, [panel.label for panel in panels], others) == ("contribution", list(METHODS), [])
    for panel, attribution in zip(panels, attributions.values(), strict=True):
        real = attribution.scores[0, :3]  # the last position is padding
        assert panel.line is not None
        assert panel.line.largest == np.abs(real).max()
        assert panel.line.signed == (panel.label != "gradient")
        assert [piece.score for piece in panel.line.pieces] == real.tolist()
        for piece, score in zip(panel.line.pieces, real, strict=True):
            assert f" · contribution {score:.4g}" in piece.title


def test_results_of_one_method_share_a_scale() -> None:
    small = embgrad.attribute(curved(), BATCH, embgrad.Logit(0), "input_x_gradient")
    large = embgrad.attribute(curved(), BATCH, embgrad.Logit(1), "input_x_gradient")
    panels = sentences({"a": small, "b": large}, {})[0][1].rows["contribution"]
    scales = {panel.line.largest for panel in panels if panel.line is not None}
    assert scales == {max(np.abs(each.scores[1]).max() for each in (small, large))}


def test_only_attributions_by_one_method_are_compared(attributions: embgrad.results.Attributions) -> None:
    page = render_page(attributions)
    assert "Findings" not in page
    assert page.count("<fieldset>") == 2 * len(METHODS)
    again = embgrad.attribute(curved(), BATCH, embgrad.Logit(0), "saliency")
    compared = render_page({"one": attributions["gradient"], "other": again, "removal": attributions["removal"]})
    assert "other against one" in compared
    assert "removal against one" not in compared


@pytest.mark.parametrize("located", [True, False])
def test_unknown_words_and_masks_in_the_text_count_for_the_scale(located: bool, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    tokens = [["[CLS]", "a", "[UNK]", "[MASK]", "[SEP]"]]
    batch = embgrad.TokenBatch([[0, 1, 2, 3, 4]], tokens=tokens)
    if located:
        offsets = [[(-1, -1), (0, 1), (2, 4), (5, 11), (-1, -1)]]
        batch = batch.replace(texts=["a zz [MASK]"], offsets=offsets, parts=[[-1, 0, 0, 0, -1]])
    attribution = attribution_of(batch, [[9.0, 2.0, 8.0, 1.0, 9.0]])
    (panel,) = sentences({"a": attribution}, {})[0][0].rows["contribution"]
    assert panel.line is not None
    assert [piece.special for piece in panel.line.pieces] == [True, False, False, False, True]
    assert panel.line.largest == 8
    terminal: Any = SimpleNamespace(as_json=False, coloured=False)
    for words in (True, False):
        (line,) = result_lines(attribution, terminal, words=words)
        assert line.plain == f"[CLS] a(+2) {'zz' if words and located else '[UNK]'}(+9) [MASK](+1) [SEP]"
    attribution.show(by="tokens")
    assert "[CLS] a(+2) [UNK](+9) [MASK](+1) [SEP]" in capsys.readouterr().out


def test_attributions_of_several_models_have_both_names(attributions: embgrad.results.Attributions) -> None:
    page = render_page({"torch": attributions, "gluon": attributions}, title="Two models")
    assert "<h1>Two models</h1>" in page
    assert "torch, removal" in page
    assert "gluon, product" in page


def test_gradients_and_attributions_are_not_mixed(attributions: embgrad.results.Attributions) -> None:
    gradients = embgrad.gradients(curved(), BATCH, embgrad.Logit(0))
    with pytest.raises(EmbgradError, match="results holds gradients and attributions: expected one of the two"):
        render_page({"a": gradients, "b": attributions["gradient"]})


def test_the_provenance_has_the_method(attributions: embgrad.results.Attributions) -> None:
    one = embgrad.attribute(curved(), BATCH, embgrad.Logit(0), embgrad.methods.IntegratedGradients(64))
    page = render_page(one)
    assert "IntegratedGradients" in page
    assert "largest error of completeness" in page

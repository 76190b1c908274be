"""The dictionaries of results that `--json` prints, number by number."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.cli.compare import print_comparisons
from embgrad.cli.describe import describe, model_of, name_results
from embgrad.cli.result_lines import port_lines, result_lines
from embgrad.cli.run import DIFFER, OK
from embgrad.cli.terminal import Terminal
from embgrad.results.port_display import parts
from tests.unit.attribution.language_models import causal
from tests.unit.results.attributed import attribution_of, encoder_decoder, token_attribution_of
from tests.unit.results.ported import report
from tests.unit.results.searched import search_of
from tests.unit.results.test_substitutions import MADE

BATCH = embgrad.TokenBatch(
    [[7, 8, 9], [5, 6, 0]], [[1, 1, 1], [1, 1, 0]], tokens=[["a", "##b", "c"], ["d", "e", "[P]"]]
)
NAMELESS = embgrad.TokenBatch([[7, 8]])


def without_provenance(result: Any) -> dict[str, Any]:
    described = describe(result)
    assert described.pop("provenance") == dict(result.provenance)
    return described


def gradients_of(objective: Any, values: Any, **changes: Any) -> embgrad.results.EmbeddingGradients:
    array = np.asarray(values, np.float32)
    fields = {
        "values": array,
        "activations": array * 0 + 2,
        "objective": objective,
        "ids": BATCH.ids,
        "mask": BATCH.mask,
    }
    more = {"types": None, "tokens": BATCH.tokens, "words_of": None, "vocab": 10, "pad_leak": 0.5, "certificate": None}
    return embgrad.results.EmbeddingGradients(**{**fields, **more, "provenance": {"point": "word"}, **changes})


def test_gradients_have_a_norm_and_a_product_for_each_token() -> None:
    values = [[[3, 4], [0, 1], [2, 0]], [[0, 0], [6, 8], [0.5, 0]]]
    described = without_provenance(gradients_of(np.array([1.5, 2.5]), values))
    first, second = described.pop("examples")
    assert described == {
        "shape": [2, 3, 2],
        "dtype": "float32",
        "norm": pytest.approx(130.25**0.5),
        "objective": [1.5, 2.5],
        "pad_leak": 0.5,
        "certificate": None,
    }
    assert first == {
        "objective": 1.5,
        "norm": pytest.approx(30**0.5),
        "tokens": [
            {"token": "a", "id": 7, "real": True, "norm": 5.0, "dot": 14.0},
            {"token": "##b", "id": 8, "real": True, "norm": 1.0, "dot": 2.0},
            {"token": "c", "id": 9, "real": True, "norm": 2.0, "dot": 4.0},
        ],
    }
    assert second["tokens"][1:] == [
        {"token": "e", "id": 6, "real": True, "norm": 10.0, "dot": 28.0},
        {"token": "[P]", "id": 0, "real": False, "norm": 0.5, "dot": 1.0},
    ]
    bare = gradients_of(np.array(4.0), values, tokens=None, mask=None)
    described = describe(bare)
    assert described["objective"] == 4.0
    assert described["examples"][1]["objective"] is None
    assert described["examples"][1]["tokens"][2] == {"token": None, "id": 0, "real": True, "norm": 0.5, "dot": 1.0}
    assert describe(gradients_of(None, values))["objective"] is None


def test_attributions_have_a_score_for_each_token_and_word() -> None:
    described = without_provenance(attribution_of(BATCH, [[1, 2, 4], [8, 16, 0]]))
    first, second = described.pop("examples")
    assert {
        name: np.asarray(value).tolist() for name, value in described.items() if name not in ("method", "error")
    } == {
        "shape": [2, 3],
        "objective": [2.5, 2.5],
        "baseline_objective": [1.5, 1.5],
        "delta": [0.01, 0.01],
    }
    assert described["method"] == {"class": "IntegratedGradients", "steps": 5}
    assert first == {
        "objective": 2.5,
        "words": [{"word": "ab", "score": 3.0}, {"word": "c", "score": 4.0}],
        "tokens": [
            {"token": "a", "id": 7, "real": True, "score": 1.0},
            {"token": "##b", "id": 8, "real": True, "score": 2.0},
            {"token": "c", "id": 9, "real": True, "score": 4.0},
        ],
    }
    assert second["tokens"][1:] == [
        {"token": "e", "id": 6, "real": True, "score": 16.0},
        {"token": "[P]", "id": 0, "real": False, "score": 0.0},
    ]
    assert describe(attribution_of(NAMELESS))["examples"] == [
        {
            "objective": 2.5,
            "words": None,
            "tokens": [
                {"token": None, "id": 7, "real": True, "score": 1.0},
                {"token": None, "id": 8, "real": True, "score": 2.0},
            ],
        }
    ]


def test_output_tokens_have_the_scores_of_the_inputs_and_examples_without_outputs_are_left_out() -> None:
    scores = [[[0, 0, 0], [0, 0, 0]], [[3, 0, 0], [0, 0, 0]]]
    described = without_provenance(token_attribution_of(BATCH, [[], [1]], np.array(scores)[:, :1]))
    assert described == {
        "shape": [2, 1, 3],
        "method": {"class": "InputXGradient"},
        "examples": [
            {
                "example": 1,
                "inputs": [{"text": "d", "positions": (0,)}, {"text": "e", "positions": (1,)}],
                "outputs": [{"text": "e", "positions": (1,), "objective": -1.0, "scores": [3.0, 0.0]}],
            }
        ],
    }


def test_an_output_at_the_first_position_is_one() -> None:
    (example,) = describe(encoder_decoder())["examples"]
    assert [output["positions"] for output in example["outputs"]] == [(1,), (2,), (3,)]
    first = replace(encoder_decoder(), outputs=np.array([[0, -1, -1]]))
    assert len(describe(first)["examples"]) == 1
    assert len(result_lines(first, Terminal(io.StringIO()))) == 1


def test_substitutions_have_the_entries_of_each_position_that_was_searched() -> None:
    assert without_provenance(MADE) == {
        "shape": [2, 2, 2],
        "goal": "maximize",
        "examples": [
            {
                "objective": 0.5,
                "positions": [
                    {
                        "position": 1,
                        "id": 7,
                        "substitutions": [
                            {"id": 5, "token": "<b>", "score": 1.5},
                            {"id": 3, "token": "##ing", "score": -0.25},
                        ],
                    }
                ],
            },
            {
                "objective": -2.0,
                "positions": [{"position": 1, "id": 5, "substitutions": [{"id": 3, "token": "##ing", "score": 0.125}]}],
            },
        ],
    }


def test_one_comparison_that_differs_makes_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    result = embgrad.gradients(causal(), [[5, 7, 3]], embgrad.Sum())
    double = replace(result, values=result.values * 2)
    comparisons = {"same": embgrad.compare(result, result), "double": embgrad.compare(result, double)}
    out = io.StringIO()
    assert print_comparisons(comparisons, Terminal(out)) == DIFFER
    same, other = out.getvalue().split("\n\ndouble: differs\n")
    assert same == f"same: agrees\n{comparisons['same']!r}"
    assert other == f"{comparisons['double']!r}\n"
    assert print_comparisons({"same": comparisons["same"]}, Terminal(io.StringIO())) == OK
    out = io.StringIO()
    assert print_comparisons(comparisons, Terminal(out, as_json=True)) == DIFFER
    answer = json.loads(out.getvalue())
    assert answer["agrees"] is False
    assert {name: entry["agrees"] for name, entry in answer["comparisons"].items()} == {"same": True, "double": False}


def test_searches_have_their_changes_and_their_course() -> None:
    search = search_of([["a", "b"], ["c", "d"]], [["a", "x"], ["c", "d"]], until=0.5)
    described = without_provenance(search)
    assert described.pop("figures") == search.figures().to_dict()
    assert described == {
        "shape": [2, 2],
        "method": {"class": "GCG", "steps": 2},
        "goal": "maximize",
        "until": 0.5,
        "examples": [
            {
                "objective_before": -1.0,
                "objective": 1.0,
                "met_before": False,
                "met": True,
                "text_before": "a b",
                "text": "a x",
                "changes": [
                    {"kind": "substituted", "position_before": 1, "position": 1, "before": "b", "after": "x"},
                ],
                "evaluations": 21,
                "gradients": 2,
                "objective_by_step": [-1.0, 0.0, 1.0],
            },
            {
                "objective_before": 0.0,
                "objective": 0.0,
                "met_before": False,
                "met": False,
                "text_before": "c d",
                "text": "c d",
                "changes": [],
                "evaluations": 1,
                "gradients": 0,
                "objective_by_step": [0.0, 0.0, 0.0],
            },
        ],
        "trigger": None,
    }
    bare = describe(search_of([["a"]], [["b"]], until=None, texts=None, texts_before=None))["examples"][0]
    assert [bare[name] for name in ("met_before", "met", "text_before", "text")] == [None] * 4


def test_the_lines_of_a_port_are_in_its_styles() -> None:
    texts = port_lines(report())
    assert [(text.plain, str(text.style)) for text in texts] == [
        (text.removesuffix("\n"), style) for text, style in parts(report())
    ]
    assert len({str(text.style) for text in texts}) > 1


def test_names_and_models() -> None:
    assert list(name_results(search_of([["a"]], [["b"]]))) == ["search"]
    assert list(name_results(MADE)) == ["substitutions"]
    assert list(name_results(attribution_of(BATCH))) == ["word"]
    assert name_results({"x": MADE}) == {"x": MADE}
    assert model_of(search_of([["a"]], [["b"]])) == "Model (reference)"
    assert model_of(gradients_of(None, np.zeros((2, 3, 2)))) == "? (?)"

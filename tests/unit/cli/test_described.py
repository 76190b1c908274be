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
from embgrad.cli.terminal import Terminal, plain
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
    described: dict[str, Any] = plain(describe(result))
    assert described.pop("provenance") == plain(result.provenance)
    return described


def picked(columns: dict[str, Any], *names: str) -> list[tuple[Any, ...]]:
    """Return the rows of a table with some of its columns."""
    return list(zip(*(columns[name] for name in names), strict=True))


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
    rows = picked(described.pop("tables")["tokens"], "example", "token", "id", "norm", "dot")
    assert described == {
        "shape": [2, 3, 2],
        "dtype": "float32",
        "norm": pytest.approx(130.25**0.5),
        "objective": [1.5, 2.5],
        "pad_leak": 0.5,
        "certificate": None,
    }
    first = [(0, "a", 7, 5.0, 14.0), (0, "##b", 8, 1.0, 2.0), (0, "c", 9, 2.0, 4.0)]
    assert rows == [*first, (1, "d", 5, 0.0, 0.0), (1, "e", 6, 10.0, 28.0)]
    bare = without_provenance(gradients_of(np.array(4.0), values, tokens=None, mask=None))
    assert bare["objective"] == 4.0
    assert picked(bare["tables"]["tokens"], "token", "id", "norm", "dot")[-1] == (None, 0, 0.5, 1.0)
    assert describe(gradients_of(None, values))["objective"] is None


def test_attributions_have_a_score_for_each_token() -> None:
    described = without_provenance(attribution_of(BATCH, [[1, 2, 4], [8, 16, 0]]))
    rows = picked(described.pop("tables")["tokens"], "example", "token", "word", "id", "score")
    assert described == {
        "shape": [2, 3],
        "objective": [2.5, 2.5],
        "baseline_objective": [1.5, 1.5],
        "delta": [0.01, 0.01],
        "error": None,
    }
    first = [(0, "a", "ab", 7, 1.0), (0, "##b", "ab", 8, 2.0), (0, "c", "c", 9, 4.0)]
    assert rows == [*first, (1, "d", "d", 5, 8.0), (1, "e", "e", 6, 16.0)]
    nameless = without_provenance(attribution_of(NAMELESS))["tables"]["tokens"]
    assert picked(nameless, "token", "id", "score") == [(None, 7, 1.0), (None, 8, 2.0)]


def test_output_tokens_have_the_scores_of_the_inputs() -> None:
    scores = [[[0, 0, 0], [0, 0, 0]], [[3, 0, 0], [0, 0, 0]]]
    described = without_provenance(token_attribution_of(BATCH, [[], [1]], np.array(scores)[:, :1]))
    assert (described["shape"], described["outputs"], described["objective"]) == (
        [2, 1, 3],
        [[-1], [1]],
        [[None], [-1.0]],
    )
    assert picked(described["tables"]["tokens"], "example", "output", "token", "score") == [(1, 1, "d", 3.0)]


def test_an_output_at_the_first_position_is_one() -> None:
    first = replace(encoder_decoder(), outputs=np.array([[0, -1, -1]]))
    assert len(result_lines(first, Terminal(io.StringIO()))) == 1


def test_substitutions_have_the_entries_of_each_position_that_was_searched() -> None:
    described = without_provenance(MADE)
    assert (described["shape"], described["objective"]) == ([2, 2, 2], [0.5, -2.0])
    rows = picked(described["tables"]["tokens"], "example", "position", "id", "other_id", "other_token", "score")
    assert rows == [(0, 1, 7, 5, "<b>", 1.5), (0, 1, 7, 3, "##ing", -0.25), (1, 1, 5, 3, "##ing", 0.125)]


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
    history, tables = described.pop("history"), described.pop("tables")
    assert described == {
        "objective_before": [-1.0, 0.0],
        "objective": [1.0, 0.0],
        "success_before": [False, False],
        "success": [True, False],
        "trigger": None,
    }
    assert picked(tables["changes"], "example", "kind", "before", "after") == [(0, "substituted", "b", "x")]
    assert picked(tables["examples"], "text_before", "text") == [("a b", "a x"), ("c d", "c d")]
    assert history["objective"] == [[-1.0, 0.0], [0.0, 0.0], [1.0, 0.0]]
    bare = without_provenance(search_of([["a"]], [["b"]], until=None, texts=None, texts_before=None))
    assert bare["success"] is bare["success_before"] is None
    assert bare["tables"]["examples"]["text"] == [None]


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

"""Results as tables of pandas and Arrow: the rows, the columns and their types, and what is refused."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import embgrad
from embgrad.errors import BatchError, EmbgradError
from embgrad.results import Attributions, PairAttribution
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.unit.attribution.models import linear
from tests.unit.inputs.test_offsets import wordpiece
from tests.unit.refusals import refused
from tests.unit.results.attributed import attribution_of, byte_level, encoder_decoder, token_attribution_of
from tests.unit.results.searched import search_of
from tests.unit.results.test_substitutions import MADE

TEXTS = ["The  films.", ("A film", "plots")]
BATCH = embgrad.encode(TEXTS, wordpiece())
#: What stands in the table of `BATCH`, without the scores: example, position, token, word, part, start and end.
TOKENS = [
    (0, 0, "[CLS]", "[CLS]", None, None, None),
    (0, 1, "the", "the", 0, 0, 3),
    (0, 2, "film", "films", 0, 5, 9),
    (0, 3, "##s", "films", 0, 9, 10),
    (0, 4, ".", ".", 0, 10, 11),
    (0, 5, "[SEP]", "[SEP]", None, None, None),
    (1, 0, "[CLS]", "[CLS]", None, None, None),
    (1, 1, "a", "a", 0, 0, 1),
    (1, 2, "film", "film", 0, 2, 6),
    (1, 3, "[SEP]", "[SEP]", None, None, None),
    (1, 4, "plot", "plots", 1, 0, 4),
    (1, 5, "##s", "plots", 1, 4, 5),
    (1, 6, "[SEP]", "[SEP]", None, None, None),
]
COLUMNS = ["example", "position", "id", "token", "word", "part", "start", "end", "score"]


def without_missing(table: pd.DataFrame) -> list[tuple[Any, ...]]:
    """Return the rows of a table, with None where something is missing."""
    return [tuple(None if value is pd.NA else value for value in row) for row in table.itertuples(index=False)]


def gradients(values: Any, **options: Any) -> embgrad.results.EmbeddingGradients:
    """Return the gradients of `BATCH` in a model in which they are these values, with the rows of the table as activations."""
    weights = values * BATCH.real[..., None].astype(float)

    def forward(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
        return (lookup(model["E"], input_ids) * Tensor(weights)).sum(1)

    model = ReferenceModel(forward, {"E": np.arange(22.0).reshape(11, 2)})
    return embgrad.gradients(model, BATCH.replace(types=None), embgrad.Sum(), **options)


def test_a_token_has_a_row_with_its_place_in_the_text_and_its_score() -> None:
    table = attribution_of(BATCH).to_pandas()
    assert list(table.columns) == COLUMNS
    assert without_missing(table.drop(columns=["id", "score"])) == TOKENS
    assert table["score"].tolist() == [1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 7]
    assert table["id"].tolist() == BATCH.ids[BATCH.real].tolist()
    expected = {
        "example": "int64", "position": "int64", "id": "int64", "part": "Int64", "start": "Int64", "end": "Int64",
    }  # fmt: skip
    assert {name: str(kind) for name, kind in table.dtypes.items()} == {
        **expected,
        **{"token": "string", "word": "string", "score": "float64"},
    }


def test_a_word_has_the_sum_of_its_tokens_scores_or_the_root_of_their_squares() -> None:
    rows = attribution_of(BATCH).to_pandas(by="words")
    assert list(rows.columns) == ["example", "position", "word", "part", "start", "end", "score"]
    assert without_missing(rows)[1:4] == [
        (0, 1, "the", 0, 0, 3, 2),
        (0, 2, "films", 0, 5, 10, 7),
        (0, 4, ".", 0, 10, 11, 5),
    ]
    assert without_missing(rows)[9] == (1, 4, "plots", 1, 0, 5, 11)
    norms = attribution_of(BATCH, method="Saliency").to_pandas(by="words")
    assert norms["score"][2] == pytest.approx(5)  # of 3 and 4
    for made, table in ((attribution_of(BATCH), rows), (attribution_of(BATCH, method="Saliency"), norms)):
        words = [word for example in made.words() for word in example]
        assert table["word"].tolist() == [word.text for word in words]
        np.testing.assert_allclose(table["score"], [word.saliency for word in words], rtol=1e-14)


def test_the_words_are_what_pandas_makes_of_the_tokens() -> None:
    made = attribution_of(BATCH, np.random.default_rng(0).normal(size=BATCH.shape))
    tokens = made.to_pandas(special=False)
    grouped = tokens.groupby(["example", "part", "word"], sort=False)["score"].sum()
    np.testing.assert_allclose(made.to_pandas(by="words", special=False)["score"], grouped.to_numpy(), rtol=1e-14)


def test_special_tokens_have_no_rows_on_request() -> None:
    table = attribution_of(BATCH).to_pandas(special=False)
    assert without_missing(table.drop(columns=["id", "score"])) == [row for row in TOKENS if row[4] is not None]
    nothing = attribution_of(embgrad.TokenBatch([[1, 2]], tokens=[["[CLS]", "[SEP]"]])).to_pandas(special=False)
    assert (list(nothing.columns), len(nothing)) == (COLUMNS, 0)


def test_arrow_has_the_same_rows_and_whole_numbers_where_some_are_missing() -> None:
    made = attribution_of(BATCH)
    table = pa.Table.from_pandas(made.to_pandas())
    others = {"token": "string", "word": "string", "score": "double"}
    kinds = {field.name: str(field.type).removeprefix("large_") for field in table.schema}
    assert kinds == {name: others.get(name, "int64") for name in COLUMNS}
    assert [tuple(row.values()) for row in table.drop_columns(["id", "score"]).to_pylist()] == TOKENS
    assert table["score"].to_pylist() == made.to_pandas()["score"].tolist()


def test_without_tokens_or_offsets_the_columns_are_there_and_empty() -> None:
    batch = embgrad.TokenBatch([[5, 6, 0], [7, 8, 9]], [[1, 1, 0], [1, 1, 1]])
    table = attribution_of(batch).to_pandas()
    assert list(table.columns) == COLUMNS
    assert table["id"].tolist() == [5, 6, 7, 8, 9]
    assert all(table[name].isna().all() for name in ("token", "word", "part", "start", "end"))
    with refused(EmbgradError, "by is 'words', but the tokens of this result are not known", "pass by='tokens'"):
        attribution_of(batch).to_pandas(by="words")


def test_gradients_have_their_saliency_of_either_kind() -> None:
    values = np.random.default_rng(1).normal(size=(*BATCH.shape, 2))
    g = gradients(values)
    for kind in ("norm", "dot"):
        table = g.to_pandas(kind=kind)
        assert table["score"].tolist() == g.saliency(kind)[BATCH.real].tolist()
        assert without_missing(table[["example", "position", "token", "word"]]) == [row[:4] for row in TOKENS]
        words = [word.saliency for example in g.words(kind) for word in example]
        np.testing.assert_allclose(g.to_pandas(kind=kind, by="words")["score"], words, rtol=1e-14)
    assert g.to_pandas()["score"].tolist() == pytest.approx(np.linalg.norm(values, axis=-1)[BATCH.real])
    with refused(EmbgradError, "kind is 'nrom': expected 'norm' or 'dot'. Did you mean 'norm'?"):
        g.to_pandas(kind="nrom")


def test_points_without_a_vector_for_each_token_have_no_table() -> None:
    g = replace(gradients(np.ones(2)), values=np.ones((2, 2)), activations=np.ones((2, 2)))
    with refused(EmbgradError, "the point 'word' has the shape (2,) without its last axis: expected (2, 7)"):
        g.to_pandas()


def test_several_methods_are_told_apart_by_a_first_column() -> None:
    named = {"one": attribution_of(BATCH), "two": attribution_of(BATCH, method="Saliency")}
    table = Attributions(named).to_pandas(by="words")
    assert table.columns[0] == "method"
    for name, made in named.items():
        own = table[table["method"] == name].drop(columns="method").reset_index(drop=True)
        pd.testing.assert_frame_equal(own, made.to_pandas(by="words"))


def test_an_output_token_has_a_row_for_each_token_before_it() -> None:
    batch = embgrad.encode(["a film", "abc"], byte_level())
    scores = np.random.default_rng(2).normal(size=(2, 2, batch.shape[1]))
    made = token_attribution_of(batch, [[2, 4], [1]], scores)
    table = made.to_pandas()
    assert list(table.columns) == ["example", "output", "output_id", "output_token", *COLUMNS[1:]]
    places = [(0, 2, position) for position in (0, 1)] + [(0, 4, position) for position in range(4)] + [(1, 1, 0)]
    assert without_missing(table[["example", "output", "position"]]) == places
    expected = [scores[example, {2: 0, 4: 1, 1: 0}[output], position] for example, output, position in places]
    assert table["score"].tolist() == expected
    assert table["output_token"].tolist() == [batch.tokens[example][output] for example, output, _ in places]
    assert table["output_id"].tolist() == [batch.ids[example, output] for example, output, _ in places]
    words = made.to_pandas(by="words")
    sums = table.groupby(["example", "output", "word"], sort=False)["score"].sum()
    np.testing.assert_allclose(words["score"], sums.to_numpy(), rtol=1e-14)


def test_spans_have_their_ends_and_every_input_before_their_last_token() -> None:
    batch = embgrad.TokenBatch([[5, 6, 7, 8], [5, 6, 7, 8]], tokens=[["a", "b", "c", "d"]] * 2)
    made = replace(
        token_attribution_of(batch, [[3, 3], [2]], (np.arange(16.0).reshape(2, 2, 4) + 1) * (np.arange(4) != 1)),
        outputs=np.array([[[1, 2, 3], [3, -1, -1]], [[2, -1, -1], [-1, -1, -1]]]),
        output_ids=np.array([[[6, 7, 8], [8, -1, -1]], [[7, -1, -1], [-1, -1, -1]]]),
        output_tokens=((("b", "c", "d"), ("d",)), (("c",),)),
    )
    table = made.to_pandas()
    assert list(table.columns)[:4] == ["example", "output", "output_end", "output_token"]
    assert "output_id" not in table.columns
    rows = (
        [(0, 1, 4, "b c d", at) for at in range(3)]
        + [(0, 3, 4, "d", at) for at in range(3)]
        + [(1, 2, 3, "c", at) for at in (0, 1)]
    )
    columns = ["example", "output", "output_end", "output_token", "position"]
    assert without_missing(table[columns]) == rows
    assert table["score"].tolist() == [1, 0, 3, 5, 0, 7, 9, 0]
    bare = replace(made, output_tokens=None, tokens=None).to_pandas()
    assert bare["output_token"].isna().all()


def test_rows_may_be_turns_of_a_chat_and_named_parts() -> None:
    tokens = ["<s>", "<|user|>", "why", "<|assistant|>", "so"]
    attribution = attribution_of(embgrad.TokenBatch([[1, 2, 3, 4, 5]], tokens=[tokens]), np.arange(5.0))
    turns = attribution.to_pandas(by="segments")
    assert list(turns.columns) == ["example", "position", "segment", "part", "start", "end", "score"]
    assert without_missing(turns[["position", "segment", "score"]]) == [
        (0, "<s>", 0.0),
        (1, "user", 3.0),
        (3, "assistant", 7.0),
    ]
    alone = attribution.to_pandas(by="segments", special=False)
    assert without_missing(alone[["position", "segment", "score"]]) == [(2, "user", 2.0), (4, "assistant", 4.0)]
    parts = attribution.to_pandas(by={"cause": slice(1, 3)})
    assert without_missing(parts[["segment", "score"]]) == [("(other)", 7.0), ("cause", 3.0)]
    placed = attribution_of(BATCH).to_pandas(by={"noun": "film"})[:2]
    assert without_missing(placed[["segment", "part", "start", "end"]]) == [("(other)", 0, 0, 11), ("noun", 0, 5, 9)]
    with refused(EmbgradError, "by is {}: expected names of parts"):
        attribution.to_pandas(by={})
    made = encoder_decoder()
    assert made.decoder_scores is not None
    table = made.to_pandas(by={"verb": "translate"})
    encoder, decoder = (table[table["side"] == side] for side in ("encoder", "decoder"))
    assert encoder["segment"].tolist() == ["verb", "(other)"] * 3
    sums = [scores[part].sum() for scores in made.scores[0] for part in (slice(2), slice(2, None))]
    assert encoder["score"].tolist() == sums
    assert decoder["segment"].tolist() == ["<pad>", "<pad>", "▁über", "<pad>", "▁über", "setze"]


def test_an_encoder_decoder_has_the_tokens_of_both_sides() -> None:
    made = encoder_decoder()
    table = made.to_pandas()
    assert list(table.columns)[:5] == ["example", "output", "output_id", "output_token", "side"]
    encoder, decoder = (table[table["side"] == side] for side in ("encoder", "decoder"))
    assert encoder["score"].tolist() == made.scores[0].ravel().tolist()
    assert decoder["score"].tolist() == [1, 5, 6, 9, 10, 11]
    assert decoder["token"].tolist() == ["<pad>", "<pad>", "▁über", "<pad>", "▁über", "setze"]
    assert len(table) == 18


def test_a_pair_has_a_row_for_each_token_of_one_text_with_each_of_the_other() -> None:
    first = embgrad.encode(["a film", "the films"], wordpiece())
    second = embgrad.encode(["plots", "zurich ."], wordpiece())
    scores = np.random.default_rng(3).normal(size=(2, first.shape[1], second.shape[1]))
    zeros = np.zeros(2)
    made = PairAttribution(scores, zeros, zeros, zeros, attribution_of(first), attribution_of(second))
    table = made.to_pandas()
    names = ("position", "id", "token", "word", "start", "end")
    assert list(table.columns) == [
        "example",
        *(f"{name}_a" for name in names),
        *(f"{name}_b" for name in names),
        "score",
    ]
    places = table[["example", "position_a", "position_b"]].to_numpy().T
    assert table["score"].tolist() == scores[tuple(places)].tolist()
    assert len(table) == sum(a * b for a, b in zip(first.real.sum(1), second.real.sum(1), strict=True))
    own = table[table["example"] == 1]
    assert own["token_a"].unique().tolist() == ["[CLS]", "the", "film", "##s", "[SEP]"]
    assert own["token_b"].unique().tolist() == ["[CLS]", "zurich", ".", "[SEP]"]
    words = made.to_pandas(by="words", special=False)
    both = table[table["start_a"].notna() & table["start_b"].notna()]
    sums = both.groupby(["example", "word_a", "word_b"], sort=False)["score"].sum()
    np.testing.assert_allclose(words["score"], sums.to_numpy(), rtol=1e-13)
    assert without_missing(words[["word_a", "start_a", "end_a", "word_b", "start_b", "end_b"]])[-1] == (
        *("films", 4, 9),
        *(".", 7, 8),
    )


def test_a_search_has_a_row_for_each_change_or_each_example() -> None:
    made = search_of([["a", "b", "c"], ["d", "e"], ["f"]], [["a", "x", "c"], ["d"], ["f"]])
    changes = made.to_pandas()
    assert without_missing(changes) == [
        (0, "substituted", 1, 1, "b", "x", -1.0, 1.0),
        (1, "deleted", 1, None, "e", None, 0.0, 2.0),
    ]
    examples = made.to_pandas(by="examples")
    assert examples["success"].tolist() == [True, True, True]
    assert examples["changed"].tolist() == [1, 1, 0]
    assert examples["objective"].tolist() == made.objective.tolist()
    assert examples["text"].tolist() == list(made.texts)
    bare = replace(made, success=None, texts=None, texts_before=None).to_pandas(by="examples")
    assert bare["success"].isna().all()
    assert bare["text_before"].isna().all()
    with refused(EmbgradError, "by is 'tokens': expected 'changes' or 'examples'"):
        made.to_pandas(by="tokens")


def test_substitutions_have_a_row_for_each_id() -> None:
    assert without_missing(MADE.to_pandas()) == [
        (0, 1, 7, "▁film", 0, 5, "<b>", 1.5),
        (0, 1, 7, "▁film", 1, 3, "##ing", -0.25),
        (1, 1, 5, "<b>", 0, 3, "##ing", 0.125),
    ]
    bare = replace(MADE, tokens=None, names=None).to_pandas()
    assert bare[["token", "other_token"]].isna().all(axis=None)


def test_a_faithfulness_has_the_metrics_of_each_example_and_the_shares() -> None:
    tokens = [["[CLS]", "b", "c", "d"], ["[CLS]", "f", "g", "[PAD]"]]
    batch = embgrad.TokenBatch([[2, 7, 6, 8], [2, 1, 9, 0]], [[1, 1, 1, 1], [1, 1, 1, 0]], tokens=tokens)
    model = linear()
    methods = embgrad.attribute(model, batch, embgrad.Logit(0), ["saliency", "input_x_gradient"])
    made = embgrad.metrics.faithfulness(model, batch, embgrad.Logit(0), methods)
    table = made.to_pandas()
    means = table.groupby("method", sort=False).mean(numeric_only=True)
    for method, expected in made.means.items():
        for name, mean in expected.items():
            assert means.loc[method, name] == pytest.approx(mean, nan_ok=True)
    shares = made.to_pandas(by="shares")
    aopc = shares.groupby(["method", "example"], sort=False)["comprehensiveness"].mean()
    np.testing.assert_allclose(aopc.to_numpy(), table["aopc_comprehensiveness"], rtol=1e-13)
    assert shares["share"].unique().tolist() == made.shares.tolist()
    assert shares["count"].tolist() == made.counts.ravel().tolist()


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with refused(EmbgradError, "to_pandas needs the package 'pandas'", "pip install 'embgrad[table]'"):
        attribution_of(BATCH).to_pandas()


def test_options_are_checked() -> None:
    with refused(EmbgradError, "by is 'word': expected 'tokens' or 'words' or 'segments'. Did you mean 'words'?"):
        attribution_of(BATCH).to_pandas(by="word")
    with refused(BatchError, "special is 1: expected True or False"):
        attribution_of(BATCH).to_pandas(special=1)

"""Tables of streams: a table for each result, numbered through, and one result at a time in memory."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import embgrad
from embgrad.errors import EmbgradError
from tests.unit.refusals import refused
from tests.unit.streams import COUNT, LABELLED, by_hand, labels, model, rows, run, texts, tokenizer


def whole(**options: Any) -> pd.DataFrame:
    """Return the table of all texts in one batch."""
    return by_hand(COUNT, COUNT)[0].to_pandas(**options)


def test_the_tables_of_a_stream_are_that_of_one_batch_cut_after_each_result() -> None:
    tables = list(run(None).to_pandas(kind="dot"))
    assert [table["example"].unique().tolist() for table in tables[:2]] == [[0, 1], [2, 3]]
    expected = whole(kind="dot")
    pd.testing.assert_frame_equal(pd.concat(tables, ignore_index=True), expected, rtol=1e-5)


def test_a_folder_has_the_tables_of_the_stream_that_wrote_it(tmp_path: Path) -> None:
    list(run(tmp_path / "run").to_pandas())
    again = pd.concat(embgrad.open_stream(tmp_path / "run").to_pandas(), ignore_index=True)
    pd.testing.assert_frame_equal(again, pd.concat(run(None).to_pandas(), ignore_index=True))


def test_several_points_have_a_first_column() -> None:
    table = pd.concat(run(None, at=["word", "block"]).to_pandas(), ignore_index=True)
    assert table.columns[0] == "point"
    own = table[table["point"] == "word"].drop(columns="point").reset_index(drop=True)
    pd.testing.assert_frame_equal(own, pd.concat(run(None).to_pandas(), ignore_index=True))
    assert table["example"].max() == COUNT - 1


def test_attributions_have_one_score() -> None:
    options = {"tokenizer": tokenizer, "batch_size": 4, "method": "input_x_gradient"}
    table = pd.concat(embgrad.stream(model(), rows(COUNT), LABELLED, **options).to_pandas(), ignore_index=True)
    one = embgrad.attribute(
        model(), texts(COUNT), embgrad.CrossEntropy(labels(COUNT)), "input_x_gradient", tokenizer=tokenizer
    )
    pd.testing.assert_frame_equal(table, one.to_pandas(), rtol=1e-5)
    with refused(EmbgradError, "kind is 'dot', but the results are attributions", "omit it"):
        next(embgrad.stream(model(), rows(COUNT), LABELLED, **options).to_pandas(kind="dot"))


def test_one_result_at_a_time_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[weakref.ref[Any]] = []

    def recorded(stream: embgrad.results.Stream) -> Iterator[Any]:
        for result in stream:
            alive.append(weakref.ref(result))
            yield result

    stream = run(None)
    monkeypatch.setattr(type(stream), "_from_the_first", lambda self: recorded(self))
    for _ in stream.to_pandas():
        assert sum(reference() is not None for reference in alive) <= 2
    assert len(alive) == 12


def test_rows_of_results_that_were_taken_before_would_be_missing() -> None:
    stream = run(None)
    next(stream)
    with refused(
        EmbgradError, "the stream has yielded results, which the tables would miss: call to_pandas() on a new"
    ):
        next(stream.to_pandas())
    with refused(EmbgradError, "by is 'chars': expected 'tokens' or 'words'"):
        run(None).to_pandas(by="chars")

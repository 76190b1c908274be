"""The mean score of each word: counts, means and intervals as pandas and tables of Student's t have them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import embgrad
from embgrad.errors import BatchError, EmbgradError
from embgrad.results import WordMeans
from embgrad.results.tabular import text_column
from embgrad.results.word_means import quantiles_of_t, word_means
from tests.unit.inputs.test_offsets import wordpiece
from tests.unit.refusals import refused
from tests.unit.results.attributed import attribution_of
from tests.unit.results.test_tables import BATCH, gradients
from tests.unit.streams import COUNT, LABELLED, Pieces, labels, model, texts


def table(count: int, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    words = random.choice(["the", "film", "dull", "gripping", "rare"], count, p=[0.4, 0.3, 0.15, 0.14, 0.01])
    return {"word": text_column(words.tolist()), "score": 1e3 + random.normal(size=count)}


def expect_as_pandas(made: WordMeans, tables: pd.DataFrame) -> None:
    expected = tables.groupby("word")["score"].agg(["count", "mean", "std"]).sort_values("mean", ascending=False)
    frame = made.to_pandas().set_index("word")
    assert frame.index.tolist() == expected.index.tolist()
    assert frame["count"].tolist() == expected["count"].tolist()
    np.testing.assert_allclose(frame["mean"], expected["mean"], rtol=1e-12)
    np.testing.assert_allclose(frame["deviation"], expected["std"], rtol=1e-9)


@pytest.mark.parametrize("parts", [1, 7])
def test_means_and_deviations_are_those_of_a_groupby_for_any_batches(parts: int) -> None:
    tables = [table(300, seed) for seed in range(parts)]
    made = word_means(iter(tables))
    expect_as_pandas(made, pd.concat([pd.DataFrame(each) for each in tables]))
    half = (made.high - made.low) / 2
    t = quantiles_of_t(made.counts - 1, 0.975)
    np.testing.assert_allclose(half, t * made.deviations / np.sqrt(made.counts), rtol=1e-9)
    np.testing.assert_allclose((made.high + made.low) / 2, made.means, rtol=1e-12)


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.975, {1: 12.7062, 2: 4.30265, 3: 3.18245, 4: 2.77645, 5: 2.57058, 10: 2.22814, 30: 2.04227, 120: 1.97993}),
        (0.95, {1: 6.31375, 2: 2.91999, 3: 2.35336, 4: 2.13185, 10: 1.81246, 60: 1.67065}),
    ],
)
def test_the_quantiles_are_those_of_printed_tables(share: float, expected: dict[int, float]) -> None:
    quantiles = quantiles_of_t(np.array(list(expected)), share)
    np.testing.assert_allclose(quantiles, list(expected.values()), rtol=2e-3)
    np.testing.assert_allclose(quantiles[:2], list(expected.values())[:2], rtol=1e-5)
    assert quantiles_of_t(np.array([10**9]), 0.975)[0] == pytest.approx(1.959964, rel=1e-6)


def test_an_interval_of_95_percent_covers_the_mean_that_often() -> None:
    random = np.random.default_rng(0)
    names = text_column([f"word {number}" for number in range(4000) for _ in range(4)])
    made = word_means([{"word": names, "score": random.normal(2.0, 1.0, 16000)}])
    covered = np.mean((made.low <= 2.0) & (made.high >= 2.0))
    assert covered == pytest.approx(0.95, abs=3.5 * np.sqrt(0.95 * 0.05 / 4000))


def test_rare_words_are_left_out_and_a_word_alone_has_no_interval() -> None:
    batch = embgrad.encode(["the film", "a film", "films"], wordpiece())
    made = attribution_of(batch).by_word()
    assert [(word.word, word.occurrences) for word in made] == [("films", 1), ("film", 2), ("a", 1), ("the", 1)]
    assert np.isnan(made.low).tolist() == [True, False, True, True]
    assert attribution_of(batch).by_word(min_count=None).words == made.words
    frequent = attribution_of(batch).by_word(min_count=2)
    assert (frequent.words, frequent.left_out) == (("film",), 3)
    assert ("[CLS]" in made.words, "[CLS]" in attribution_of(batch).by_word(special=True).words) == (False, True)
    assert len(attribution_of(batch).by_word(min_count=9).to_pandas()) == 0


def test_gradients_have_the_means_of_their_words() -> None:
    g = gradients(np.random.default_rng(1).normal(size=(*BATCH.shape, 2)))
    for kind in ("norm", "dot"):
        rows = g.to_pandas(kind=kind, by="words", special=False)
        expect_as_pandas(g.by_word(kind=kind), rows)


def test_a_stream_has_the_means_of_all_of_its_results() -> None:
    options = {"tokenizer": Pieces(list), "batch_size": 4}
    rows = list(zip(texts(COUNT), labels(COUNT), strict=True))
    tables = embgrad.stream(model(), rows, LABELLED, **options).to_pandas(by="words", special=False)
    made = embgrad.stream(model(), rows, LABELLED, **options).by_word(min_count=2)
    joined = pd.concat(tables)
    joined = joined[joined.groupby("word")["score"].transform("count") >= 2]
    expect_as_pandas(made, joined)
    with refused(EmbgradError, "the results are of several points", "make a stream for each"):
        embgrad.stream(model(), rows, LABELLED, **options, at=["word", "block"]).by_word()


def test_it_is_shown_in_three_lines() -> None:
    made = word_means([{"word": text_column(list("abcdefghijkl")), "score": np.arange(12.0)}])
    assert repr(made).splitlines() == [
        "WordMeans(12 words of 12 occurrences, 0.95 intervals)",
        "highest l 11 (1), k 10 (1), j 9 (1), i 8 (1), h 7 (1)",
        "lowest  e 4 (1), d 3 (1), c 2 (1), b 1 (1), a 0 (1)",
    ]
    assert repr(word_means([{"word": text_column(["a"]), "score": np.ones(1)}], 2)) == (
        "WordMeans(0 words of 0 occurrences, 1 that are rarer left out, 0.95 intervals)"
    )


def test_options_are_checked() -> None:
    for wrong in (1, 0.0, "0.95", True):
        with refused(EmbgradError, "confidence is", "expected a number between 0 and 1, such as 0.95"):
            attribution_of(BATCH).by_word(confidence=wrong)
    with refused(BatchError, "min_count is 0: expected a whole number of at least 1"):
        attribution_of(BATCH).by_word(min_count=0)

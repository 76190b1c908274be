"""Folders of results of another run, by another writer or of other weights: they are refused, and stay as they are."""

from __future__ import annotations

import functools
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

import embgrad
from embgrad.errors import EmbgradError, FileFormatError
from embgrad.testing.reference import ReferenceModel
from tests.unit.streaming.test_folder import begin, files
from tests.unit.streams import (
    COUNT,
    LETTERS,
    forward,
    labels,
    model,
    rows,
    run,
    texts,
    tokenizer,
)

pytestmark = pytest.mark.usefixtures("small_shards")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"given": model(1)},
            r"holds the results of another run: weights was '3: [0-9a-f]+' and is '3: [0-9a-f]+'\. Pass the same",
        ),
        ({"pads": "zero"}, "another run: pads was 'keep' and is 'zero'. Pass the same"),
        ({"batch_size": 3}, "another run: batch_size was 2 and is 3"),
        ({"keep": "saliency"}, "another run: keep was 'all' and is 'saliency'"),
        ({"at": ["word"]}, "another run: at was"),
        ({"at": "block"}, r"another run: at was \['word'\] and is \['block'\]"),
        ({"add": {"word": np.ones(4)}}, "another run: add was None and is '[0-9a-f]+'"),
        ({"edit": {"word": lambda grad: grad}, "run_id": "a"}, "another run: edit was None and is .*; run_id was None"),
        ({"call": lambda model, inputs: model(**inputs), "run_id": "a"}, "another run: call was None"),
    ],
)
def test_another_run_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    begin(1, tmp_path)
    before = files(tmp_path)
    with pytest.raises(FileFormatError, match=message):
        run(tmp_path, **options)
    assert files(tmp_path) == before
    run(tmp_path).finish()


@pytest.mark.parametrize(
    "objective",
    [embgrad.Labelled(lambda given: embgrad.CrossEntropy(given)), embgrad.CrossEntropy(labels(COUNT)), embgrad.Sum(),
        lambda output: output.sum(1)],
)  # fmt: skip
def test_another_objective_is_refused(tmp_path: Path, objective: Any) -> None:
    begin(1, tmp_path)
    before = r"another run: objective was 'Labelled embgrad.objectives.objectives.CrossEntropy'"
    with pytest.raises(FileFormatError, match=before):
        embgrad.stream(model(), texts(COUNT), objective, tokenizer=tokenizer, batch_size=2, to=tmp_path, run_id="a")


def test_other_labels_are_another_objective(tmp_path: Path) -> None:
    def with_labels(given: list[int]) -> embgrad.results.Stream:
        objective = embgrad.CrossEntropy(given)
        return embgrad.stream(model(), texts(COUNT), objective, tokenizer=tokenizer, batch_size=2, to=tmp_path)

    with with_labels(labels(COUNT)) as parts:
        next(parts)
    changed = [*labels(COUNT)[:-1], (labels(COUNT)[-1] + 1) % 3]
    with pytest.raises(FileFormatError, match="objective was"):
        with_labels(changed)
    assert len(list(with_labels(labels(COUNT)))) == 12


@pytest.mark.parametrize("changed", [0, 3, 5])
def test_another_source_is_refused_before_anything_is_written(tmp_path: Path, changed: int) -> None:
    begin(4, tmp_path)
    before = files(tmp_path)
    for new in (("zz", 0), (texts(COUNT)[changed], (labels(COUNT)[changed] + 1) % 3)):
        items = list(rows(COUNT))
        items[changed] = new
        with pytest.raises(FileFormatError, match=r"the source is not the one of the results in the folder.*example"):
            run(tmp_path, source=items).finish()
        assert files(tmp_path) == before
    for count in (0, 3):
        with pytest.raises(
            FileFormatError, match=f"the source ended after {count} examples, but the folder holds the results of 8"
        ):
            run(tmp_path, source=list(rows(COUNT))[:count]).finish()
        assert files(tmp_path) == before
    begin(1, tmp_path / "one")
    with pytest.raises(FileFormatError, match="ended after 0 examples, but the folder holds the results of 2"):
        run(tmp_path / "one", source=[]).finish()
    run(tmp_path).finish()
    with pytest.raises(FileFormatError, match=r"not the one of the results in the folder|complete run of 23 examples"):
        run(tmp_path, source=[*rows(COUNT), ("a", 0)]).finish()


def test_a_longer_source_after_whole_batches_is_refused(tmp_path: Path) -> None:
    run(tmp_path, source=list(rows(COUNT))[:6]).finish()
    with pytest.raises(FileFormatError, match="complete run of 6 examples, but the source now has more"):
        run(tmp_path).finish()


def test_weights_may_be_built_with_the_first_batch(tmp_path: Path) -> None:
    def late() -> ReferenceModel:
        def building(self: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Any:
            self.parameters.update(model().parameters)
            return forward(self, input_ids, attention_mask)

        return ReferenceModel(building, {})

    run(tmp_path, late()).finish()
    assert run(tmp_path).finish().complete  # of the same weights, all there from the beginning


def test_two_writers_are_refused(tmp_path: Path) -> None:
    with run(tmp_path) as parts:
        next(parts)
        with pytest.raises(EmbgradError, match=r"is being written to by another stream .* expected one writer"):
            run(tmp_path)
        assert len(embgrad.open_stream(tmp_path)) == 0 if (tmp_path / "manifest.json").exists() else True
    run(tmp_path).finish()


class Shifted:
    def __init__(self, shift: int) -> None:
        self.shift = shift

    def get_vocab(self) -> dict[str, int]:
        return {letter: 1 + (number + self.shift) % 30 for letter, number in tokenizer.get_vocab().items()}

    def __call__(self, text: str) -> list[int]:
        return [*map(self.get_vocab().__getitem__, text)]


def _trained() -> tokenizers.Tokenizer:
    vocabulary = {token: number for number, token in enumerate(["[UNK]", "[SEP]", *LETTERS])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    made.add_special_tokens(["[SEP]"])
    return made


SETTINGS: dict[str, Callable[[tokenizers.Tokenizer], Any]] = {
    "length": lambda made: made.enable_truncation(3),
    "side": lambda made: made.enable_truncation(8, direction="left"),
    "special tokens": lambda made: setattr(made, "encode_special_tokens", True),
}


def _set_up(name: str) -> tokenizers.Tokenizer:
    made = _trained()
    SETTINGS[name](made)
    return made


@pytest.mark.parametrize(
    ("first", "second"),
    [(lambda: Shifted(0), lambda: Shifted(1)), *[(_trained, functools.partial(_set_up, name)) for name in SETTINGS]],
)  # fmt: skip
def test_another_tokenizer_is_another_run(tmp_path: Path, first: Any, second: Any) -> None:
    begin(1, tmp_path, tokenizer=first())
    with pytest.raises(FileFormatError, match="another run: tokenizer was"):
        run(tmp_path, tokenizer=second())
    run(tmp_path, tokenizer=first()).finish()


@pytest.mark.parametrize("keep", ["all", "saliency", "table"])
def test_weights_that_change_meanwhile_are_refused(tmp_path: Path, keep: str) -> None:
    given = model()
    original = given.parameters["U"].value.copy()

    def trained(done: int, total: int | None) -> None:
        if done == 10:
            given.parameters["U"].value[0, 0] += 1e-6

    stopped = r"the model's weights have changed since the stream began \('U'\), and .* holds results of the former"
    with pytest.raises(EmbgradError, match=stopped):
        run(tmp_path / "one", given, keep=keep, progress=trained).finish()
    given.parameters["U"].value = original
    run(tmp_path / "one", given, keep=keep).finish()
    run(tmp_path / "other", keep=keep).finish()
    assert files(tmp_path / "one") == files(tmp_path / "other")


@pytest.mark.parametrize(
    "change",
    [np.flipud, np.negative, lambda table: table * 2],
    ids=["rows that changed places", "other signs", "doubled"],
)
def test_weights_that_change_to_the_same_sum_are_refused(
    tmp_path: Path, change: Callable[[np.ndarray], np.ndarray]
) -> None:
    given = model(dtype="float64")
    table = given.parameters["E"].value = np.random.default_rng(0).normal(size=(1024, 4))

    def trained(done: int, total: int | None) -> None:
        if done == 10:
            table[...] = change(table)

    with pytest.raises(EmbgradError, match=r"have changed since the stream began \('E'\)"):
        run(tmp_path, given, progress=trained).finish()


@pytest.mark.parametrize("resumed", [False, True])
def test_the_weights_at_the_first_result_identify_the_run(tmp_path: Path, resumed: bool) -> None:
    if resumed:
        begin(5, tmp_path)
    given = model()
    parts = run(tmp_path, given)
    given.parameters["U"].value[...] *= 2
    if resumed:
        with pytest.raises(EmbgradError, match="weights have changed since the stream began"):
            parts.finish()
        run(tmp_path).finish()
        return
    parts.finish()
    with pytest.raises(FileFormatError, match="another run: weights was"):
        run(tmp_path)
    run(tmp_path, given).finish()


def test_a_forked_process_does_not_lock_the_folder(tmp_path: Path) -> None:
    parts = run(tmp_path)
    next(parts)
    waiting = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    waiting.start()
    try:
        with pytest.raises(EmbgradError, match="is being written to by another stream"):
            run(tmp_path)
        parts.close()
        run(tmp_path).finish()
    finally:
        waiting.kill()
        waiting.join()

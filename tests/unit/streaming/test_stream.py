"""Streams: the results of `gradients`, batch by batch, from sources of every form."""

from __future__ import annotations

import codecs
import gc
import itertools
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import embgrad
from embgrad.errors import (
    BatchError,
    EmbgradError,
    EmbgradWarning,
    FileFormatError,
    ObjectiveError,
    PointError,
    UnsupportedError,
)
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.unit.streams import (
    CLASSES,
    DIM,
    LABELLED,
    by_hand,
    expect_same_bits,
    forward,
    labels,
    model,
    rows,
    texts,
    tokenizer,
)


def stream(source: Any, objective: Any = LABELLED, **options: Any) -> embgrad.results.Stream:
    return embgrad.stream(model(), source, objective, **{"tokenizer": tokenizer, **options})


def expect_same(expected: Iterable[Any], actual: Iterable[Any]) -> None:
    for first, second in zip(expected, actual, strict=True):
        expect_same_bits(first, second)


def with_forward(forward: Any) -> ReferenceModel:
    return ReferenceModel(forward, {name: parameter.value for name, parameter in model().parameters.items()})


class Pieces:
    def tokenize(self, text: str) -> list[str]:
        return list(text)

    def convert_tokens_to_ids(self, tokens: list[str]) -> list[int]:
        return [tokenizer(token)[1] if len(token) == 1 else 1 for token in tokens]


def test_each_result_equals_that_of_gradients() -> None:
    expect_same(by_hand(23, 5), stream(rows(23), batch_size=5))
    expect_same(by_hand(23, 5), stream(texts(23), embgrad.CrossEntropy(labels(23)), batch_size=5))


def test_an_objective_for_each_batch_receives_the_batch() -> None:
    made = embgrad.PerBatch(lambda batch: embgrad.Logit(batch.ids[:, 1] % CLASSES))
    for result in stream(texts(5), made, batch_size=3):
        assert result.provenance["objective"]["index"] == (result.ids[:, 1] % CLASSES).tolist()


def test_a_function_of_labels_may_receive_the_batch_too() -> None:
    made = embgrad.Labelled(lambda labels, batch: embgrad.Logit((batch.ids[:, 1] + labels) % CLASSES), with_batch=True)
    [result] = stream(rows(3), made)
    assert result.provenance["objective"]["index"] == ((result.ids[:, 1] + labels(3)) % CLASSES).tolist()


def test_a_native_function_equals_the_objective_that_computes_the_same() -> None:
    native = stream(texts(5), lambda output: output.sum(1), batch_size=3)
    for first, second in zip(native, stream(texts(5), embgrad.Sum(), batch_size=3), strict=True):
        np.testing.assert_array_equal(first.values, second.values)


def test_batches_of_every_form_with_and_without_labels() -> None:
    batches = [[[3, 4, 5]], {"input_ids": [[6, 7], [8, 9]]}, embgrad.TokenBatch([[5, 4]], [[1, 0]])]
    objectives = [embgrad.Logit(index) for index in ([0], [1, 2], [0])]
    expected = [embgrad.gradients(model(), *pair) for pair in zip(batches, objectives, strict=True)]
    expect_same(expected, embgrad.stream(model(), iter(batches), embgrad.Logit([0, 1, 2, 0])))
    labelled = embgrad.stream(model(), [([[3, 4], [5, 6]], np.array([1, 2]))], LABELLED)
    expect_same([embgrad.gradients(model(), [[3, 4], [5, 6]], embgrad.CrossEntropy([1, 2]))], labelled)


def test_batches_are_cut_into_sub_batches() -> None:
    sizes = []

    def counting(self: Any, input_ids: np.ndarray) -> Any:
        sizes.append(len(input_ids))
        return forward(self, input_ids)

    ids = np.random.default_rng(0).permutation(15).reshape(5, 3)
    [result] = embgrad.stream(with_forward(counting), [ids], embgrad.Sum(), batch_size=2)
    assert sizes == [2, 2, 1]
    assert result.values.shape == (5, 3, DIM)


def test_options_of_gradients_are_respected() -> None:
    options: dict[str, Any] = {"at": ["word", "block"], "pads": "zero", "edit": {"block": lambda grad: grad * 2}}
    for first, second in zip(by_hand(6, 4, **options), stream(rows(6), batch_size=4, **options), strict=True):
        assert list(second) == ["word", "block"]
        expect_same(first.values(), second.values())
    [checked] = embgrad.stream(model(dtype="float64"), rows(4), LABELLED, tokenizer=tokenizer, check=True)
    assert checked.certificate is not None
    [split] = stream(rows(4), split=True)
    assert len(split.per_example()) == 4
    assert split.tables is not None


@pytest.mark.parametrize("option", ["add", "override"])
def test_arrays_with_an_entry_for_each_example_are_refused(option: str) -> None:
    def pooling(self: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
        return self.module("pooled", Tensor.tanh, lookup(self["E"], input_ids).sum(1)) @ self["W"]

    weights = {name: parameter.value for name, parameter in model().parameters.items()}

    def pooled(array: np.ndarray) -> list[Any]:
        built, options = ReferenceModel(pooling, weights, ["pooled"]), {option: {"pooled": array}}
        given = ["ab", "cd", "ef", "gh"]
        return list(
            embgrad.stream(built, given, embgrad.Logit(0), tokenizer=tokenizer, batch_size=2, at="pooled", **options)
        )

    for wrong in (np.ones((2, DIM)), np.ones((4, DIM))):
        with pytest.raises(UnsupportedError, match=r"an entry for each example, but it is for many batches"):
            pooled(wrong)
    for right in (np.ones(DIM), np.ones((1, DIM))):
        assert len(pooled(right)) == 2


def test_pairs_and_files_of_every_kind(tmp_path: Path) -> None:
    [pairs] = stream([("ab", "c"), "de"], embgrad.Logit(0))
    assert pairs.ids.tolist() == [[1, 3, 4, 2, 5, 2], [1, 6, 7, 2, 0, 0]]
    (tmp_path / "texts.txt").write_text("ab\nc\r\n\nde", newline="")
    with (tmp_path / "texts.txt").open() as file, codecs.open(str(tmp_path / "texts.txt"), encoding="utf-8") as coded:
        for opened in (file, coded):
            [lines] = stream(opened, embgrad.Logit(0))
            assert [row[row > 0].tolist() for row in lines.ids] == [[1, 3, 4, 2], [1, 5, 2], [1, 2], [1, 6, 7, 2]]
        assert not file.closed
    with tempfile.SpooledTemporaryFile(mode="w+") as spooled:
        spooled.write("ab\nc\n")
        spooled.seek(0)
        [lines] = stream(spooled, embgrad.Logit(0))
    assert lines.ids.tolist() == [[1, 3, 4, 2], [1, 5, 2, 0]]
    with (tmp_path / "texts.txt").open("rb") as raw, pytest.raises(BatchError, match=r"example 0 is b'ab\\n'"):
        list(stream(raw, embgrad.Logit(0)))


@pytest.mark.parametrize("whole", [int, np.int64])
def test_max_length_and_batch_size_are_whole_numbers_of_any_kind(whole: Any, tmp_path: Path) -> None:
    options = {"tokenizer": Pieces(), "max_length": whole(5), "batch_size": whole(2)}
    actual = list(stream(["abcdef", "a", "b"], embgrad.Logit(0), **options, to=tmp_path, run_id="a"))
    assert [result.ids.shape for result in actual] == [(2, 5), (1, 3)]
    assert actual[0].provenance["truncated"] == [3, 0]


def test_an_error_of_a_batch_names_the_examples() -> None:
    def note_of(error: type[Exception], actual: embgrad.results.Stream, note: str) -> None:
        with pytest.raises(error) as caught:
            list(actual)
        assert getattr(caught.value, "__notes__", [note]) == [note]

    outside = stream(["a", "b", "c"], embgrad.Logit(9), batch_size=2)
    note_of(ObjectiveError, outside, "while streaming the examples 0 to 1 of the source")
    empty = stream(["a", "b", "c", ""], embgrad.Logit(0), tokenizer=lambda text: [3] * len(text), batch_size=2)
    note_of(BatchError, empty, "while encoding the examples 2 to 3 of the source")


def test_progress_of_sources_of_known_and_unknown_length() -> None:
    class Loader:
        def __len__(self) -> int:
            raise TypeError("has no length")

        def __iter__(self) -> Any:
            return iter(texts(5))

    batches = [np.ones((count, 3), int) for count in (2, 2, 1)]
    for source, total in ((texts(5), 5), (iter(texts(5)), None), (Loader(), None), (batches, None)):
        reported: list[Any] = []
        options = {"tokenizer": None} if source is batches else {"batch_size": 2}
        list(stream(source, embgrad.Sum(), progress=lambda *pair, seen=reported: seen.append(pair), **options))
        assert reported == [(0, total), (2, total), (4, total), (5, total)]


def test_the_sum_of_a_stream_is_the_table_of_all_examples() -> None:
    whole = embgrad.gradients(model(), texts(23), embgrad.CrossEntropy(labels(23)), tokenizer=tokenizer).table()
    actual = stream(rows(23), batch_size=4).table()
    assert actual.values.dtype == np.float32
    np.testing.assert_allclose(actual.to_dense(), whole.to_dense(), rtol=1e-5, atol=1e-6)
    assert list(stream(rows(5), at=["word"]).table()) == ["word"]


def test_a_special_token_that_a_text_has_already_is_a_warning() -> None:
    made = Tokenizer(models.WordLevel({"[PAD]": 0, "[CLS]": 1, "film": 2}))
    made.add_special_tokens(["[CLS]"])
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 1)])
    with pytest.warns(EmbgradWarning, match=r"adds '\[CLS\]' to a text that begins with it already"):
        list(stream(["film", "[CLS] film"], embgrad.Sum(), tokenizer=made))


def test_a_sum_without_results_already_taken_is_refused() -> None:
    run = stream(texts(9), embgrad.Sum(), batch_size=2)
    next(run)
    with pytest.raises(
        EmbgradError, match=r"has yielded results, which the sum would miss: call table\(\) on a new stream"
    ):
        run.table()
    run.close()


def test_saliencies_are_those_of_the_results() -> None:
    for saved, full in zip(stream(rows(5), batch_size=3, keep="saliency"), by_hand(5, 3), strict=True):
        assert isinstance(saved, embgrad.results.Attribution)
        assert saved.values is None
        np.testing.assert_allclose(saved.scores[saved.real], full.saliency("norm")[full.real], rtol=1e-6)
        for name in ("objective", "ids", "real"):
            np.testing.assert_array_equal(getattr(saved, name), getattr(full, name))


def _scaled(self: Any, input_ids: np.ndarray, scale: Any = 1.0) -> Tensor:
    return (lookup(self["E"], input_ids).sum(1) * Tensor(np.asarray(scale, "float32")[..., None])) @ self["W"]


@pytest.mark.parametrize("container", [np.array, list])
@pytest.mark.parametrize("refilled", ["labels", "extras", "texts"])
def test_a_source_may_reuse_its_memory(refilled: str, container: Any) -> None:
    def source(copied: Any) -> Iterator[Any]:
        memory = container([0, 0])
        for number in range(6):
            memory[:] = [number % 3, (number + 1) % 3]
            value = copied(memory)
            batch = {"input_ids": [[3, 4], [5, 6]], **({"scale": value} if refilled == "extras" else {})}
            yield batch if refilled == "extras" else ("ab" if refilled == "texts" else batch, value)

    def numbers(copied: Any) -> list[list[float]]:
        objective: Any = embgrad.Logit(0) if refilled == "extras" else LABELLED
        options: dict[str, Any] = {}
        if refilled == "texts":
            objective = embgrad.Labelled(lambda labels: embgrad.CrossEntropy([int(label[0]) for label in labels]))
            options.update(tokenizer=tokenizer, batch_size=3)
        return [
            g.objective.tolist() for g in embgrad.stream(with_forward(_scaled), source(copied), objective, **options)
        ]

    assert numbers(lambda memory: memory) == numbers(container)


@pytest.mark.parametrize("written", [False, True])
def test_a_table_that_is_resized_meanwhile_has_no_sum(written: bool, tmp_path: Path) -> None:
    growing = model()

    def grow(done: int, total: int | None) -> None:
        if done == 2:
            table = growing.parameters["E"]
            table.value = np.concatenate([table.value, table.value[:1]])

    options: dict[str, Any] = {"tokenizer": tokenizer, "batch_size": 2, "progress": grow}
    run = embgrad.stream(growing, rows(4), LABELLED, to=tmp_path if written else None, **options)
    message = (
        r"the sum so far is of a table of shape \(40, 4\), and the next gradient of one of \(41, 4\): expected gradients of "
        "one table; was the vocabulary resized in between"
    )
    if written:
        message = r"weights have changed since the stream began \('E'\), and .* holds results of the former ones"
    with pytest.raises(EmbgradError if written else FileFormatError, match=message):
        run.table()


class Table:
    shape = (2, 2)
    columns = ("text", "label")

    def __iter__(self) -> Any:
        return iter(self.columns)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Table(), r"the source is a table of 2 rows, a Table.*: pass one column"),
        ("a text", r"the source is the text 'a text': expected an iterable of texts; write \[text\], or open"),
        (embgrad.TokenBatch([[3]]), "the source is one batch, a TokenBatch: expected an iterable of batches"),
        ({"input_ids": [[3]]}, "the source is one batch, a dict"),
        (7, "the source is of type int: expected an iterable"),
    ],
)
def test_other_sources_are_refused(source: Any, message: str) -> None:
    with pytest.raises(BatchError, match=message):
        embgrad.stream(model(), source, embgrad.Sum(), tokenizer=tokenizer)


def test_texts_without_a_tokenizer_are_refused_before_they_are_read() -> None:
    with pytest.raises(BatchError, match="pass tokenizer="):
        embgrad.stream(model(), ["a", "b"], embgrad.Sum())


@pytest.mark.parametrize(
    ("source", "objective", "options", "message"),
    [
        ([[[3]], [3]], embgrad.Sum(), {"tokenizer": None}, r"batch 1 of the source: ids have shape \(1,\)"),
        (["a", "b", "c", 5], embgrad.Sum(), {"batch_size": 2}, "example 3 is 5: expected a text or a pair of texts"),
        ([], embgrad.Sum(), {}, r"the source is empty.*was it a generator, and read before"),
        ([("a", 0), "ab"], LABELLED, {}, r"example 1 of the source is 'ab'.* expected \(text, label\)"),
        ([([[3], [4]], [1])], LABELLED, {"tokenizer": None}, r"the labels of batch 0 .* expected 2, one an example"),
        ([[[3]]], embgrad.Sum(), {"tokenizer": None, "max_length": 5}, "max_length is 5, but there is no tokenizer"),
    ],
)
def test_other_batches_are_refused(source: Any, objective: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BatchError, match=message):
        list(stream(source, objective, **options))


def test_labels_of_another_number_than_the_source_are_refused() -> None:
    few = stream(texts(5), embgrad.CrossEntropy(labels(3)), batch_size=2)
    next(few)
    with pytest.raises(ObjectiveError, match=r"have 3 entries, but the source has more.*embgrad\.Labelled"):
        next(few)
    with pytest.raises(ObjectiveError, match="have 6 entries, but the source ended after 5 examples"):
        list(stream(texts(5), embgrad.CrossEntropy(labels(6)), batch_size=2))
    with pytest.raises(ObjectiveError, match=r"different numbers of examples, \{'index': 2, 'against': 3\}"):
        stream(texts(5), embgrad.Margin([0, 1], [1, 2, 0]))


def test_functions_that_return_no_objective_are_refused() -> None:
    for made in (embgrad.Sum(), 3):
        with pytest.raises(ObjectiveError, match=r"Labelled received .* a function that takes the labels"):
            embgrad.Labelled(made)
        with pytest.raises(ObjectiveError, match=r"PerBatch received .* expected a function that takes a batch"):
            embgrad.PerBatch(made)
    with pytest.raises(ObjectiveError, match="the objective is 3"):
        stream(texts(2), 3)
    with pytest.raises(ObjectiveError, match=r"the class Labelled: expected an instance"):
        stream(texts(2), embgrad.Labelled)
    nested = r"the function returned (Labelled|PerBatch).*: expected an objective for one batch"
    inner = embgrad.PerBatch(lambda batch: embgrad.Sum())
    for made, message in ((3, "the objective is 3"), (LABELLED, nested), (inner, nested)):
        with pytest.raises(ObjectiveError, match=message):
            list(stream(texts(2), embgrad.PerBatch(lambda _, made=made: made)))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"keep": "al"}, EmbgradError, "keep is 'al': expected 'all' or 'saliency' or 'table'.*mean 'all'"),
        ({"batch_size": 1.5}, BatchError, "batch_size is 1.5"),
        ({"pads": "zeros"}, BatchError, "Did you mean 'zero'"),
        ({"at": ""}, PointError, "at is ''"),
        ({"add": {"word": np.ones((2, 3, DIM))}}, UnsupportedError, r"add\['word'\] has the shape \(2, 3, 4\)"),
        ({"progress": 3}, EmbgradError, "progress is 3"),
        ({"compile": True}, UnsupportedError, "compile"),
        ({"tokenizer": 3}, BatchError, "the tokenizer is of type int"),
    ],
)
def test_options_are_checked_before_anything_is_read(options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        stream(texts(2), embgrad.Sum(), **options)


def test_results_that_are_not_kept_cannot_be_asked_for() -> None:
    with pytest.raises(EmbgradError, match=r"keeps no result of a batch: expected \.table\(\)"):
        next(stream(texts(2), embgrad.Sum(), keep="table"))
    run = stream(texts(2), embgrad.Sum(), keep="saliency")
    with pytest.raises(
        EmbgradError, match="attributions have no table gradients: expected keep='table' or 'all', and no method"
    ):
        run.table()
    with pytest.raises(EmbgradError, match="since to was not given: pass to=folder"):
        run.finish()


def test_a_long_stream_holds_one_result_at_most() -> None:
    held = []
    actual = stream(itertools.repeat("abcdef"), embgrad.Sum(), batch_size=2)
    for g in itertools.islice(actual, 300):
        held.append(weakref.ref(g))
    del g
    gc.collect()
    assert sum(reference() is not None for reference in held) <= 1
    actual.close()

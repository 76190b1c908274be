"""Streams: the results of `gradients`, batch by batch, whatever is read ahead, put together by length or cut."""

from __future__ import annotations

import codecs
import gc
import itertools
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.streaming.run import trim
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


@pytest.fixture(autouse=True)
def _no_thread_left() -> Iterator[None]:
    """Whatever a test did, the threads of its streams have ended."""
    yield
    gc.collect()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and _threads():
        time.sleep(0.01)
    assert not _threads()


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "embgrad.stream"]


# The same as gradients


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_each_result_is_that_of_gradients(ahead: int) -> None:
    found = list(embgrad.stream(model(), rows(23), LABELLED, tokenizer=tokenizer, batch_size=5, ahead=ahead))
    assert [len(one.values) for one in found] == [5, 5, 5, 5, 3]
    for one, other in zip(by_hand(23, 5), found, strict=True):
        expect_same_bits(one, other)


def test_labels_of_the_whole_source() -> None:
    found = list(
        embgrad.stream(model(), texts(11), embgrad.CrossEntropy(labels(11)), tokenizer=tokenizer, batch_size=4)
    )
    for one, other in zip(by_hand(11, 4), found, strict=True):
        expect_same_bits(one, other)


def test_a_label_may_be_anything() -> None:
    items = [(text, (label, (label + 1) % CLASSES)) for text, label in rows(6)]
    made = embgrad.Labelled(lambda given: embgrad.Margin([a for a, _ in given], [b for _, b in given]))
    found = list(embgrad.stream(model(), items, made, tokenizer=tokenizer, batch_size=4))
    margin = by_hand(6, 4, lambda own: embgrad.Margin(own, [(one + 1) % CLASSES for one in own]))
    for one, other in zip(margin, found, strict=True):
        expect_same_bits(one, other)


def test_an_objective_for_each_batch_sees_the_batch() -> None:
    shapes = []

    def made(batch: embgrad.TokenBatch) -> embgrad.Logit:
        shapes.append(batch.shape)
        return embgrad.Logit(batch.ids[:, 1] % CLASSES)

    found = list(embgrad.stream(model(), texts(5), embgrad.PerBatch(made), tokenizer=tokenizer, batch_size=3))
    assert shapes == [one.ids.shape for one in found]
    assert found[1].provenance["objective"]["index"] == (found[1].ids[:, 1] % CLASSES).tolist()


def test_labels_with_the_batch() -> None:
    made = embgrad.Labelled(lambda given, batch: embgrad.Logit((batch.ids[:, 1] + given) % CLASSES), with_batch=True)
    [found] = embgrad.stream(model(), rows(3), made, tokenizer=tokenizer)
    assert found.provenance["objective"]["index"] == ((found.ids[:, 1] + labels(3)) % CLASSES).tolist()


def test_a_native_function_and_an_objective_without_arguments() -> None:
    native = list(embgrad.stream(model(), texts(5), lambda output: output.sum(1), tokenizer=tokenizer, batch_size=3))
    summed = list(embgrad.stream(model(), texts(5), embgrad.Sum(), tokenizer=tokenizer, batch_size=3))
    for one, other in zip(native, summed, strict=True):
        np.testing.assert_array_equal(one.values, other.values)


def test_batches_of_every_form() -> None:
    batches = [[[3, 4, 5]], {"input_ids": [[6, 7], [8, 9]]}, embgrad.TokenBatch([[5, 4]], [[1, 0]])]
    found = list(embgrad.stream(model(), iter(batches), embgrad.Logit([0, 1, 2, 0])))
    expected = [
        embgrad.gradients(model(), batch, embgrad.Logit(index))
        for batch, index in zip(batches, ([0], [1, 2], [0]), strict=True)
    ]
    for one, other in zip(expected, found, strict=True):
        expect_same_bits(one, other)


def test_labelled_batches() -> None:
    [found] = embgrad.stream(model(), [([[3, 4], [5, 6]], np.array([1, 2]))], LABELLED)
    expect_same_bits(embgrad.gradients(model(), [[3, 4], [5, 6]], embgrad.CrossEntropy([1, 2])), found)


def test_batches_cut_in_micro_batches() -> None:
    sizes = []

    def counting(self: Any, input_ids: np.ndarray) -> Any:
        sizes.append(len(input_ids))
        return forward(self, input_ids)

    counted = ReferenceModel(counting, {name: one.value for name, one in model().parameters.items()})
    ids = np.random.default_rng(0).permutation(15).reshape(5, 3)
    [found] = embgrad.stream(counted, [ids], embgrad.Sum(), batch_size=2)
    assert sizes == [2, 2, 1]
    assert found.values.shape == (5, 3, DIM)


def test_several_points_and_options() -> None:
    options: dict[str, Any] = {"at": ["word", "block"], "pads": "zero", "check": True, "split": False}
    options["edit"] = {"block": lambda grad: grad * 2}
    options["check"] = False
    found = list(embgrad.stream(model(), rows(6), LABELLED, tokenizer=tokenizer, batch_size=4, **options))
    for one, other in zip(by_hand(6, 4, **options), found, strict=True):
        assert list(other) == ["word", "block"]
        for name in one:
            expect_same_bits(one[name], other[name])


def test_certificates_and_split() -> None:
    [checked] = embgrad.stream(model(dtype="float64"), rows(4), LABELLED, tokenizer=tokenizer, check=True)
    assert checked.certificate is not None
    [split] = embgrad.stream(model(), rows(4), LABELLED, tokenizer=tokenizer, split=True)
    assert len(split.per_example()) == 4
    assert split.tables is not None


def test_pairs_and_files(tmp_path: Path) -> None:
    [pairs] = embgrad.stream(model(), [("ab", "c"), "de"], embgrad.Logit(0), tokenizer=tokenizer)
    assert pairs.ids.tolist() == [[1, 3, 4, 2, 5, 2], [1, 6, 7, 2, 0, 0]]
    (tmp_path / "texts.txt").write_text("ab\nc\r\n\nde", newline="")
    with (tmp_path / "texts.txt").open() as file:
        [lines] = embgrad.stream(model(), file, embgrad.Logit(0), tokenizer=tokenizer)
        assert not file.closed
    assert [row[row > 0].tolist() for row in lines.ids] == [[1, 3, 4, 2], [1, 5, 2], [1, 2], [1, 6, 7, 2]]


def test_files_of_every_kind_are_read_without_the_ends_of_their_lines(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("ab\nc\n")
    with codecs.open(str(tmp_path / "texts.txt"), encoding="utf-8") as file:
        [coded] = embgrad.stream(model(), file, embgrad.Logit(0), tokenizer=tokenizer)
    with tempfile.SpooledTemporaryFile(mode="w+") as spooled:
        spooled.write("ab\nc\n")
        spooled.seek(0)
        [lines] = embgrad.stream(model(), spooled, embgrad.Logit(0), tokenizer=tokenizer)
    assert coded.ids.tolist() == lines.ids.tolist() == [[1, 3, 4, 2], [1, 5, 2, 0]]
    with (tmp_path / "texts.txt").open("rb") as raw, pytest.raises(embgrad.BatchError, match=r"example 0 is b'ab\\n'"):
        list(embgrad.stream(model(), raw, embgrad.Logit(0), tokenizer=tokenizer))


def test_max_length_is_kept() -> None:
    class Pieces:
        def tokenize(self, text: str) -> list[str]:
            return list(text)

        def convert_tokens_to_ids(self, tokens: list[str]) -> list[int]:
            return [tokenizer(token)[1] if len(token) == 1 else 1 for token in tokens]

    [found] = embgrad.stream(model(), ["abcdef", "a"], embgrad.Logit(0), tokenizer=Pieces(), max_length=5)
    assert found.ids.shape == (2, 5)
    assert found.provenance["truncated"] == [3, 0]


# Ahead


def test_nothing_is_read_before_the_first_result_and_only_so_much_ahead() -> None:
    read = []

    def source() -> Iterator[str]:
        for number in itertools.count():
            read.append(number)
            yield "abc"

    found = embgrad.stream(model(), source(), embgrad.Sum(), tokenizer=tokenizer, batch_size=2, ahead=3)
    assert read == []
    next(found)
    time.sleep(0.2)
    assert 2 <= len(read) <= 2 * (1 + 3 + 1)  # the one taken, those ready, the one being made
    found.close()


def test_the_user_s_generator_is_closed_where_it_runs() -> None:
    closed = []

    def source() -> Iterator[str]:
        try:
            while True:
                yield "abc"
        finally:
            closed.append(threading.current_thread().name)

    for _ in embgrad.stream(model(), source(), embgrad.Sum(), tokenizer=tokenizer, batch_size=2):
        break
    gc.collect()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and not closed:
        time.sleep(0.01)
    assert closed == ["embgrad.stream"]


@pytest.mark.parametrize("training", [False, True])
def test_a_source_that_runs_the_model_finds_it_in_the_mode_that_it_has(training: bool) -> None:
    amid_a_pass, modes = threading.Event(), []

    def slow(self: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Any:
        amid_a_pass.set()
        time.sleep(0.2)
        amid_a_pass.clear()
        return forward(self, input_ids, attention_mask)

    built = ReferenceModel(slow, {name: one.value for name, one in model().parameters.items()})

    def source() -> Iterator[str]:
        for text in texts(6):
            amid_a_pass.wait(0.1)  # where it is drawn beside one
            modes.append(built.training)
            yield text

    found = list(
        embgrad.stream(built, source(), embgrad.Logit(0), tokenizer=tokenizer, batch_size=1, training=training)
    )
    assert (len(found), modes) == (6, [False] * 6)


class _OwnError(Exception):
    pass


@pytest.mark.parametrize("raised", [_OwnError("mine"), KeyboardInterrupt(), SystemExit(3)])
@pytest.mark.parametrize("where", ["source", "tokenizer"])
@pytest.mark.parametrize("ahead", [0, 2])
def test_exceptions_come_out_as_themselves_after_the_results_before_them(
    raised: BaseException, where: str, ahead: int
) -> None:
    def source() -> Iterator[str]:
        for number in range(9):
            if number == 7 and where == "source":
                raise raised
            yield "z" if number == 7 else "abc"

    def failing(text: str) -> list[int]:
        if text == "z":
            raise raised
        return tokenizer(text)

    found = embgrad.stream(model(), source(), embgrad.Sum(), tokenizer=failing, batch_size=3, ahead=ahead)
    assert [len(next(found).values), len(next(found).values)] == [3, 3]
    with pytest.raises(type(raised)) as caught:
        next(found)
    assert caught.value is raised
    with pytest.raises(StopIteration):
        next(found)


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("how", ["close", "with", "end"])
def test_what_a_source_raises_when_it_is_closed_comes_out(how: str, ahead: int) -> None:
    def source() -> Iterator[str]:
        try:
            yield from texts(12 if how == "end" else 1000)
        finally:
            raise raised

    raised = _OwnError("mine")
    found = embgrad.stream(model(), source(), embgrad.Sum(), tokenizer=tokenizer, batch_size=3, ahead=ahead)
    next(found)
    end = {"close": found.close, "with": lambda: found.__exit__(None, None, None), "end": lambda: list(found)}[how]
    with pytest.raises(_OwnError) as caught:
        end()
    assert caught.value is raised
    found.close()


def test_an_error_of_a_batch_says_which_examples() -> None:
    found = embgrad.stream(model(), ["a", "b", "c"], embgrad.Logit(9), tokenizer=tokenizer, batch_size=2)
    with pytest.raises(embgrad.ObjectiveError) as caught:
        next(found)
    assert getattr(caught.value, "__notes__", ["while streaming the examples 0 to 1 of the source"]) == [
        "while streaming the examples 0 to 1 of the source"
    ]
    empty = embgrad.stream(
        model(), ["a", "b", "c", ""], embgrad.Logit(0), tokenizer=lambda text: [3] * len(text), batch_size=2
    )
    with pytest.raises(embgrad.BatchError) as caught:
        list(empty)
    assert getattr(caught.value, "__notes__", ["while encoding the examples 2 to 3 of the source"]) == [
        "while encoding the examples 2 to 3 of the source"
    ]


def test_a_consumer_that_raises_leaves_no_thread() -> None:
    def consume() -> None:
        for _ in embgrad.stream(model(), itertools.repeat("abc"), embgrad.Sum(), tokenizer=tokenizer, batch_size=2):
            raise _OwnError

    with pytest.raises(_OwnError):
        consume()
    assert not [thread for thread in _threads() if thread.is_alive() and not _ends(thread)]


def _ends(thread: threading.Thread) -> bool:
    thread.join(20)
    return not thread.is_alive()


@pytest.mark.parametrize("ahead", [0, 2])
def test_several_threads_take_results_from_one_stream(ahead: int, tmp_path: Path) -> None:
    """Each result goes to one of them, and none is lost."""
    options: dict[str, Any] = {"tokenizer": tokenizer, "batch_size": 2, "ahead": ahead}
    stream = embgrad.stream(model(), rows(60), LABELLED, to=tmp_path / "run", **options)
    taken: list[list[Any]] = [[] for _ in range(4)]
    threads = [threading.Thread(target=lambda own: own.extend(stream), args=(own,)) for own in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = by_hand(60, 2)
    order = [one.ids.tobytes() for one in expected]
    found = sorted((one for own in taken for one in own), key=lambda one: order.index(one.ids.tobytes()))
    assert len(found) == len(order)
    for one, other in zip(expected, found, strict=True):
        expect_same_bits(one, other)
    written = list(embgrad.open_stream(tmp_path / "run"))
    assert [one.ids.tobytes() for one in written] == order


def test_a_stream_is_closed_by_another_thread_after_the_result_that_is_made() -> None:
    making, go_on = threading.Event(), threading.Event()

    def slow(text: str) -> list[int]:
        making.set()
        go_on.wait(20)
        return tokenizer(text)

    stream = embgrad.stream(model(), texts(4), embgrad.Logit(0), tokenizer=slow, batch_size=2, ahead=0)
    closer = threading.Thread(target=lambda: making.wait(20) and stream.close())
    closer.start()
    threading.Timer(0.1, go_on.set).start()
    assert len(next(stream).values) == 2
    closer.join()
    assert list(stream) == []


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("what", ["asked for its next result", "closed"])
def test_a_stream_that_is_used_by_what_it_calls(what: str, ahead: int) -> None:
    def source() -> Iterator[str]:
        yield from texts(2)
        asked.wait(20)  # for more than is ready
        time.sleep(0.1)
        if what == "closed":
            stream.close()
        yield from next(stream)

    asked = threading.Event()
    stream: Any = embgrad.stream(model(), source(), embgrad.Logit(0), tokenizer=tokenizer, batch_size=2, ahead=ahead)
    if ahead:
        assert len(next(stream).values) == 2
    asked.set()
    if not ahead:
        assert len(next(stream).values) == 2
    with pytest.raises(embgrad.EmbgradError, match=f"the stream is {what} from within the model, the objective"):
        next(stream)
    assert list(stream) == []


def test_with_closes_and_a_closed_stream_gives_nothing() -> None:
    with embgrad.stream(model(), itertools.repeat("abc"), embgrad.Sum(), tokenizer=tokenizer, batch_size=2) as found:
        next(found)
        assert _threads()
    assert not _threads()
    assert list(found) == []
    found.close()


def test_progress_of_known_and_unknown_length() -> None:
    for source, total in ((texts(5), 5), (iter(texts(5)), None)):
        told: list[Any] = []

        def say(done: int, of: int | None, told: list[Any] = told) -> None:
            told.append((done, of))

        for _ in embgrad.stream(model(), source, embgrad.Sum(), tokenizer=tokenizer, batch_size=2, progress=say):
            pass
        assert told == [(0, total), (2, total), (4, total), (5, total)]


# The sum of all tables


@pytest.mark.parametrize("window", [None, 16])
def test_the_sum_over_a_run(window: int | None) -> None:
    whole = embgrad.gradients(model(), texts(23), embgrad.CrossEntropy(labels(23)), tokenizer=tokenizer).table()
    run = embgrad.stream(model(), rows(23), LABELLED, tokenizer=tokenizer, batch_size=4, window=window)
    found = run.table()
    assert found.values.dtype == np.float32
    np.testing.assert_allclose(found.to_dense(), whole.to_dense(), rtol=1e-5, atol=1e-6)
    both = embgrad.stream(model(), rows(5), LABELLED, tokenizer=tokenizer, at=["word"]).table()
    assert list(both) == ["word"]


def test_a_sum_of_what_was_taken_already_is_refused() -> None:
    run = embgrad.stream(model(), texts(9), embgrad.Sum(), tokenizer=tokenizer, batch_size=2)
    next(run)
    with pytest.raises(embgrad.EmbgradError, match="were taken from the stream already, and are not in the sum"):
        run.table()
    run.close()


def test_saliencies_in_place_of_results() -> None:
    kept = list(embgrad.stream(model(), rows(5), LABELLED, tokenizer=tokenizer, batch_size=3, keep="saliency"))
    for one, full in zip(kept, by_hand(5, 3), strict=True):
        assert isinstance(one, embgrad.Saliencies)
        np.testing.assert_array_equal(one.norm, full.saliency("norm"))
        np.testing.assert_array_equal(one.dot, full.saliency("dot"))
        np.testing.assert_array_equal(one.objective, full.objective)
        np.testing.assert_array_equal(one.ids, full.ids)


def _scaled(self: Any, input_ids: np.ndarray, scale: Any = 1.0) -> Tensor:
    return (lookup(self["E"], input_ids).sum(1) * Tensor(np.asarray(scale, "float32")[..., None])) @ self["W"]


@pytest.mark.parametrize("ahead", [0, 3])
@pytest.mark.parametrize("kind", [np.array, list])
@pytest.mark.parametrize("what", ["labels", "extras", "texts"])
def test_a_source_may_fill_the_same_memory_anew(what: str, kind: Any, ahead: int) -> None:
    """Labels and further inputs are copied where ids are, before the source goes on."""
    scaling = ReferenceModel(_scaled, {name: one.value for name, one in model().parameters.items()})

    def source(own: Any) -> Iterator[Any]:
        """Batches, or texts, with what `own` gives of memory that is filled anew for each."""
        refilled = kind([0, 0])
        for number in range(6):
            refilled[:] = [number % 3, (number + 1) % 3]
            given = own(refilled)
            batch = {"input_ids": [[3, 4], [5, 6]], **({"scale": given} if what == "extras" else {})}
            yield batch if what == "extras" else ("ab" if what == "texts" else batch, given)

    def numbers(own: Any, ahead: int) -> list[list[float]]:
        objective: Any = embgrad.Logit(0) if what == "extras" else LABELLED
        asked: dict[str, Any] = {"ahead": ahead}
        if what == "texts":
            objective = embgrad.Labelled(lambda labels: embgrad.CrossEntropy([int(one[0]) for one in labels]))
            asked.update(tokenizer=tokenizer, batch_size=3)
        return [one.objective.tolist() for one in embgrad.stream(scaling, source(own), objective, **asked)]

    assert numbers(lambda one: one, ahead) == numbers(kind, 0)


@pytest.mark.parametrize("reread", [False, True])
def test_a_table_that_grows_has_no_sum(reread: bool, tmp_path: Path) -> None:
    """As where a training loop resizes the vocabulary beside the stream."""
    growing = model()

    def grown(done: int, total: int | None) -> None:
        if done == 2:
            table = growing.parameters["E"]
            table.value = np.concatenate([table.value, table.value[:1]])

    run = embgrad.stream(
        growing,
        rows(4),
        LABELLED,
        tokenizer=tokenizer,
        batch_size=2,
        ahead=0,
        progress=grown,
        to=tmp_path if reread else None,
    )
    message = (
        r"the sum so far is of a table of shape \(40, 4\), and the next gradient of one of \(41, 4\): expected gradients of "
        "one table; was the vocabulary resized in between"
    )
    if reread:
        message = (
            r"the model's weights have changed since the stream began \('E'\), and .* holds results of the former ones"
        )
    with pytest.raises(embgrad.EmbgradError if reread else embgrad.FileFormatError, match=message):
        run.table()


# What is refused


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a text", r"the source is the text 'a text': expected an iterable of texts; write \[text\], or open"),
        (embgrad.TokenBatch([[3]]), "the source is one batch, a TokenBatch: expected an iterable of batches"),
        ({"input_ids": [[3]]}, "the source is one batch, a dict"),
        (7, "the source is of type int: expected an iterable"),
    ],
)
def test_sources_that_are_none(source: Any, message: str) -> None:
    with pytest.raises(embgrad.BatchError, match=message):
        embgrad.stream(model(), source, embgrad.Sum(), tokenizer=tokenizer)


def test_batches_that_are_none() -> None:
    with pytest.raises(embgrad.BatchError, match="pass tokenizer="):
        embgrad.stream(model(), ["a", "b"], embgrad.Sum())
    with pytest.raises(embgrad.BatchError, match=r"batch 1 of the source: ids have shape \(1,\)"):
        list(embgrad.stream(model(), [[[3]], [3]], embgrad.Sum()))
    with pytest.raises(embgrad.BatchError, match="example 3 is 5: expected a text or a pair of texts"):
        list(embgrad.stream(model(), ["a", "b", "c", 5], embgrad.Sum(), tokenizer=tokenizer, batch_size=2))
    with pytest.raises(embgrad.BatchError, match=r"the source is empty.*was it a generator, and read before"):
        list(embgrad.stream(model(), iter([]), embgrad.Sum(), tokenizer=tokenizer))
    with pytest.raises(embgrad.BatchError, match=r"example 1 of the source is 'ab'.* expected \(text, label\)"):
        list(embgrad.stream(model(), [("a", 0), "ab"], LABELLED, tokenizer=tokenizer))
    with pytest.raises(embgrad.BatchError, match=r"the labels of batch 0 .* expected 2, one an example"):
        list(embgrad.stream(model(), [([[3], [4]], [1])], LABELLED))
    with pytest.raises(embgrad.BatchError, match="max_length is 5, but there is no tokenizer"):
        embgrad.stream(model(), [[[3]]], embgrad.Sum(), max_length=5)


def test_labels_that_do_not_go_with_the_source() -> None:
    few = embgrad.stream(model(), texts(5), embgrad.CrossEntropy(labels(3)), tokenizer=tokenizer, batch_size=2)
    next(few)
    with pytest.raises(embgrad.ObjectiveError, match=r"have 3 entries, but the source has more.*embgrad\.Labelled"):
        next(few)
    many = embgrad.stream(model(), texts(5), embgrad.CrossEntropy(labels(6)), tokenizer=tokenizer, batch_size=2)
    with pytest.raises(embgrad.ObjectiveError, match="have 6 entries, but the source ended after 5 examples"):
        list(many)
    with pytest.raises(embgrad.ObjectiveError, match=r"different numbers of examples, \{'index': 2, 'against': 3\}"):
        embgrad.stream(model(), texts(5), embgrad.Margin([0, 1], [1, 2, 0]), tokenizer=tokenizer)


@pytest.mark.parametrize("made", [embgrad.Sum(), 3])
def test_makers_that_are_none(made: Any) -> None:
    with pytest.raises(embgrad.ObjectiveError, match=r"Labelled received .* expected a function that takes the labels"):
        embgrad.Labelled(made)
    with pytest.raises(embgrad.ObjectiveError, match=r"PerBatch received .* expected a function that takes a batch"):
        embgrad.PerBatch(made)
    with pytest.raises(embgrad.ObjectiveError, match=r"the class Labelled: expected an instance"):
        embgrad.stream(model(), texts(2), embgrad.Labelled, tokenizer=tokenizer)
    if made == 3:
        with pytest.raises(embgrad.ObjectiveError, match="the objective is 3"):
            list(embgrad.stream(model(), texts(2), embgrad.PerBatch(lambda _: made), tokenizer=tokenizer))


def test_makers_that_make_a_maker() -> None:
    for made in (LABELLED, embgrad.PerBatch(lambda batch: embgrad.Sum())):
        run = embgrad.stream(model(), texts(2), embgrad.PerBatch(lambda batch, made=made: made), tokenizer=tokenizer)
        message = r"the function returned (Labelled|PerBatch).*: expected an objective for one batch"
        with pytest.raises(embgrad.ObjectiveError, match=message):
            list(run)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"keep": "al"}, embgrad.EmbgradError, "keep is 'al': expected 'all' or 'saliency' or 'table'.*mean 'all'"),
        ({"ahead": -1}, embgrad.BatchError, "ahead is -1: expected a whole number, 0 for no thread"),
        ({"window": 0}, embgrad.BatchError, "window is 0"),
        ({"batch_size": 1.5}, embgrad.BatchError, "batch_size is 1.5"),
        ({"pads": "zeros"}, embgrad.BatchError, "Did you mean 'zero'"),
        ({"at": ""}, embgrad.PointError, "at is ''"),
        ({"add": {"word": np.ones((2, 3, DIM))}}, embgrad.UnsupportedError, r"add\['word'\] has the shape \(2, 3, 4\)"),
        ({"progress": 3}, embgrad.EmbgradError, "progress is 3"),
        ({"compile": True}, embgrad.UnsupportedError, "compile"),
        ({"tokenizer": 3}, embgrad.BatchError, "the tokenizer is of type int"),
    ],
)
def test_options_are_checked_at_once(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        embgrad.stream(model(), texts(2), embgrad.Sum(), **{"tokenizer": tokenizer, **options})


def test_what_keeps_nothing_gives_nothing() -> None:
    run = embgrad.stream(model(), texts(2), embgrad.Sum(), tokenizer=tokenizer, keep="table")
    with pytest.raises(embgrad.EmbgradError, match=r"keeps no result of a batch: expected \.table\(\)"):
        next(run)
    run = embgrad.stream(model(), texts(2), embgrad.Sum(), tokenizer=tokenizer, keep="saliency")
    with pytest.raises(embgrad.EmbgradError, match="keep='saliency' keeps no table gradients"):
        run.table()
    with pytest.raises(embgrad.EmbgradError, match="since to was not given: pass to=folder"):
        run.finish()


def test_free_memory_is_handed_back_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed = []
    monkeypatch.setattr("embgrad.streaming.run.trim", lambda: trimmed.append(True))
    for _ in embgrad.stream(model(), texts(52), embgrad.Sum(), tokenizer=tokenizer, batch_size=1):
        pass
    assert len(trimmed) == 2


def test_a_long_stream_keeps_nothing() -> None:
    """What a result was made of is gone when the next ones are made."""
    held = []
    stream = embgrad.stream(model(), itertools.repeat("abcdef"), embgrad.Sum(), tokenizer=tokenizer, batch_size=2)
    for g in itertools.islice(stream, 300):
        held.append(weakref.ref(g))
    del g
    gc.collect()
    assert sum(one() is not None for one in held) <= 1  # the stream knows the last one
    stream.close()


def test_handing_memory_back_never_fails() -> None:
    trim()


def test_a_table_is_no_source() -> None:
    class Table:
        shape = (2, 2)
        columns = ("text", "label")

        def __iter__(self) -> Any:
            return iter(self.columns)

    with pytest.raises(embgrad.BatchError, match=r"the source is a table of 2 rows, a Table.*: pass one column"):
        embgrad.stream(model(), Table(), embgrad.Sum(), tokenizer=tokenizer)


def test_a_source_whose_length_is_not_known_has_none() -> None:
    class Loader:
        def __len__(self) -> int:
            raise TypeError("has no length")

        def __iter__(self) -> Any:
            return iter(texts(5))

    assert len(list(embgrad.stream(model(), Loader(), embgrad.Sum(), tokenizer=tokenizer, batch_size=2))) == 3


def test_counts_of_numpys_are_counts(tmp_path: Path) -> None:
    class Pieces:
        tokenize = staticmethod(list)

        @staticmethod
        def convert_tokens_to_ids(pieces: list[str]) -> list[int]:
            return [1 + len(piece) % 30 for piece in pieces]

    options: dict[str, Any] = {"tokenizer": Pieces(), "batch_size": np.int64(2), "max_length": np.int64(4)}
    assert len(embgrad.stream(model(), texts(5), embgrad.Sum(), to=tmp_path, **options).finish()) == 3

"""When a stream reads and closes its source, what is raised where, and streams that several threads share."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embgrad
from embgrad.errors import (
    EmbgradError,
)
from tests.unit.streaming.test_stream import expect_same, stream
from tests.unit.streams import (
    by_hand,
    model,
    rows,
    texts,
    tokenizer,
)


def test_a_source_is_read_when_a_result_is_asked_for_one_batch_at_a_time() -> None:
    read = []

    def source() -> Iterator[str]:
        for number in itertools.count():
            read.append(number)
            yield "abc"

    actual = stream(source(), embgrad.Sum(), batch_size=2)
    assert read == []
    for taken in (1, 2):
        next(actual)
        assert len(read) == 2 * taken
    actual.close()


@pytest.mark.parametrize("training", [False, True])
def test_a_source_sees_the_model_in_the_mode_of_its_user(training: bool) -> None:
    built, modes = model(), []

    def source() -> Iterator[str]:
        for text in texts(6):
            modes.append(built.training)
            yield text

    options: dict[str, Any] = {"tokenizer": tokenizer, "batch_size": 1, "training": training}
    actual = list(embgrad.stream(built, source(), embgrad.Logit(0), **options))
    assert (len(actual), modes) == (6, [False] * 6)


class _OwnError(Exception):
    pass


@pytest.mark.parametrize("raised", [_OwnError("mine"), KeyboardInterrupt(), SystemExit(3)])
@pytest.mark.parametrize("where", ["source", "tokenizer"])
def test_exceptions_are_raised_unchanged_after_the_results_before_them(raised: BaseException, where: str) -> None:
    def source() -> Iterator[str]:
        for number in range(9):
            if number == 7 and where == "source":
                raise raised
            yield "z" if number == 7 else "abc"

    def failing(text: str) -> list[int]:
        if text == "z":
            raise raised
        return tokenizer(text)

    actual = embgrad.stream(model(), source(), embgrad.Sum(), tokenizer=failing, batch_size=3)
    assert [len(next(actual).values), len(next(actual).values)] == [3, 3]
    with pytest.raises(type(raised)) as caught:
        next(actual)
    assert caught.value is raised
    with pytest.raises(StopIteration):
        next(actual)


@pytest.mark.parametrize("how", ["close", "with", "end"])
def test_an_exception_while_the_source_is_closed_is_raised(how: str) -> None:
    def source() -> Iterator[str]:
        try:
            yield from texts(12 if how == "end" else 1000)
        finally:
            raise raised

    raised = _OwnError("mine")
    actual = embgrad.stream(model(), source(), embgrad.Sum(), tokenizer=tokenizer, batch_size=3)
    next(actual)
    end = {"close": actual.close, "with": lambda: actual.__exit__(None, None, None), "end": lambda: list(actual)}[how]
    with pytest.raises(_OwnError) as caught:
        end()
    assert caught.value is raised
    actual.close()


def test_a_generator_is_closed_with_its_stream_or_where_the_stream_is_dropped() -> None:
    def source() -> Iterator[str]:
        try:
            while True:
                yield "abc"
        finally:
            ended.append(True)

    ended: list[bool] = []
    unread = source()
    stream(unread, embgrad.Sum()).close()
    assert next(unread, None) is None, "it is closed, though nothing was read"
    begun = stream(source(), embgrad.Sum(), batch_size=2)
    next(begun)
    del begun
    gc.collect()
    assert ended == [True]


def test_several_threads_take_results_from_one_stream_and_none_is_lost(tmp_path: Path) -> None:
    results = stream(rows(60), to=tmp_path / "run", batch_size=2)
    taken: list[Any] = []
    threads = [threading.Thread(target=lambda: [taken.append(result) for result in results]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = by_hand(60, 2)
    order = [result.ids.tobytes() for result in expected]
    expect_same(expected, sorted(taken, key=lambda result: order.index(result.ids.tobytes())))
    assert [result.ids.tobytes() for result in embgrad.open_stream(tmp_path / "run")] == order


def test_another_thread_closes_a_stream_after_the_current_result() -> None:
    making, go_on = threading.Event(), threading.Event()

    def slow(text: str) -> list[int]:
        making.set()
        go_on.wait(20)
        return tokenizer(text)

    stream = embgrad.stream(model(), texts(4), embgrad.Logit(0), tokenizer=slow, batch_size=2)
    closer = threading.Thread(target=lambda: making.wait(20) and stream.close())
    closer.start()
    threading.Timer(0.1, go_on.set).start()
    assert len(next(stream).values) == 2
    closer.join()
    assert list(stream) == []


@pytest.mark.parametrize("what", ["asked for its next result", "closed"])
def test_a_stream_that_its_own_source_uses_is_refused(what: str) -> None:
    def source() -> Iterator[str]:
        yield from texts(2)
        if what == "closed":
            stream.close()
        yield from next(stream)

    stream: Any = embgrad.stream(model(), source(), embgrad.Logit(0), tokenizer=tokenizer, batch_size=2)
    assert len(next(stream).values) == 2
    with pytest.raises(EmbgradError, match=f"the stream is {what} from within the model, the objective"):
        next(stream)
    assert list(stream) == []


def test_with_closes_a_stream_and_a_closed_stream_is_empty() -> None:
    with stream(itertools.repeat("abc"), embgrad.Sum(), batch_size=2) as actual:
        next(actual)
    assert list(actual) == []
    actual.close()

"""Streams that are read ahead: what is read, which thread runs and closes a source, and what is raised where."""

from __future__ import annotations

import gc
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.errors import (
    EmbgradError,
)
from tests.unit.streaming.test_stream import expect_same, stream, with_forward
from tests.unit.streaming.threads import stream_threads, wait_until
from tests.unit.streams import (
    by_hand,
    forward,
    model,
    rows,
    texts,
    tokenizer,
)

pytestmark = pytest.mark.usefixtures("no_thread_left")


def test_nothing_is_read_before_the_first_result_and_a_bounded_number_ahead() -> None:
    read = []

    def source() -> Iterator[str]:
        for number in itertools.count():
            read.append(number)
            yield "abc"

    actual = embgrad.stream(model(), source(), embgrad.Sum(), tokenizer=tokenizer, batch_size=2, ahead=3)
    assert read == []
    next(actual)
    time.sleep(0.2)
    assert 2 <= len(read) <= 2 * (1 + 3 + 1)  # the one taken, those ready, the one being made
    actual.close()


def test_a_generator_is_closed_in_the_thread_that_runs_it() -> None:
    closed = []

    def source() -> Iterator[str]:
        try:
            while True:
                yield "abc"
        finally:
            closed.append(threading.current_thread().name)

    for _ in stream(source(), embgrad.Sum(), batch_size=2):
        break
    gc.collect()
    wait_until(lambda: closed)
    assert closed == ["embgrad.stream"]


@pytest.mark.parametrize("training", [False, True])
def test_a_source_sees_the_model_in_the_mode_of_its_user(training: bool) -> None:
    amid_a_pass, modes = threading.Event(), []

    def slow(self: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Any:
        amid_a_pass.set()
        time.sleep(0.2)
        amid_a_pass.clear()
        return forward(self, input_ids, attention_mask)

    built = with_forward(slow)

    def source() -> Iterator[str]:
        for text in texts(6):
            amid_a_pass.wait(0.1)  # where it is read beside one
            modes.append(built.training)
            yield text

    options: dict[str, Any] = {"tokenizer": tokenizer, "batch_size": 1, "training": training}
    actual = list(embgrad.stream(built, source(), embgrad.Logit(0), **options))
    assert (len(actual), modes) == (6, [False] * 6)


class _OwnError(Exception):
    pass


@pytest.mark.parametrize("raised", [_OwnError("mine"), KeyboardInterrupt(), SystemExit(3)])
@pytest.mark.parametrize("where", ["source", "tokenizer"])
@pytest.mark.parametrize("ahead", [0, 2])
def test_exceptions_are_raised_unchanged_after_the_results_before_them(
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

    actual = embgrad.stream(model(), source(), embgrad.Sum(), tokenizer=failing, batch_size=3, ahead=ahead)
    assert [len(next(actual).values), len(next(actual).values)] == [3, 3]
    with pytest.raises(type(raised)) as caught:
        next(actual)
    assert caught.value is raised
    with pytest.raises(StopIteration):
        next(actual)


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("how", ["close", "with", "end"])
def test_an_exception_while_the_source_is_closed_is_raised(how: str, ahead: int) -> None:
    def source() -> Iterator[str]:
        try:
            yield from texts(12 if how == "end" else 1000)
        finally:
            raise raised

    raised = _OwnError("mine")
    actual = embgrad.stream(model(), source(), embgrad.Sum(), tokenizer=tokenizer, batch_size=3, ahead=ahead)
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
    for ahead in (0, 1):
        unread = source()
        stream(unread, embgrad.Sum(), ahead=ahead).close()
        assert next(unread, None) is None, "it is closed, though nothing was read"
        begun = stream(source(), embgrad.Sum(), batch_size=2, ahead=ahead)
        next(begun)
        del begun
        gc.collect()
        wait_until(lambda: ended == [True])
        ended.clear()


def test_a_consumer_that_raises_leaves_no_thread() -> None:
    def consume() -> None:
        for _ in stream(itertools.repeat("abc"), embgrad.Sum(), batch_size=2):
            raise _OwnError

    with pytest.raises(_OwnError):
        consume()
    wait_until(lambda: not stream_threads())


@pytest.mark.parametrize("ahead", [0, 2])
def test_several_threads_take_results_from_one_stream_and_none_is_lost(ahead: int, tmp_path: Path) -> None:
    results = stream(rows(60), to=tmp_path / "run", batch_size=2, ahead=ahead)
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

    stream = embgrad.stream(model(), texts(4), embgrad.Logit(0), tokenizer=slow, batch_size=2, ahead=0)
    closer = threading.Thread(target=lambda: making.wait(20) and stream.close())
    closer.start()
    threading.Timer(0.1, go_on.set).start()
    assert len(next(stream).values) == 2
    closer.join()
    assert list(stream) == []


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("what", ["asked for its next result", "closed"])
def test_a_stream_that_its_own_source_uses_is_refused(what: str, ahead: int) -> None:
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
    with pytest.raises(EmbgradError, match=f"the stream is {what} from within the model, the objective"):
        next(stream)
    assert list(stream) == []


def test_a_source_that_asks_for_a_result_while_nobody_waits_for_one_is_refused() -> None:
    def source() -> Iterator[str]:
        yield from texts(2)
        free.wait(20)
        try:
            yield from next(stream)
        finally:
            asked.set()

    free, asked = threading.Event(), threading.Event()
    stream: Any = embgrad.stream(model(), source(), embgrad.Logit(0), tokenizer=tokenizer, batch_size=2, ahead=1)
    assert len(next(stream).values) == 2
    free.set()
    assert asked.wait(20)
    with pytest.raises(EmbgradError, match="the stream is asked for its next result from within the model"):
        next(stream)


def test_a_source_that_is_read_ahead_may_close_its_stream_between_results() -> None:
    taken, closed = threading.Event(), threading.Event()

    def source() -> Iterator[str]:
        yield from texts(2)
        taken.wait(20)
        stream.close()
        closed.set()
        yield from texts(2)

    stream = embgrad.stream(model(), source(), embgrad.Logit(0), tokenizer=tokenizer, batch_size=2, ahead=1)
    assert len(next(stream).values) == 2
    taken.set()
    assert closed.wait(20)
    assert list(stream) == []


def test_with_closes_a_stream_and_a_closed_stream_is_empty() -> None:
    with stream(itertools.repeat("abc"), embgrad.Sum(), batch_size=2) as actual:
        next(actual)
        assert stream_threads()
    assert not stream_threads()
    assert list(actual) == []
    actual.close()

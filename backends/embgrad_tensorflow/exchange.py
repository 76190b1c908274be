"""Runs a kept function, which asks what the caller's thread answers, or TensorFlow's own where no code of the user's is run."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

__all__ = ["Answer", "FailedError", "ask", "is_answering", "run_answering"]

#: What answers a question: its name, arrays, which are TensorFlow's memory, → arrays.
Answer = Callable[[str, Sequence[np.ndarray]], Sequence[Any]]

#: The runs under way, by the number that the function is given.
_open: Final[dict[int, _Run]] = {}
_numbers = itertools.count(1)
_local = threading.local()


def ask(number: Any, name: str, tensors: Sequence[Any], dtypes: Sequence[Any]) -> list[Any]:
    """Add a question to the graph that is being traced; gives the answer's tensors, which have no gradient.

    Args:
        number: the tensor that tells the run, which the function is given.
        name: what answers it.
        tensors: what goes with the question.
        dtypes: those of the answer's arrays.
    """

    def asked(run: Any, *values: Any) -> list[Any]:
        return _open[int(run)].ask(name, values)

    # the inputs of a py_function would be kept for a gradient until the next run
    return list(tf.numpy_function(asked, [number, *tensors], list(dtypes)))


def is_answering() -> bool:
    """Whether a function waits for what this thread answers. It holds one of TensorFlow's threads, of which there may be one."""
    return bool(getattr(_local, "answering", False))


def run_answering(
    function: Any, arguments: Sequence[Any], answer: Answer, blank: Answer, *, anywhere: bool = False
) -> Sequence[Any]:
    """What a ConcreteFunction gives. What an answer raises is raised here, as it was.

    The caller's thread gives the answers: they may hold its locks, use its thread-local state and be interrupted, as any of
    its code. Meanwhile another runs the function.

    Args:
        function: takes a run's number and the arguments.
        arguments: tensors.
        answer: answers its questions.
        blank: answers them likewise once an answer has failed, so that the function comes to its end in silence: an error in
            it would be logged by TensorFlow, where nobody could tell what it is.
        anywhere: the answers may be given in any thread: the function runs in the caller's, and they are given in the one that
            it asks in, which saves the way there and back.

    Raises:
        FailedError: the function failed, and no answer did.
    """
    number = next(_numbers)
    run = _open[number] = (_Direct if anywhere else _Run)(answer, blank)
    try:
        return run.execute(function, [tf.constant(number, tf.int64), *arguments])
    finally:
        del _open[number]


class FailedError(Exception):
    """A function failed by itself; says how."""


class _Run:
    """One run of a kept function."""

    def __init__(self, answer: Answer, blank: Answer) -> None:
        self._answer = answer
        self._blank = blank
        self._questions: queue.SimpleQueue[_Question | None] = queue.SimpleQueue()
        self._waiting: _Question | None = None
        self._failure: BaseException | None = None
        self._raised: BaseException | None = None
        self._result: Sequence[Any] = ()

    def ask(self, name: str, values: Sequence[Any]) -> list[Any]:
        """In TensorFlow's thread: the caller's answer."""
        question = _Question(name, values)
        self._questions.put(question)
        return question.wait()

    def execute(self, function: Any, arguments: Sequence[Any]) -> Sequence[Any]:
        """In the caller's thread: runs the function to its end, also where an answer fails."""
        thread = threading.Thread(
            target=self._call, args=(function, arguments, context.context().device_name), daemon=True
        )
        thread.start()
        while True:
            try:
                while self._serve():
                    pass
                thread.join()
                break
            except BaseException as error:  # an interrupt, too: the function has to end before anything is put back
                self._failure = self._failure or error
        return self._ended()

    def _ended(self) -> Sequence[Any]:
        """The result, or what was raised."""
        if self._failure is not None:
            raise self._failure
        if isinstance(self._raised, Exception):
            raise FailedError(f"{type(self._raised).__name__}: {_first_line(self._raised)}") from self._raised
        if self._raised is not None:
            raise self._raised
        return self._result

    def _serve(self) -> bool:
        """Answer one question; whether there may be more."""
        if self._waiting is None:
            self._waiting = self._questions.get()
        question = self._waiting
        if question is None:
            return False
        answer = self._answer if self._failure is None else self._blank
        _local.answering = True
        try:
            question.answer = list(answer(question.name, question.values))
        finally:
            _local.answering = False
        question.done()
        self._waiting = None
        return True

    def _call(self, function: Any, arguments: Sequence[Any], device: str) -> None:
        try:
            with tf.device(device or None):
                self._result = function(*arguments)
        except BaseException as error:
            self._raised = error
        finally:
            self._questions.put(None)


class _Direct(_Run):
    """One run whose answers are given in TensorFlow's thread."""

    def ask(self, name: str, values: Sequence[Any]) -> list[Any]:
        """The answer."""
        if self._failure is None:
            try:
                return list(self._answer(name, values))
            except BaseException as error:
                self._failure = error
        return list(self._blank(name, values))

    def execute(self, function: Any, arguments: Sequence[Any]) -> Sequence[Any]:
        """See `_Run.execute`. An interrupt is raised once the function has come to its end."""
        try:
            self._result = function(*arguments)
        except BaseException as error:
            self._raised = error
        return self._ended()


class _Question:
    """What a function asks, until it is answered."""

    def __init__(self, name: str, values: Sequence[Any]) -> None:
        self.name = name
        self.values = values
        self.answer: list[Any] = []
        self._done = threading.Event()

    def wait(self) -> list[Any]:
        """The answer."""
        self._done.wait()
        return self.answer

    def done(self) -> None:
        """There is an answer."""
        self._done.set()


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "")[:160]

"""Makes one call and judges it: a right result, a refusal with a message, or a failure."""

from __future__ import annotations

import contextlib
import io
import traceback
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

import embgrad
from embgrad.testing.snapshot import Snapshot
from tests.fuzz.cases import Case, Wrong

#: The warnings of MXNet and of the frameworks themselves.
FOREIGN: Final = (DeprecationWarning, PendingDeprecationWarning)


@dataclass(frozen=True)
class Verdict:
    """The outcome of a call.

    Attributes:
        kind: "right", "refused", or "failed".
        error: the class of the raised error, if any.
        said: the reasons of a failure.
        warned: the number of EmbgradWarnings.
    """

    kind: str
    error: str | None = None
    said: str = ""
    warned: int = 0


def verdict_of(case: Case, seed: int) -> Verdict:
    looks = {f"model {number}": partial(world.harness.state, world.model) for number, world in enumerate(case.worlds)}
    before = Snapshot(looks, case.arguments, [world.harness for world in case.worlds], seed)
    raised: BaseException | None = None
    result: Any = None
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught, _quiet():
        warnings.simplefilter("always")
        try:
            result = case.run()
        except (Exception, KeyboardInterrupt) as error:
            raised = error
    said += _warning_failures(case, [warning.message for warning in caught])
    said += [f"left behind: {path} {how}" for path, how in before.differences(case.random_moves).items()]
    error = None if raised is None else type(raised).__name__
    if raised is not None:
        said += _error_failures(case, raised)
    elif case.judge is None:
        said.append(f"expected a refusal, and it gave {_short(result)}")
    else:
        said += _result_failures(case, result)
        if not said:
            said += _ownership_failures(case, before, result)
    warned = sum(issubclass(warning.category, embgrad.EmbgradWarning) for warning in caught)
    if said:
        return Verdict("failed", error, "\n".join(said), warned)
    return Verdict("right" if raised is None else "refused", error, "", warned)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def _warning_failures(case: Case, caught: list[Any]) -> Iterator[str]:
    for message in caught:
        if isinstance(message, embgrad.EmbgradWarning):
            if not case.warns:
                yield f"an EmbgradWarning that is not expected: {message}"
            elif not str(message).strip():
                yield "an EmbgradWarning that says nothing"
        elif not (isinstance(message, FOREIGN) or str(message).startswith(case.foreign)):
            yield f"a warning of another kind: {type(message).__name__}: {message}"


def _error_failures(case: Case, raised: BaseException) -> Iterator[str]:
    if not isinstance(raised, case.refused):
        shown = "".join(traceback.format_exception(type(raised), raised, raised.__traceback__))
        expected = " or ".join(error.__name__ for error in case.refused) or "a result"
        yield f"{type(raised).__name__}: {raised}\nexpected {expected}\n{shown}"
    elif not "".join(map(str, raised.args)).strip():  # embgrad's errors add where to read on
        yield f"{type(raised).__name__} that says nothing"


def _result_failures(case: Case, result: Any) -> Iterator[str]:
    assert case.judge is not None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            case.judge(result)
    except Wrong as wrong:
        yield str(wrong)
    except Exception:
        yield f"the result cannot be judged:\n{traceback.format_exc()}"


def _ownership_failures(case: Case, before: Snapshot, result: Any) -> Iterator[str]:
    """Yield failures where writing into the result's arrays changes anything else."""
    for array in _arrays_in(result):
        if not (array.flags.c_contiguous and array.flags.writeable):
            yield f"an array of the result is {'not contiguous' if array.flags.writeable else 'read-only'}"
            continue
        array[...] = 7
    for path, how in before.differences(random_moves=True).items():
        yield f"the result shares memory: {path} {how}"


def _arrays_in(value: Any) -> Iterator[np.ndarray]:
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, embgrad.results.EmbeddingGradients):
        for array in (value.values, value.activations, value.before):
            if array is not None:
                yield array
    elif isinstance(value, embgrad.results.TableGradients):
        yield from (value.lookup, value.head)
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from _arrays_in(entry)


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as error:  # a result that cannot be shown is a finding, too
        text = f"a {type(value).__name__}, whose repr raises {error!r}"
    return text if len(text) < 300 else text[:297] + "..."

"""The checkpoint of a search: its state after the last step, from which the same call resumes."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np

from embgrad.common.files import check_path, once
from embgrad.common.safetensors import read_tensors, write_tensors
from embgrad.engine.origins import model_name
from embgrad.errors import EmbgradError, FileFormatError, brief
from embgrad.objectives.native import NativeObjective
from embgrad.results.history import ARRAYS, History
from embgrad.streaming.digest import digest_of, tokenizer_digest
from embgrad.streaming.run_identity import Names, weights_digest
from embgrad.streaming.writer import changes_between
from embgrad.token_search.method import SearchMethod, State
from embgrad.token_search.problem import Problem
from embgrad.token_search.texts import Texts

__all__ = ["Checkpoint", "expect_target"]

#: The version of the format, and the name of the entry in the file's metadata.
FORMAT, ENTRY = 1, "embgrad_search"

#: The least time between two writes in seconds, and the least ratio of it to the time that a write took.
EVERY, SHARE = 1.0, 20.0

_TEXTS: Final = ("examples", "ids", "real", "types", "free")


def expect_target(to: Any) -> Path | None:
    """Return the path of the file, None for none."""
    if to is None:
        return None
    path = check_path(to, "to")
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else "lies in a folder that does not exist"
        raise EmbgradError(
            f"to is {brief(str(path))}, which {what}: expected the name of a file in a folder that exists"
        )
    return path


class Checkpoint(contextlib.AbstractContextManager["Checkpoint"]):
    """The file of a search's state: read at the beginning, and written after steps, at most once a second, and on exit.

    An interruption loses the step that it interrupts. States are not modified in place, so that the last one can be written then.

    Args:
        path: the file, which need not exist; None reads and writes nothing.

    Attributes:
        steps: the number of steps that the file holds; 0 without a file.
        state: the state after them; None without a file.
        history: the course until then, likewise.
    """

    def __init__(
        self, path: Path | None, method: SearchMethod, problem: Problem, tokenizer: Any, run_id: str | None = None
    ) -> None:
        self.steps, self.state, self.history = 0, None, None
        self._path = path
        self._pending: Callable[[], None] | None = None
        self._next = 0.0
        if path is not None:
            self._run = _identity(method, problem, tokenizer, Names(run_id))
            if path.exists():
                self._read(path, method.steps)
        if self.history is not None:
            problem.queries.evaluations[:] = self.history.evaluations[-1]
            problem.queries.gradients[:] = self.history.gradients[-1]

    steps: int
    state: State | None
    history: History | None

    def put(self, steps: int, state: State, history: Callable[[], History]) -> None:
        """Write the state after so many steps, now or later.

        Args:
            steps: the number of steps.
            history: returns the course until then, or until later.
        """
        if self._path is None:
            return
        self._pending = lambda: self._write(steps, state, history())
        if time.perf_counter() >= self._next:
            self._flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._flush()

    def _flush(self) -> None:
        if self._pending is not None:
            began = time.perf_counter()
            self._pending()
            self._pending = None
            now = time.perf_counter()
            self._next = now + max(EVERY, SHARE * (now - began))

    def _write(self, steps: int, state: State, history: History) -> None:
        assert self._path is not None
        arrays = dict(_arrays(state, History(*(getattr(history, name)[: steps + 1] for name in ARRAYS))))
        # Files of results have no truth values; where this one has none either, their reader can say what it is.
        flags = [name for name, array in arrays.items() if array.dtype == bool]
        arrays |= {name: arrays[name].astype(np.int64) for name in flags}
        entry = {
            "format": FORMAT,
            "steps": steps,
            "run": self._run,
            "flags": flags,
            "sha256": digest_of([steps, flags, arrays]),
        }
        write_tensors(self._path, arrays, {ENTRY: json.dumps(entry)})

    def _read(self, path: Path, most: int) -> None:
        arrays, metadata = read_tensors(path)
        entry = _entry(path, metadata)
        if entry["format"] != FORMAT:
            raise FileFormatError(
                f"{path} holds a search in format {brief(entry['format'])}, and this embgrad reads {FORMAT}: continue it with "
                "the embgrad that wrote it, or name another file"
            )
        if changes := list(changes_between(entry["run"], json.loads(json.dumps(self._run)))):
            raise FileFormatError(
                f"{path} holds another search: {'; '.join(changes)}. Repeat the call that wrote it to go on, name another file, "
                "or remove this one"
            )
        if entry["sha256"] != digest_of([entry["steps"], entry["flags"], arrays]):
            raise FileFormatError(f"{path} was changed after it was written: remove it, or name another file")
        if entry["steps"] > most:
            raise FileFormatError(
                f"{path} holds {entry['steps']} steps, and the method takes {most}: raise steps to go on, or name another file"
            )
        arrays |= {name: arrays[name].astype(bool) for name in entry["flags"]}
        self.steps, (self.state, self.history) = entry["steps"], _read_back(arrays)


def _entry(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    try:
        entry = json.loads(metadata[ENTRY], object_pairs_hook=once)
    except (KeyError, ValueError, RecursionError):
        entry = None
    fields = {"format": int, "steps": int, "run": dict, "flags": list, "sha256": str}
    if not isinstance(entry, dict) or any(type(entry.get(name)) is not kind for name, kind in fields.items()):
        raise FileFormatError(
            f"{path} is not the file of a search: expected what embgrad.search(..., to=...) wrote, or the name of a new file"
        )
    return entry


def _identity(method: SearchMethod, problem: Problem, tokenizer: Any, names: Names) -> dict[str, Any]:
    """Return what identifies a search, by argument, as JSON-compatible values. The number of steps is not a part of it."""
    bound, objective = problem.bound, problem.objective
    arguments = dict(names.of_method(method))
    arguments.pop("steps", None)
    return {
        "model": model_name(bound),
        "weights": weights_digest(bound),
        "call": names.of_function("call", bound.call),
        "batch": names.of("the batch", problem.batch),
        "objective": names.of_objective(objective.function if isinstance(objective, NativeObjective) else objective),
        "method": arguments,
        **problem.rule.describe(),
        "positions": digest_of(problem.free),
        "allowed": digest_of(problem.allowed),
        **({"training": True} if problem.training else {}),
        "stable": None if problem.stability is None else names.of("tokenizer", tokenizer, tokenizer_digest),
        **({} if names.run_id is None else {"run_id": names.run_id}),
    }


def _arrays(state: State, history: History) -> Iterator[tuple[str, np.ndarray]]:
    for side in ("best", "current"):
        for name in _TEXTS:
            if (array := getattr(getattr(state, side), name)) is not None:
                yield f"{side}.{name}", array
    yield "objective", state.objective
    yield "values", state.values
    for name, array in state.arrays.items():
        yield f"arrays.{name}", array
    for name in ARRAYS:
        yield f"history.{name}", getattr(history, name)


def _read_back(arrays: Mapping[str, np.ndarray]) -> tuple[State, History]:
    def under(name: str) -> dict[str, np.ndarray]:
        return {key.partition(".")[2]: array for key, array in arrays.items() if key.startswith(f"{name}.")}

    def texts(side: str) -> Texts:
        own: dict[str, Any] = {"types": None, **under(side)}
        return Texts(**own)

    state = State(texts("best"), arrays["objective"], texts("current"), arrays["values"], under("arrays"))
    return state, History(**under("history"))

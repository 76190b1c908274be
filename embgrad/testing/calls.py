"""Calls of every public function that takes a model, for the conformance suite's models."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

import embgrad
from embgrad.testing.faults import come_by

__all__ = ["CALLS", "WITHOUT_A_MODEL", "Asked", "PublicCall"]


class _Told(embgrad.CrossEntropy):
    """An objective of a user's class, which reports its evaluation to `come_by`."""

    def evaluate(self, output: np.ndarray, batch: embgrad.TokenBatch) -> tuple[np.ndarray, np.ndarray]:
        come_by("objective")
        return super().evaluate(output, batch)


_Told.__module__ = "user"  # embgrad would run an objective of its own package in any thread


@dataclass(frozen=True)
class Asked:
    """The arguments of calls. The callbacks report each of their calls to `faults.come_by`, by the names of their options.

    Attributes:
        model: a model of the architecture `interrupted`.
        batch: the batch that it runs on.
        labels: a class for each example.
        logit: a native objective in the framework, as `Harness.logit` returns it.
        step: a step of a user's training loop, as in `Harness.step`, which must not change the weights.
        instead: arguments by name that replace those of a call.
    """

    model: Any
    batch: embgrad.TokenBatch
    labels: np.ndarray
    logit: Callable[[Any], Any]
    step: Callable[[Any, np.ndarray, np.ndarray], None]
    instead: Mapping[str, Any] = field(default_factory=dict)

    def given(self, **options: Any) -> dict[str, Any]:
        """Return the arguments of a call except the model."""
        return {"batch": self.batch, "objective": _Told(self.labels), **options, **self.instead}

    def native(self, outputs: Any) -> Any:
        """Return the value of a native objective."""
        come_by("native objective")
        return self.logit(outputs)

    def call(self, model: Any, inputs: Any) -> Any:
        """Call the model, as a user's `call=` function does."""
        returned = model(inputs["input_ids"])
        come_by("call")
        return returned

    @property
    def padded(self) -> embgrad.TokenBatch:
        """The batch, with padding in the last example."""
        ids, mask = self.batch.ids.copy(), np.ones(self.batch.shape, bool)
        ids[-1, -2:], mask[-1, -2:] = 0, False
        return embgrad.TokenBatch(ids, mask)

    def train(self) -> None:
        """Run one step of the user's training loop."""
        self.step(self.model, self.batch.ids, self.labels)

    def gradients(self, **options: Any) -> Any:
        """Call `embgrad.gradients` with these arguments."""
        return embgrad.gradients(self.model, **self.given(**options))


@dataclass(frozen=True)
class PublicCall:
    """A call of a public function.

    Attributes:
        function: the function's name in `embgrad`.
        make: makes the call.
        passes: the places that the call must reach at least, see `faults.come_by`.
        takes: the names of the arguments that `Asked.instead` may replace.
        needs: the abilities that the backend needs for it.
        training: whether random generators may advance.
        own: the user's actions during the call, whose effects are not counted as the call's.
    """

    function: str
    make: Callable[[Asked], Any]
    passes: frozenset[str]
    takes: frozenset[str] = frozenset()
    needs: tuple[str, ...] = ()
    training: bool = False
    own: Callable[[Asked], None] | None = None

    @property
    def keeps_a_trace(self) -> bool:
        """Return whether the call keeps a trace, so that it reaches places in the model only once, during tracing."""
        return "compile" in self.needs


def _changes() -> dict[str, Any]:
    """Return one change for each option, none of which modifies a value."""

    def telling(place: str, gives: Callable[[np.ndarray], Any]) -> Callable[[np.ndarray], Any]:
        def function(value: np.ndarray) -> Any:
            come_by(place)
            return gives(value)

        return function

    return {
        "override": {"layer.0": telling("override", lambda value: value)},
        "add": {"layer.1": telling("add", lambda value: 0 * value)},
        "edit": {"layer.2": telling("edit", lambda gradient: gradient), "layer.1": lambda gradient: gradient},
    }


def _twice(one: Asked, **options: Any) -> Any:
    """Make a call with `compile=True` twice: the first creates the trace, the second uses it."""
    one.gradients(compile=True, **options)
    return one.gradients(compile=True, **options)


def _capture(at: str) -> Callable[[Asked], Any]:
    def make(one: Asked) -> Any:
        with embgrad.capture(one.model, **{"at": at, **one.instead}) as tap:
            one.train()
        return tap.mean(), tap.sum(), tap.steps

    return make


def _stream(one: Asked, **options: Any) -> Any:
    given = one.given(objective=embgrad.PerBatch(lambda batch: _Told(one.labels)), **options)
    return list(embgrad.stream(one.model, [given.pop("batch")] * 2, given.pop("objective"), **given))


def _stream_left(one: Asked) -> Any:
    objective = embgrad.PerBatch(lambda batch: _Told(one.labels))
    with embgrad.stream(one.model, iter([one.batch] * 4), objective, ahead=1) as results:
        return next(results)


def _stream_to_a_folder(one: Asked) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return _stream(one, to=Path(folder) / "run", keep="saliency")


def _golden(one: Asked) -> Any:
    """Check a golden file against the gradient of another objective, so that the difference is diagnosed on the models."""
    with tempfile.TemporaryDirectory() as folder:
        golden = embgrad.golden(Path(folder) / "g.safetensors")
        golden.update(embgrad.gradients(one.model, one.batch, embgrad.CrossEntropy(one.labels)))
        other = embgrad.gradients(one.model, one.batch, embgrad.CrossEntropy(one.labels[::-1]))
        try:
            golden.check(other, models=(one.model, one.model))
        except embgrad.GoldenError as error:
            return error
    raise AssertionError("the golden file agreed with the gradient of another objective")


def _compare(one: Asked) -> Any:
    a, b = (
        embgrad.gradients(one.model, one.batch, embgrad.CrossEntropy(labels), call=one.call)
        for labels in (one.labels, one.labels[::-1])
    )
    return embgrad.compare(a, b, models=(one.model, one.model), call=one.call)


def _bisect(one: Asked) -> Any:
    objective = embgrad.CrossEntropy(one.labels)
    return embgrad.bisect(one.model, one.model, one.batch, objective, call_a=one.call, call_b=one.call)


_BOTH: Final = frozenset({"forward", "backward"})
_OBJECTIVE: Final = _BOTH | {"objective"}
_CHANGED: Final = _OBJECTIVE | {"override", "add", "edit"}
_ARGUMENTS: Final = frozenset({"batch", "objective"})
_OPTIONS: Final = _ARGUMENTS | {"at", "override", "edit"}
_POINTS: Final = ["layer.0", "layer.2"]

#: All calls by name.
CALLS: Final[Mapping[str, PublicCall]] = {
    "gradients": PublicCall("gradients", lambda one: one.gradients(), _OBJECTIVE, _OPTIONS),
    "gradients of a native objective": PublicCall(
        "gradients", lambda one: one.gradients(objective=one.native), _BOTH | {"native objective"}, needs=("native",)
    ),
    "gradients, called by the user": PublicCall(
        "gradients", lambda one: one.gradients(call=one.call), _OBJECTIVE | {"call"}, _OPTIONS
    ),
    "gradients at points, with changes": PublicCall(
        "gradients",
        lambda one: one.gradients(at=_POINTS, **_changes()),
        _CHANGED,
        _ARGUMENTS,
        ("modules", "override", "add", "edit"),
    ),
    "gradients, split": PublicCall(
        "gradients", lambda one: one.gradients(split=True), _OBJECTIVE, _OPTIONS, ("split",)
    ),
    "gradients in micro-batches": PublicCall(
        "gradients",
        lambda one: one.gradients(at=_POINTS, batch_size=2, progress=lambda done, total: None, **_changes()),
        _CHANGED,
        frozenset(),
        ("modules", "override", "add", "edit"),
    ),
    "gradients, checked": PublicCall("gradients", lambda one: one.gradients(check=True), _OBJECTIVE, needs=("add",)),
    "gradients, in training": PublicCall(
        "gradients", lambda one: one.gradients(training=True), _OBJECTIVE, _OPTIONS, ("training",), training=True
    ),
    "gradients, compiled": PublicCall("gradients", _twice, frozenset({"objective"}), _OPTIONS, ("compile",)),
    "gradients, compiled, with changes": PublicCall(
        "gradients",
        lambda one: _twice(one, at=_POINTS, **_changes()),
        _CHANGED - _BOTH,
        _ARGUMENTS,
        ("compile", "modules", "override", "add", "edit"),
    ),
    "points": PublicCall(
        "points",
        lambda one: embgrad.points(one.model, one.instead.get("batch", one.batch), call=one.call),
        frozenset({"forward", "call"}),
        frozenset({"batch"}),
    ),
    "table_gradients": PublicCall(
        "table_gradients",
        lambda one: embgrad.table_gradients(one.model, **one.given(call=one.call)),
        _OBJECTIVE | {"call"},
        _ARGUMENTS | {"at"},
        ("tables",),
    ),
    "parameter_gradients": PublicCall(
        "parameter_gradients",
        lambda one: embgrad.parameter_gradients(one.model, **one.given(call=one.call)),
        _OBJECTIVE | {"call"},
        _ARGUMENTS,
        ("parameters",),
    ),
    "padding_report": PublicCall(
        "padding_report",
        lambda one: embgrad.padding_report(one.model, **one.given(batch=one.padded, call=one.call)),
        _OBJECTIVE | {"call"},
        _ARGUMENTS | {"at"},
        ("tables",),
    ),
    "capture": PublicCall("capture", _capture("word"), _BOTH, frozenset({"at"}), ("capture",), own=Asked.train),
    "capture of a layer": PublicCall(
        "capture", _capture("layer.1"), _BOTH, needs=("modules", "capture"), own=Asked.train
    ),
    "stream": PublicCall("stream", _stream, _OBJECTIVE, _ARGUMENTS | {"at", "edit"}),
    "stream, left before its end": PublicCall("stream", _stream_left, _OBJECTIVE),
    "stream to a folder": PublicCall("stream", _stream_to_a_folder, _OBJECTIVE, needs=("weights",)),
    "compare": PublicCall("compare", _compare, _BOTH | {"call"}, needs=("weights",)),
    "bisect": PublicCall("bisect", _bisect, _BOTH | {"call"}, needs=("modules", "weights")),
    "golden": PublicCall("golden", _golden, _BOTH, needs=("weights",)),
}

#: The public functions that take no model.
WITHOUT_A_MODEL: Final = frozenset(
    {
        "clipped_table",
        "encode",
        "list_backends",
        "load",
        "load_bert",
        "open_stream",
        "refresh_backends",
        "save",
        "table_norms",
        "table_products",
    }
)

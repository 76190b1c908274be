"""Calls of every public function that takes a model, for the conformance suite's models."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

import embgrad
from embgrad.testing.faults import obtain

__all__ = ["CALLS", "OF_OTHER_MODELS", "WITHOUT_A_MODEL", "Asked", "PublicCall"]


class _ReportingObjective(embgrad.CrossEntropy):
    """An objective of a user's class, which reports its evaluation to `obtain`."""

    def evaluate(self, output: np.ndarray, batch: embgrad.TokenBatch) -> tuple[np.ndarray, np.ndarray]:
        obtain("objective")
        return super().evaluate(output, batch)


_ReportingObjective.__module__ = "user"  # embgrad would run an objective of its own package in any thread


@dataclass(frozen=True)
class Asked:
    """The arguments of calls. The callbacks report each of their calls to `faults.obtain`, by the names of their options.

    Attributes:
        model: a model of the architecture `interrupted`.
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

    def list_arguments(self, **options: Any) -> dict[str, Any]:
        """Return the arguments of a call except the model."""
        return {"batch": self.batch, "objective": _ReportingObjective(self.labels), **options, **self.instead}

    def native(self, outputs: Any) -> Any:
        """Return the value of a native objective."""
        obtain("native objective")
        return self.logit(outputs)

    def call(self, model: Any, inputs: Any) -> Any:
        """Call the model, as a user's `call=` function does."""
        returned = model(inputs["input_ids"])
        obtain("call")
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
        return embgrad.gradients(self.model, **self.list_arguments(**options))


@dataclass(frozen=True)
class PublicCall:
    """A call of a public function.

    Attributes:
        passes: the places that the call must reach at least, see `faults.obtain`.
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

    def reporting(name: str, result_of: Callable[[np.ndarray], Any]) -> Callable[[np.ndarray], Any]:
        def function(value: np.ndarray) -> Any:
            obtain(name)
            return result_of(value)

        return function

    return {
        "override": {"layer.0": reporting("override", lambda value: value)},
        "add": {"layer.1": reporting("add", lambda value: 0 * value)},
        "edit": {"layer.2": reporting("edit", lambda gradient: gradient), "layer.1": lambda gradient: gradient},
    }


def _twice(arguments: Asked, **options: Any) -> Any:
    """Make a call with `compile=True` twice: the first creates the trace, the second uses it."""
    arguments.gradients(compile=True, **options)
    return arguments.gradients(compile=True, **options)


def _capture(at: str) -> Callable[[Asked], Any]:
    def make(arguments: Asked) -> Any:
        with embgrad.capture(arguments.model, **{"at": at, **arguments.instead}) as tap:
            arguments.train()
        return tap.mean(), tap.sum(), tap.steps

    return make


def _perturb(arguments: Asked) -> Any:
    add = {"word": np.zeros(()), "layer.1": lambda value: 0 * value}
    with embgrad.perturbed(arguments.model, **{"add": add, **arguments.instead}) as perturbation:
        arguments.train()
    return perturbation.passes


def _use(function: Callable[..., Any], **options: Any) -> Callable[[Asked], Any]:
    """Return what makes a call of `function` with a user's `call=` and `options`, of which a function gets the arguments."""

    def make(arguments: Asked) -> Any:
        values = {name: option(arguments) if callable(option) else option for name, option in options.items()}
        return function(arguments.model, **arguments.list_arguments(call=arguments.call, **values))

    return make


def _size(arguments: Asked) -> int:
    """Return the number of examples; some of the models take no other."""
    return len(arguments.batch)


def _stream(arguments: Asked, **options: Any) -> Any:
    kwargs = arguments.list_arguments(
        objective=embgrad.PerBatch(lambda batch: _ReportingObjective(arguments.labels)), **options
    )
    return list(embgrad.stream(arguments.model, [kwargs.pop("batch")] * 2, kwargs.pop("objective"), **kwargs))


def _stream_left(arguments: Asked) -> Any:
    objective = embgrad.PerBatch(lambda batch: _ReportingObjective(arguments.labels))
    with embgrad.stream(arguments.model, iter([arguments.batch] * 4), objective) as results:
        return next(results)


def _stream_to_a_folder(arguments: Asked) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return _stream(arguments, to=Path(folder) / "run", run_id="first", keep="saliency")


def _influence(arguments: Asked) -> Any:
    kwargs = arguments.list_arguments(
        objective=embgrad.PerBatch(lambda batch: _ReportingObjective(arguments.labels)), call=arguments.call
    )
    batch, objective = kwargs.pop("batch"), kwargs.pop("objective")
    return embgrad.tables.influence(arguments.model, [batch], [batch], objective, **kwargs)


def _golden(arguments: Asked) -> Any:
    """Check a golden file against the gradient of another objective, so that the difference is diagnosed on the models."""
    with tempfile.TemporaryDirectory() as folder:
        golden = embgrad.golden(Path(folder) / "g.safetensors")
        golden.update(embgrad.gradients(arguments.model, arguments.batch, embgrad.CrossEntropy(arguments.labels)))
        other = embgrad.gradients(arguments.model, arguments.batch, embgrad.CrossEntropy(arguments.labels[::-1]))
        try:
            golden.check(other, models=(arguments.model, arguments.model))
        except embgrad.errors.GoldenError as error:
            return error
    raise AssertionError("the golden file agreed with the gradient of another objective")


def _compare(arguments: Asked) -> Any:
    a, b = (
        embgrad.gradients(arguments.model, arguments.batch, embgrad.CrossEntropy(labels), call=arguments.call)
        for labels in (arguments.labels, arguments.labels[::-1])
    )
    return embgrad.compare(a, b, models=(arguments.model, arguments.model), call=arguments.call)


def _bisect(arguments: Asked) -> Any:
    objective = embgrad.CrossEntropy(arguments.labels)
    return embgrad.bisect(
        arguments.model, arguments.model, arguments.batch, objective, call_a=arguments.call, call_b=arguments.call
    )


def _check_port(arguments: Asked) -> Any:
    objective = embgrad.CrossEntropy(arguments.labels)
    return embgrad.check_port(arguments.model, arguments.model, arguments.batch, objective, call=arguments.call)


def _attribute_pairs(arguments: Asked) -> Any:
    batches = arguments.batch, arguments.batch
    method = embgrad.methods.IntegratedJacobians(2)
    size = len(arguments.batch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", embgrad.EmbgradWarning)  # two steps are few
        return embgrad.attribute_pairs(arguments.model, batches, method, call=arguments.call, batch_size=size)


def _dump(arguments: Asked) -> Any:
    objective = embgrad.CrossEntropy(arguments.labels)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dump"
        return embgrad.dump(arguments.model, arguments.batch, path, objective, call=arguments.call)


#: The options of calls that remove tokens.
_REMOVING: Final[Mapping[str, Any]] = {
    "attribution": lambda arguments: np.arange(arguments.batch.ids.size, dtype=float).reshape(arguments.batch.shape),
    "remove": 1,
    "keep_special": False,
    "batch_size": _size,
}

_BOTH: Final = frozenset({"forward", "backward"})
_OBJECTIVE: Final = _BOTH | {"objective"}
_CALLED: Final = _OBJECTIVE | {"call"}
_OUTPUTS: Final = _CALLED - {"backward"}
_CHANGED: Final = _OBJECTIVE | {"override", "add", "edit"}
_ARGUMENTS: Final = frozenset({"batch", "objective"})
_OPTIONS: Final = _ARGUMENTS | {"at", "override", "edit"}
_POINTS: Final = ["layer.0", "layer.2"]

#: All calls by name.
CALLS: Final[Mapping[str, PublicCall]] = {
    "gradients": PublicCall("gradients", lambda arguments: arguments.gradients(), _OBJECTIVE, _OPTIONS),
    "gradients of a native objective": PublicCall(
        "gradients",
        lambda arguments: arguments.gradients(objective=arguments.native),
        _BOTH | {"native objective"},
        needs=("native",),
    ),
    "gradients, called by the user": PublicCall(
        "gradients", lambda arguments: arguments.gradients(call=arguments.call), _OBJECTIVE | {"call"}, _OPTIONS
    ),
    "gradients at points, with changes": PublicCall(
        "gradients",
        lambda arguments: arguments.gradients(at=_POINTS, **_changes()),
        _CHANGED,
        _ARGUMENTS,
        ("modules", "override", "add", "edit"),
    ),
    "gradients, split": PublicCall(
        "gradients", lambda arguments: arguments.gradients(split=True), _OBJECTIVE, _OPTIONS, ("split",)
    ),
    "gradients in micro-batches": PublicCall(
        "gradients",
        lambda arguments: arguments.gradients(
            at=_POINTS, batch_size=2, progress=lambda done, total: None, **_changes()
        ),
        _CHANGED,
        frozenset(),
        ("modules", "override", "add", "edit"),
    ),
    "gradients, checked": PublicCall(
        "gradients", lambda arguments: arguments.gradients(check=True), _OBJECTIVE, needs=("add",)
    ),
    "gradients, in training": PublicCall(
        "gradients",
        lambda arguments: arguments.gradients(training=True),
        _OBJECTIVE,
        _OPTIONS,
        ("training",),
        training=True,
    ),
    "gradients, compiled": PublicCall("gradients", _twice, frozenset({"objective"}), _OPTIONS, ("compile",)),
    "gradients, compiled, with changes": PublicCall(
        "gradients",
        lambda arguments: _twice(arguments, at=_POINTS, **_changes()),
        _CHANGED - _BOTH,
        _ARGUMENTS,
        ("compile", "modules", "override", "add", "edit"),
    ),
    "points": PublicCall(
        "points",
        lambda arguments: embgrad.points(
            arguments.model, arguments.instead.get("batch", arguments.batch), call=arguments.call
        ),
        frozenset({"forward", "call"}),
        frozenset({"batch"}),
    ),
    "evaluate": PublicCall("evaluate", _use(embgrad.evaluate), _OUTPUTS, _ARGUMENTS),
    "embedding_table": PublicCall(
        "embedding_table",
        lambda arguments: embgrad.tables.embedding_table(
            arguments.model, arguments.instead.get("batch", arguments.batch), call=arguments.call
        ),
        frozenset({"forward", "call"}),
        frozenset({"batch"}),
    ),
    "substitutions": PublicCall("substitutions", _use(embgrad.substitutions, top=3), _CALLED, _ARGUMENTS),
    "attribute": PublicCall(
        "attribute",
        _use(
            embgrad.attribute,
            method=embgrad.methods.IntegratedGradients(2, baseline=1, tolerance=1e3),
            batch_size=_size,
        ),
        _CALLED,
        _ARGUMENTS | {"at"},
        ("override",),
    ),
    "faithfulness": PublicCall(
        "faithfulness", _use(embgrad.metrics.faithfulness, **_REMOVING), _OUTPUTS, _ARGUMENTS, ("override",)
    ),
    "infidelity": PublicCall(
        "infidelity", _use(embgrad.metrics.infidelity, samples=2, **_REMOVING), _OUTPUTS, _ARGUMENTS, ("override",)
    ),
    "sensitivity": PublicCall(
        "sensitivity",
        _use(embgrad.metrics.sensitivity, method=embgrad.methods.Saliency(), samples=1),
        _CALLED,
        _ARGUMENTS | {"at"},
        ("override",),
    ),
    "search": PublicCall(
        "search",
        _use(embgrad.search, method=embgrad.methods.HotFlip(steps=1, candidates=1), batch_size=_size),
        _CALLED,
        _ARGUMENTS,
    ),
    "table_gradients": PublicCall(
        "table_gradients", _use(embgrad.tables.table_gradients), _CALLED, _ARGUMENTS | {"at"}, ("tables",)
    ),
    "parameter_gradients": PublicCall(
        "parameter_gradients", _use(embgrad.tables.parameter_gradients), _CALLED, _ARGUMENTS, ("parameters",)
    ),
    "padding_report": PublicCall(
        "padding_report",
        _use(embgrad.metrics.padding_report, batch=lambda arguments: arguments.padded),
        _CALLED,
        _ARGUMENTS | {"at"},
        ("tables",),
    ),
    "capture": PublicCall("capture", _capture("word"), _BOTH, frozenset({"at"}), ("capture",), own=Asked.train),
    "capture of a layer": PublicCall(
        "capture", _capture("layer.1"), _BOTH, needs=("modules", "capture"), own=Asked.train
    ),
    "perturbed": PublicCall("perturbed", _perturb, _BOTH, frozenset({"add"}), ("modules", "perturb"), own=Asked.train),
    "stream": PublicCall("stream", _stream, _OBJECTIVE, _ARGUMENTS | {"at", "edit"}),
    "stream, left before its end": PublicCall("stream", _stream_left, _OBJECTIVE),
    "stream to a folder": PublicCall("stream", _stream_to_a_folder, _OBJECTIVE, needs=("weights",)),
    "influence": PublicCall("influence", _influence, _OBJECTIVE | {"call"}, _ARGUMENTS | {"at"}, ("tables",)),
    "compare": PublicCall("compare", _compare, _BOTH | {"call"}, needs=("weights",)),
    "bisect": PublicCall("bisect", _bisect, _BOTH | {"call"}, needs=("modules", "weights")),
    "check_port": PublicCall("check_port", _check_port, _BOTH | {"call"}, needs=("modules", "weights", "override")),
    "attribute_pairs": PublicCall("attribute_pairs", _attribute_pairs, _BOTH | {"call"}, needs=("override", "split")),
    "dump": PublicCall("dump", _dump, _BOTH | {"call"}, needs=("modules", "weights")),
    "golden": PublicCall("golden", _golden, _BOTH, needs=("weights",)),
}

#: The public functions that need other models than these: a causal language model, and a model that takes any number of examples.
#: Tests of their own call them.
OF_OTHER_MODELS: Final = frozenset({"attribute_tokens", "memory"})

#: The public functions that take no model.
WITHOUT_A_MODEL: Final = frozenset(
    {
        "clipped_table",
        "encode",
        "load",
        "load_bert",
        "open_stream",
        "save",
        "table_norms",
        "table_products",
    }
)

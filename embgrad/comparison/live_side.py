"""A model as one side of a comparison, which can be recorded and run again with other values at its points."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from embgrad.backend.protocol import Call, Change, PointValues, Request, Run
from embgrad.backend.registry import bind
from embgrad.backend.responses import Callback
from embgrad.comparison.outputs import OUTPUTS
from embgrad.comparison.partial_calls import Step, change_step, steps_of
from embgrad.comparison.recording import (
    FINAL,
    HeldWeight,
    Recording,
    Tensor,
    caller_of,
    ends_of,
    layer_at,
    layer_spans,
    read_once,
)
from embgrad.comparison.settings import declared_settings
from embgrad.comparison.stacked import divide_stacks
from embgrad.engine.call_errors import explain_forward
from embgrad.engine.descent import with_certain_roles
from embgrad.engine.options import GradientOptions
from embgrad.engine.probe import order_of, with_layout, word_resolved
from embgrad.engine.question import Question
from embgrad.engine.weights import weights_of
from embgrad.errors import (
    AmbiguousPointError,
    EmbgradError,
    NoGradientError,
    ObjectiveError,
    OutputError,
    PointNotReachedError,
    UnsupportedError,
)
from embgrad.inputs.batch import TokenBatch
from embgrad.model_points.axes import Arrangement, axis_of_examples, axis_of_positions, of_lookup, of_module
from embgrad.model_points.points import OUTPUT, WORD, Layout, Lookup, Point, split_name
from embgrad.objectives.objectives import Objective, as_objective

__all__ = ["LiveSide"]

#: The number of a layer in a weight's name.
NUMBER: Final = re.compile(r"(?<=[._/])\d+(?=[._/])")


class _Changes(NamedTuple):
    """Functions by the points' keys that change values and gradients in a pass."""

    override: Mapping[str, Change] = {}
    add: Mapping[str, Change] = {}
    edit: Mapping[str, Change] = {}


#: No changes.
_NONE: Final = _Changes()


class LiveSide:
    """A model that can be run, with the points that its pass reaches.

    Args:
        model: as in `gradients`.
        batch: the batch that it runs on.
        objective: as in `gradients`; None to read values alone.
        call: a function that calls the model, as in `gradients`.
    """

    def __init__(self, model: Any, batch: TokenBatch, objective: Any = None, call: Call | None = None) -> None:
        self.bound = bind(model, call)
        self.batch = batch
        self._objective: Objective | Any = None if objective is None else as_objective(objective)
        with explain_forward(self.bound, batch):
            self.points: Mapping[str, Point] = {point.key: point for point in self._reached()}
        self._in_order = order_of(self.bound, batch, list(self.points.values())).is_batch
        self._follows_ids = True
        self._turned = self._axes_of_examples()
        self._packed = self._packed_layout()
        self._steps = steps_of(self.points.values(), batch)
        self._arrangements = self._arranged()
        self.outputs: tuple[str | None, ...] = OUTPUTS

    def _arranged(self) -> dict[str, Arrangement]:
        later = {step.key for steps in self._steps.values() for step in steps}
        return {
            key: arrangement
            for key, point in self.points.items()
            if key not in later and (arrangement := self._arrangement(point)) is not None
        }

    def record_in_order(self) -> Recording | None:
        """Return a recording in which the positions are those of the batch, whichever ids the model looks up.

        None where they are so in any recording. A model may turn its texts round and its output back, so that this is for models
        whose output is wrong.
        """
        if self._in_order:
            return None
        self._in_order, self._follows_ids = True, False
        self._arrangements = self._arranged()
        return self.record()

    @property
    def can_be_led(self) -> bool:
        """Return whether values can be put in at the points of a pass."""
        return self.bound.supports("modules", "override")

    def record(self) -> Recording:
        """Run the model, and return its recording, with gradients where an objective was passed."""
        run, final, failure = self._run_reached()
        tensors = {key: self._joined(key, run.points) for key in self._steps}
        tensors |= {
            key: self._tensor(key, run.points[key])
            for key in self._arrangements
            if self.points[key].lookup is not None or not _is_of_batch(run.points[key].activation, self.batch)
        }
        if final is not None:
            tensors[FINAL] = final
        tensors = dict(sorted(tensors.items(), key=lambda entry: entry[1].time))
        responses = run.objectives if self._objective is not None and not failure else ()
        recording = Recording(
            label=f"{self.bound.backend.name} {_class_names(self.bound.model)}",
            tensors=tensors,
            weights=tuple(self._weights()),
            batch=self.batch,
            dtype=run.compute_dtype,
            objective=responses[0].values if responses else None,
            size=responses[0].size if responses else 0.0,
            live=self,
            failure=failure,
            settings=declared_settings(self.bound.model),
        )
        return divide_stacks(recording)

    def _run_reached(self) -> tuple[Run, Tensor | None, EmbgradError | None]:
        """Run the model, see `_run`, and leave out the points that a second pass does not reach.

        Operations inside a lookup of a graph, such as a one-hot's, take its place; and what a loop computes before its first step
        is computed in some passes alone.
        """
        while True:
            try:
                return self._run((*self._arrangements, *(it.key for it in itertools.chain(*self._steps.values()))))
            except PointNotReachedError as error:
                if error.key not in self._arrangements:
                    raise
                flat = self._is_flat(self.points[error.key])
                self._arrangements = {
                    key: arrangement
                    for key, arrangement in self._arrangements.items()
                    if key != error.key and not (flat and self._is_flat(self.points[key]))
                }

    def led(
        self,
        values: Mapping[str, Callable[[np.ndarray], np.ndarray]],
        gradients: Mapping[str, Callable[[np.ndarray], np.ndarray]],
    ) -> dict[str, np.ndarray]:
        """Run the model with changed values and gradients, and return the values of its output by `FINAL`, if it has one.

        Args:
            values: by key a function that takes the values that arrive at a point, (example, position, feature), and returns
                those with which the model continues.
            gradients: by key the same for the gradients of the backward pass. Where there are any, the values are changed by
                additions, through which gradients flow, so that they are right up to rounding alone.
        """
        changed, edited = ({**self._native_steps(it), **self._native_whole(it)} for it in (values, gradients))
        if edited:
            added = {key: _as_addition(function) for key, function in changed.items()}
            _, final, _ = self._run(tuple(changed), _Changes(add=added, edit=edited))
        else:
            _, final, _ = self._run(tuple(changed), _Changes(override=changed), pullback=False)
        return {} if final is None else {FINAL: final.values}

    def read_output(self) -> Tensor | None:
        """Run the model, and return its output of the first of the names `outputs`; None where there is none."""
        return self._run((), pullback=False)[1]

    def _native_whole(self, changes: Mapping[str, Change]) -> dict[str, Change]:
        return {key: self._native(key, function) for key, function in changes.items() if key not in self._steps}

    def _native_steps(self, changes: Mapping[str, Change]) -> dict[str, Change]:
        """Return the functions at each call of modules that are called for some positions, or for one text, at a time.

        At a call the values elsewhere are those that have arrived, or zeros.
        """
        found: dict[str, Change] = {}
        for key, function in changes.items():
            steps = self._steps.get(key, ())
            features = int(np.prod(self.points[key].shape)) // steps[0].of(self.batch.ids).size if steps else 0
            arrived = np.zeros((*self.batch.shape, features))
            for step in steps:
                found[step.key] = partial(change_step, function, arrived, step)
        return found

    def _native(self, key: str, function: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
        arrangement = self._arrangements[key]

        def change(value: np.ndarray) -> np.ndarray:
            arrived = _as_features(arrangement.to_user_axes(value))
            new = np.asarray(function(arrived), value.dtype)
            if arrangement.shared:
                return np.ascontiguousarray(new[0].reshape(value.shape))
            rest = None if arrangement.is_whole else value
            return np.ascontiguousarray(arrangement.to_native_axes(new.reshape(arrangement.shape), rest))

        return change

    def _run(
        self, keys: tuple[str, ...], changes: _Changes = _NONE, *, pullback: bool = True
    ) -> tuple[Run, Tensor | None, EmbgradError | None]:
        """Run the model; return the run, the model's output, and the reason why there are no gradients."""
        failure: EmbgradError | None = None
        outputs: list[np.ndarray] = []

        def read(named: Mapping[str | None, np.ndarray]) -> Sequence[Mapping[str | None, np.ndarray]]:
            outputs.extend(np.array(output) for output in named.values())
            return ()

        def attempt(
            run: Callable[[Request], Run], asked: Request, *, reads: bool
        ) -> tuple[Run, Tensor | None, EmbgradError | None]:
            asked = replace(asked, override=changes.override, add=changes.add, edit=changes.edit)
            for name in self.outputs if reads else ():
                reading = replace(asked, objectives=(*asked.objectives, Callback(read, (name,))))
                try:
                    finished = self._finished(run(reading), outputs, failure)
                except OutputError:  # there is no such output, or there are several; or the objective is wrong
                    continue
                self.outputs = (name,)
                return finished
            return self._finished(run(asked), [], failure)

        if self._objective is not None and pullback and not self.bound.has_gradients:
            failure = UnsupportedError(f"the backend {self.bound.backend.name!r} computes values only")
        elif self._objective is not None and pullback:
            question = Question(self.bound, self.batch, (self._objective,), GradientOptions(()), quiet=True)
            try:
                return attempt(question.run, question.request(keys, sized=True), reads=self.bound.supports("split"))
            except (NoGradientError, ObjectiveError) as error:
                failure = error
        request = Request(keys, (), call=self.bound.call, pullback=False)
        return attempt(lambda asked: self.bound.run(self.batch, asked), request, reads=True)

    def _finished(
        self, run: Run, outputs: Sequence[np.ndarray], failure: EmbgradError | None
    ) -> tuple[Run, Tensor | None, EmbgradError | None]:
        has_examples = bool(outputs) and outputs[-1].ndim >= 2 and outputs[-1].shape[0] == self.batch.shape[0]
        final = Tensor(FINAL, "", OUTPUT, 0, (), float("inf"), _as_features(outputs[-1])) if has_examples else None
        return run, final, failure

    def _reached(self) -> list[Point]:
        seen = self.bound.points(self.batch)
        try:
            resolved = word_resolved(self.bound, self.batch, seen)
        except AmbiguousPointError:  # then no lookup has the role `word`; the other roles are unaffected
            resolved = [_without_word(point) for point in seen]
        return with_certain_roles(self.bound, self.batch, seen, resolved)

    def _axes_of_examples(self) -> Mapping[str, int]:
        """Return, by key, which of the first two axes holds the examples, if there are as many examples as positions."""
        examples, positions = self.batch.shape
        if examples != positions or examples == 1:
            return {}
        fewer = self.bound.points(self.batch[:-1])
        axes = {point.key: axis_of_examples(point.shape, examples - 1, positions) for point in fewer}
        return {key: axis for key, axis in axes.items() if axis is not None}

    def _arrangement(self, point: Point) -> Arrangement | None:
        """Return the arrangement of a point's tensor; None where it does not hold features of examples and positions."""
        axis = self._turned.get(point.key)
        if point.lookup is None:
            if not self._in_order:
                return None
            packed = self._packed if len(point.shape) == 2 and self._is_packed(point.shape[0]) else None
            layout = Layout(self.batch.shape, transposed=False) if self._is_flat(point) else packed
            if layout is not None:
                shape = (*self.batch.shape, point.shape[1])
                return Arrangement(point.shape, shape, self.batch.ids, is_batch=True, layout=layout)
            if (behind := axis_of_positions(point.shape, *self.batch.shape)) is not None:
                others = np.delete(point.shape, behind)
                seen = (others[0], point.shape[behind], *others[1:])
                return Arrangement(point.shape, seen, self.batch.ids, is_batch=True, positions=behind)
            found = of_module(point.name, point.shape, self.batch, axis, by_role=False, in_order=True)
            examples = self.batch.shape[0]
            return found if len(found.shape) > 1 and found.shape[0] == examples else None
        try:
            lookup = with_layout(self.bound, self.batch, point.lookup)
            if not self._follows_ids:
                lookup = replace(lookup, layout=None)
            elif lookup.layout is None and self._is_packed(lookup.indices.size):  # positions or types of a packed batch
                lookup = replace(lookup, layout=self._packed)
            return of_lookup(
                point.name, lookup, self.batch, None if lookup.layout else axis, by_role=True, in_order=self._in_order
            )
        except (UnsupportedError, AmbiguousPointError):  # a lookup of relative positions, for example
            return self._of_decoder(point.lookup)

    def _is_flat(self, point: Point) -> bool:
        """Return whether a module's tensor has the positions of all examples one after another."""
        return point.lookup is None and len(point.shape) == 2 and point.shape[0] == self.batch.ids.size

    def _packed_layout(self) -> Layout | None:
        """Return the layout of a lookup of each id that is not padding, once; None where there is none."""
        for point in self.points.values():
            if point.lookup is None or point.lookup.layout is None:
                continue
            with contextlib.suppress(AmbiguousPointError):
                layout = with_layout(self.bound, self.batch, point.lookup).layout
                if layout is not None and layout.gather is not None:
                    rows = np.sort(layout.gather[layout.gather >= 0])
                    if np.array_equal(rows, np.arange(point.lookup.indices.size)):
                        return layout
        return None

    def _is_packed(self, rows: int) -> bool:
        """Return whether so many rows are those of a batch without its padding."""
        gather = None if self._packed is None else self._packed.gather
        return gather is not None and rows == np.count_nonzero(gather >= 0)

    def _of_decoder(self, lookup: Lookup) -> Arrangement | None:
        """Return the arrangement of a lookup of the decoder's ids, or of its positions, which all examples share; else None."""
        for name, extra in self.batch.extras.items():
            shape = np.shape(extra)
            if not name.startswith("decoder") or len(shape) != 2:
                continue
            if lookup.indices.shape == shape:
                return Arrangement(lookup.shape, lookup.shape, lookup.indices, is_batch=False)
            if lookup.indices.size == shape[1]:
                indices = np.broadcast_to(lookup.indices.reshape(1, -1), shape)
                return Arrangement(lookup.shape, (*shape, lookup.dim), indices, is_batch=False, shared=True)
        return None

    def _joined(self, key: str, read: Mapping[str, PointValues]) -> Tensor:
        """Return the tensor of the whole batch of a module that is called for a part of it at a time."""
        point, steps = self.points[key], self._steps[key]
        lookups = [self.points[step.key].lookup for step in steps]
        gradients = [it.gradients[0] if (it := read[step.key]).gradients else None for step in steps]
        return Tensor(
            key=key,
            path=point.path,
            side=point.side,
            number=0,
            roles=point.roles,
            time=float(point.time),
            values=self._whole(steps, [read[step.key].activation for step in steps]),
            gradient=self._whole(steps, [it for it in gradients if it is not None]),
            ids=self._whole(steps, [it.indices for it in lookups if it is not None]),
        )

    def _whole(self, steps: Sequence[Step], parts: Sequence[np.ndarray]) -> Any:
        """Return the array of the whole batch that calls compute in parts, zeros where none does; None where one is missing."""
        if len(parts) < len(steps):
            return None
        features = parts[0].size // steps[0].of(self.batch.ids).size
        whole = np.zeros((*self.batch.shape, features), parts[0].dtype)
        for step, part in zip(steps, parts, strict=True):
            step.of(whole)[...] = part.reshape(step.of(whole).shape)
        return whole[..., 0] if np.issubdtype(whole.dtype, np.integer) else whole

    def _tensor(self, key: str, read: PointValues) -> Tensor:
        arrangement, point = self._arrangements[key], self.points[key]
        gradient = read.gradients[0] if read.gradients else None
        if gradient is not None and not arrangement.shared:
            gradient = _as_features(arrangement.to_user_axes(gradient))
        elif gradient is not None:  # the sum over the examples that share the tensor
            gradient = None
        return Tensor(
            key=key,
            path=point.path,
            side=point.side,
            number=split_name(key).occurrence or 0,
            roles=point.roles,
            time=float(point.time),
            values=_as_features(arrangement.to_user_axes(read.activation)),
            gradient=gradient,
            ids=None if point.lookup is None else np.asarray(arrangement.ids),
        )

    def _weights(self) -> list[HeldWeight]:
        if not self.bound.supports("weights"):
            return []
        ended = ends_of(self.points.values())
        whole = max(ended.values(), default=0.0) + 1
        spans = layer_spans(self.points)
        named = list(weights_of(self.bound.model))
        products = {point.path for point in self.points.values() if point.side is not None}
        names = [weight.path if weight.path in products else weight.name for weight in named]
        is_functional = not spans and any(name in ended for name in names)  # no layer is called in functions
        held = []
        for weight, name in zip(named, names, strict=True):
            module = name if name in ended else caller_of(weight.module or name, ended)
            time = ended.get(module, whole)
            layer = layer_at(spans, time)
            # A module's path comes first: Keras's names count the models that were made before.
            numbered = NUMBER.search(f".{module}." if module in ended else name)
            if is_functional and numbered is not None:
                layer = int(numbered[0])
            held.append(
                HeldWeight(name, module, weight.shape, read_once(weight.get, weight.shape), time / whole, layer)
            )
        return held


def _is_of_batch(values: np.ndarray, batch: TokenBatch) -> bool:
    """Return whether a tensor holds the ids, the mask or the types as floats, as Gluon passes them."""
    parts = (part for part in (batch.ids, batch.mask, batch.types) if part is not None)
    return any(
        values.size == part.size and np.array_equal(np.sort(values, axis=None), np.sort(part, axis=None))
        for part in parts
    )


def _as_addition(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda value: np.asarray(function(value) - value)


def _as_features(values: np.ndarray) -> np.ndarray:
    """Return a tensor as (example, position, feature); one without positions as (example, 1, feature)."""
    return values.reshape(len(values), 1, -1) if values.ndim == 2 else values.reshape(*values.shape[:2], -1)


def _class_names(model: Any) -> str:
    parts = model if isinstance(model, (list, tuple)) else (model,)
    return " + ".join(type(part).__qualname__ for part in parts)


def _without_word(point: Point) -> Point:
    return replace(point, roles=tuple(role for role in point.roles if role != WORD))

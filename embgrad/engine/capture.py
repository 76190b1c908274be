"""`embgrad.capture`: the gradient at a point inside the user's own training loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from embgrad.backend.protocol import BoundModel
from embgrad.backend.registry import bind
from embgrad.common.arrays import copy_owned
from embgrad.common.keywords import explain_arguments
from embgrad.common.tolerance import coarsest
from embgrad.engine.descent import with_roles_of_user_pass
from embgrad.engine.options import expect_one_name
from embgrad.engine.origins import origins
from embgrad.engine.user_passes import (
    PassAxes,
    UserPasses,
    batch_of,
    expect_known,
    expect_one_model,
    only_children_called,
)
from embgrad.errors import (
    AmbiguousPointError,
    EmbgradError,
    NoGradientError,
    PointError,
    did_you_mean,
)
from embgrad.inputs.batch import TokenBatch
from embgrad.model_points.axes import Arrangement
from embgrad.model_points.names import point_of
from embgrad.model_points.points import WORD, Lookup, Point
from embgrad.model_points.recorder import PassRecorder
from embgrad.results.gradients import EmbeddingGradients
from embgrad.results.row_sparse import RowSparse, add

__all__ = ["Tap", "capture"]

#: The values of `keep`.
KEEP: Final = ("all", "mean")


@dataclass(frozen=True, eq=False)
class _Pass:
    """A forward pass of the user's model.

    Attributes:
        lookup: the lookup at the point; None at a module.
        activation: the value at the point, in the tensor's own axes.
    """

    key: str
    arrangement: Arrangement
    lookup: Lookup | None
    activation: np.ndarray
    batch: TokenBatch
    compute_dtype: str


class Tap:
    """The captured gradients. A step is one backward pass that reached the point.

    Attributes:
        at: the point's name, as the user wrote it.
        count: the number of steps.
        passes: the number of forward passes.
    """

    def __init__(self, bound: BoundModel, at: str, keep: str) -> None:
        self.at = at
        self.count = 0
        self.passes = 0
        self._model = type(bound.model).__name__
        self._steps: list[EmbeddingGradients] = []
        self._outside: dict[str, None] = {}
        self._ended = False
        self._keep = keep
        self._key: str | None = None
        self._by_role = False
        self._axes = PassAxes(at, "Sums and means are right either way")
        self._total: RowSparse | np.ndarray | None = None
        self._unequal: tuple[tuple[int, ...], tuple[int, ...]] | None = None
        self._provenance = {
            **origins(bound),
            "objective": {"class": "captured", "name": "the user's own loss"},
            "pads": "keep",
            "split": False,
            "point": at,
            "captured": True,
        }

    @property
    def steps(self) -> list[EmbeddingGradients]:
        """The results with `keep="all"`, one for each step: `values` is a copy of the gradient of the user's own loss, which may
        be a mean; `objective` is None. Several forward passes behind one loss are one step, with their examples concatenated.

        Raises:
            NoGradientError: the capture has ended without a step.
        """
        if self._ended and not self.count:
            raise NoGradientError(self._why_nothing())
        return self._steps

    def sum(self) -> RowSparse | np.ndarray:
        """Return the sum over the steps of the table gradient, (vocab, dim); at a module the sum of the gradient itself.

        Raises:
            NoGradientError: there was no step.
            PointError: the point is no lookup, and the steps differ in shape.
        """
        if self._unequal is not None:
            raise PointError(
                f"the gradients at {self.at!r} have the shapes {self._unequal[0]} and {self._unequal[1]} in two steps: "
                "at a point that is no lookup, only steps of one shape can be added. Use each of `steps` instead"
            )
        if self._total is None:
            raise NoGradientError(self._why_nothing())
        return self._total

    def mean(self) -> RowSparse | np.ndarray:
        """Return the mean over the steps, as `sum` returns the sum."""
        total = self.sum()
        if isinstance(total, RowSparse):
            return RowSparse(total.rows, (total.values / self.count).astype(total.values.dtype), total.shape)
        return np.asarray((total / self.count).astype(total.dtype))

    def __repr__(self) -> str:
        why = f": {self._why_nothing()}" if self._ended and not self.count else ""
        return f"Tap(at={self.at!r}, {self.count} steps, {self.passes} forward passes{why})"

    def close(self, *, raised: bool) -> None:
        """See `UserPassListener`.

        Raises:
            NoGradientError: the model, or a child of it, was called, and no gradient reached the point.
        """
        self._ended = True
        if not raised and not self.count and (self.passes or self._outside):
            raise NoGradientError(self._why_nothing())

    def _why_nothing(self) -> str:
        """Return why there is no step."""
        if self.passes:
            return (
                f"the model was called {self.passes} time(s), and no gradient reached {self.at!r}: expected a backward pass "
                "through the point while the capture is open. Check that gradients are enabled and that the loss depends on the "
                "point"
            )
        if self._outside:
            return only_children_called(
                self._model, self._outside, "the capture was open", "capture", "embgrad.capture(model.{})"
            )
        return (
            f"nothing was captured at {self.at!r}, as {self._model} was not called while the capture was open: expected forward "
            "and backward passes of this model object in this thread, inside the `with` block"
        )

    # Called by a backend

    def begin(self, arguments: Mapping[str, Any], discover: Callable[[TokenBatch], Sequence[Point]]) -> PassRecorder:
        """See `embgrad.backend.Listener`."""
        self.passes += 1
        batch = batch_of(arguments, word=self.at == WORD)
        if self.at == WORD:
            return PassRecorder(batch, (WORD,))
        if self._key is None:
            reached = with_roles_of_user_pass(discover(batch), (self.at,), arguments)
            words = [point for point in reached if WORD in point.roles]
            point, self._by_role = point_of(self.at, reached, words, batch)
            self._key = point.key
            self._axes.look_at(reached, batch)
        return PassRecorder(batch, (self._key,))

    def end(self, watch: PassRecorder, values: Mapping[str, np.ndarray], compute_dtype: str) -> _Pass:
        """See `embgrad.backend.Listener`."""
        key = self._resolve(watch)
        record, batch = watch.record_of(key), watch.batch
        shape, lookups = values[key].shape, watch.lookups
        arrangement = self._axes.arrangement(record, shape, batch, by_role=self._by_role, lookups=lookups)
        lookup = record if isinstance(record, Lookup) else None
        return _Pass(key, arrangement, lookup, values[key], batch, compute_dtype)

    def step(self, gradients: Sequence[tuple[_Pass, str, np.ndarray]]) -> None:
        """See `embgrad.backend.Listener`."""
        pieces = [self._piece(passed, gradient) for passed, key, gradient in gradients if key == passed.key]
        if not pieces:
            return
        step = pieces[0] if len(pieces) == 1 else _one_step(pieces)
        self._add(step)
        self.count += 1
        if self._keep == "all":
            self._steps.append(step)

    def outside(self, path: str) -> None:
        """See `embgrad.backend.Listener`."""
        self._outside[path] = None

    def _resolve(self, watch: PassRecorder) -> str:
        try:
            key = next(iter(watch.resolve().values()))
        except AmbiguousPointError as error:
            # Positions 0, 1, 2, … can equal a batch's ids by chance; the table is then that of earlier steps.
            if self._key is None or self._key not in {lookup.key for lookup in error.lookups}:
                raise
            return self._key
        self._key = self._key or key
        return key

    def _piece(self, passed: _Pass, gradient: np.ndarray) -> EmbeddingGradients:
        arrangement, batch = passed.arrangement, passed.batch
        values = copy_owned(arrangement.to_user_axes(gradient))
        mask, types = (batch.mask, batch.types) if arrangement.is_batch else (None, None)
        leak = 0.0 if mask is None else float(np.abs(values[mask == 0]).max(initial=0.0))
        return EmbeddingGradients(
            values=values,
            activations=copy_owned(arrangement.to_user_axes(passed.activation)),
            objective=None,
            ids=np.array(arrangement.ids),
            mask=None if mask is None else mask.copy(),
            types=None if types is None else types.copy(),
            tokens=None,
            words_of=None,
            vocab=None if passed.lookup is None else passed.lookup.rows,
            pad_leak=leak,
            provenance={**self._provenance, "path": passed.key, "compute_dtype": passed.compute_dtype},
        )

    def _add(self, step: EmbeddingGradients) -> None:
        new = step.values.astype(np.float64) if step.vocab is None else step.table()
        if self._total is None:
            self._total = new
        elif isinstance(new, RowSparse) and isinstance(self._total, RowSparse):
            self._total = add(self._total, new)
        elif isinstance(new, np.ndarray) and isinstance(self._total, np.ndarray) and new.shape == self._total.shape:
            self._total = self._total + new
        else:
            self._unequal = (np.shape(self._total), new.shape)


@explain_arguments
def capture(model: Any, at: str = WORD, *, keep: str = "all") -> AbstractContextManager[Tap]:
    """Capture the gradient at a point while the user's own loop runs, as a context manager that yields a `Tap`.

    with embgrad.capture(model) as tap:
        for ids, labels in batches:
            loss(model(ids), labels).backward()
            optimiser.step()
    tap.mean()

    The loop computes the same numbers as without the capture, bit for bit. A hybridised Gluon net computes those of its
    operators run one by one, which may differ in the last bit where a weight is used twice. PyTorch's gradient checkpoints stay
    on; for a point at a module, those with `use_reentrant=True` run as with `use_reentrant=False`, which may differ in the last
    bit, too. Passes of this thread through this model are captured, except those of `embgrad.gradients`. A capture that is never
    left is closed with a warning when nothing refers to it any more.

    Args:
        model: a model of PyTorch, TensorFlow, Keras or MXNet Gluon.
        at: the point, as in `gradients`; "word" is the lookup whose indices are the ids that the model is called with.
        keep: "all" keeps every step's gradient, "mean" their sum alone, so that memory stays bounded.

    Raises:
        BackendError: no backend takes the model.
        PointError: there is no such point.
        NoGradientError: on exit, if there were forward passes and no gradient reached the point, or if only a child of the
            model was called, which is then named.
        UnsupportedError: the backend cannot do this for this model, or a pass is compiled.
    """
    expect_one_model(model, "captured; open one capture")
    expect_one_name(at, "open one capture for each point")
    if not isinstance(keep, str) or keep not in KEEP:
        raise EmbgradError(f"keep is {keep!r}: expected 'all' or 'mean'.{did_you_mean(str(keep), KEEP)}")
    bound = bind(model)
    bound.expect_ability("capture")
    expect_known(at, bound.backend.paths(bound.model))
    return _Capture(bound, Tap(bound, at, keep))


class _NotOpenedError(EmbgradError, AttributeError):
    """An attribute of the tap was read from a capture that is not open."""


class _Capture(UserPasses[Tap]):
    """A capture, open from its entry to its exit, or until nothing refers to it any more."""

    opened_as = "with embgrad.capture(model) as tap:"

    def __init__(self, bound: BoundModel, tap: Tap) -> None:
        super().__init__(f"capture at {tap.at!r}", tap, bound.backend.capture(bound.model, tap))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(Tap, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise _NotOpenedError(
            f"embgrad.capture(...) was not opened, so that it has no {name!r}: expected `with embgrad.capture(model) as tap:` "
            f"around the training loop, and tap.{name}"
        )


def _join(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenate the examples of all arrays; pad shorter second axes with zeros."""
    if arrays[0].ndim == 1:
        return np.concatenate(arrays)
    longest = max(array.shape[1] for array in arrays)
    others = [(0, 0)] * (arrays[0].ndim - 2)
    return np.concatenate([np.pad(array, [(0, 0), (0, longest - array.shape[1]), *others]) for array in arrays])


def _one_step(pieces: Sequence[EmbeddingGradients]) -> EmbeddingGradients:
    """Return one step from several forward passes behind one loss: their examples concatenated, the shorter ones padded."""
    first = pieces[0]
    ndim = first.values.ndim
    free = 2 if ndim > 2 else 1  # examples, and positions where there are such
    if ndim == 0 or any(
        piece.values.ndim != ndim or piece.values.shape[free:] != first.values.shape[free:] for piece in pieces
    ):
        raise PointError(
            f"one backward pass reached {first.provenance['point']!r} in the shapes "
            f"{', '.join(str(piece.values.shape) for piece in pieces)}, which cannot be joined into one step: name another point"
        )

    def join(name: str, otherwise: Callable[[EmbeddingGradients], np.ndarray] | None = None) -> Any:
        arrays = [(piece, getattr(piece, name)) for piece in pieces]
        if otherwise is None and any(array is None for _, array in arrays):
            return None
        return _join([otherwise(piece) if array is None and otherwise else array for piece, array in arrays])

    uneven = len({piece.ids.shape[1:] for piece in pieces}) > 1
    masked = uneven or any(piece.mask is not None for piece in pieces)
    return replace(
        first,
        **{name: join(name) for name in ("values", "activations", "ids", "types")},
        mask=join("mask", lambda piece: np.ones(piece.ids.shape, np.int64)) if masked else None,
        pad_leak=max(piece.pad_leak for piece in pieces),
        provenance={
            **first.provenance,
            "compute_dtype": coarsest(piece.provenance["compute_dtype"] for piece in pieces),
        },
    )

"""The evaluation of texts that begin alike, of which a causal language model runs each only from where it differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from embgrad.attribution.passes import size_of_pass
from embgrad.backend.objective_callback import BatchObjective
from embgrad.backend.prefix import Prefix
from embgrad.backend.protocol import BoundModel, Call, Request
from embgrad.backend.responses import Response
from embgrad.common.tolerance import HALVES, tolerance_for
from embgrad.common.tracebacks import errors_of_model
from embgrad.engine.origins import origins
from embgrad.errors import ObjectiveError
from embgrad.inputs.batch import TokenBatch
from embgrad.objectives.native import NativeObjective
from embgrad.objectives.objectives import Objective
from embgrad.token_search.families import Family, families

__all__ = ["SharedPrefixes"]

#: How many rows before a changed token are compared, when the first texts are evaluated.
TESTED: Final = 8

#: A pass over so many positions is not made larger by texts that share a longer beginning.
ENOUGH_POSITIONS: Final = 256

#: How many numbers of an output are widened to float64 at once; a row is as long as the vocabulary.
MOST_WIDENED: Final = 1 << 20

#: The largest relative difference that counts as rounding: in half precision the bound of gradients would let anything pass.
MOST_APART: Final = 0.02


class _UnsuitableError(Exception):
    """Internal: why texts are run as a whole."""


@dataclass
class SharedPrefixes:
    """Evaluates texts by what the model keeps of the beginning that they share, where the model and the objective permit it.

    Whether that is right for a model is measured: see `_try`, and each shared text is continued from a position on and compared
    with itself. Where outputs differ by more than rounding, all texts are run as a whole from then on.

    Attributes:
        batch_size: how many texts one pass runs at most; None for as many as have `MOST_POSITIONS` positions.
        used: whether texts were evaluated in this way.
        reason: why texts are run as a whole, if that is known.
    """

    bound: BoundModel
    batch_size: int | None
    used: bool = False
    reason: str | None = None
    _tried: bool = False

    def evaluate(self, batch: TokenBatch, examples: np.ndarray, objective: Objective | NativeObjective) -> np.ndarray:
        """Return L of each text, float64, shape (text,), NaN where a text is to be run as a whole.

        Args:
            batch: the texts, as the model takes them.
            examples: the example that each text is a version of, shape (text,).
        """
        values = np.full(len(batch), np.nan)
        self.reason = self.reason or self._reason_against(batch, objective)
        if self.reason is not None:
            return values
        assert isinstance(objective, Objective)
        try:
            for family in families(batch, examples, _places(objective, batch)):
                values[family.texts] = self._of_family(family, batch, objective)
        except _UnsuitableError as error:
            self.reason = str(error)
        except errors_of_model() as error:  # where the user's own arguments are wrong, whole texts raise it again
            first_line = str(error).partition("\n")[0]
            self.reason = f"a pass over part of a text raised {type(error).__name__}: {first_line}"
        if self.reason is not None:
            return np.full(len(batch), np.nan)
        return values

    def describe(self) -> dict[str, Any]:
        """Return what belongs in the provenance."""
        reason = self.reason or (None if self.used else "there were too few texts that begin alike")
        return {"prefix_cache": self.used, **({} if reason is None else {"without_prefix_cache": reason})}

    def _reason_against(self, batch: TokenBatch, objective: Objective | NativeObjective) -> str | None:
        """Return why texts of this model, batch and objective are always run as a whole; None if nothing speaks against it."""
        if self._tried:
            return None
        if self.bound.call is not None:
            return "call= calls the model"
        if batch.extras:
            return f"the model has further inputs: {', '.join(sorted(batch.extras))}"
        if isinstance(objective, NativeObjective):
            return "the objective is a function of the model's own output"
        if type(objective).evaluate is not Objective.evaluate:
            return f"{type(objective).__name__} has its own evaluate, which takes whole outputs"
        if self.bound.prefix() is None:
            return "the model does not take what it kept of a text"
        return None

    def _of_family(self, family: Family, batch: TokenBatch, objective: Objective) -> np.ndarray:
        """Return L of the texts of a family, float64, shape (text,), NaN for those that share nothing."""
        passes = _Passes(self.bound, batch, objective, family)
        filled, dtype = passes.fill()
        tolerance = min(tolerance_for(dtype, origins(self.bound).get("matrices")), MOST_APART)
        if not self._tried:
            _try(passes, filled, dtype, tolerance)
            self._tried = True
        # The shared text is continued as well: other ids may lead to other computations, as those of padding do.
        texts = np.append(family.texts, family.texts[0])
        ids = np.append(batch.ids[family.texts], family.ids[None], 0)
        shared = np.append(family.shared, family.shared[family.shared > 0].min())
        values = np.full(len(texts), np.nan)
        for piece in self._pieces(shared, family.end):
            answer = passes.after(int(shared[piece[0]]), texts[piece], ids[piece])
            values[piece] = answer.values
            if len(family.texts) in piece:
                own = int(np.flatnonzero(piece == len(family.texts))[0])
                _expect_same(answer.rows_of(own), filled.rows_of(0), tolerance)
        self.used = True
        return values[:-1]

    def _pieces(self, shared: np.ndarray, end: int) -> Iterator[np.ndarray]:
        """Yield the indices of texts that share something, by how much they share, for one pass each."""
        order = np.argsort(shared, kind="stable")
        order = order[shared[order] > 0]
        while len(order):
            positions = end - int(shared[order[0]])
            most = size_of_pass(self.batch_size, positions)
            enough = -(-ENOUGH_POSITIONS // positions)
            longer = np.flatnonzero(np.diff(shared[order]) > 0) + 1
            size = min([most, len(order), *longer[longer >= enough].tolist()])
            yield order[:size]
            order = order[size:]


class _Answer(BatchObjective):
    """The objective's callback in a pass over part of each text, which keeps the rows that the objective reads.

    Args:
        batch: the whole texts.
        end: the position after the last one in the pass; the output may hold only the last positions before it.
    """

    def __init__(self, objective: Objective, batch: TokenBatch, end: int) -> None:
        super().__init__(objective, batch, 0)
        self.values = np.zeros(len(batch))
        self._places, self._end = _places(objective, batch), end
        self._read: np.ndarray | None = None

    def reads(self, name: str | None, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Return where in the output the rows stand that the objective reads."""
        examples, positions = self._places
        if len(shape) != 3 or shape[0] != len(self.values):
            raise _UnsuitableError(f"the output of shape {shape} has no row for each position")
        places = positions - (self._end - shape[1])
        if places.min() < 0 or places.max() >= shape[1]:
            raise _UnsuitableError(f"the output of shape {shape} does not hold the last positions")
        return examples, places

    def __call__(self, outputs: Mapping[str | None, np.ndarray]) -> Response:
        """Return the values of the objective, computed for few texts at a time, and store them."""
        self._read = rows = outputs[self.objective.output]
        examples, positions = self._places
        count = len(self.values)
        size = max(1, MOST_WIDENED * count // max(1, rows.size))
        for start in range(0, count, size):
            some = np.arange(start, min(start + size, count))
            own = (examples >= start) & (examples < start + size)
            self.values[some] = self.objective.take(some, count).evaluate_rows(
                rows[own], (examples[own] - start, positions[own]), self._batch.take(some)
            )[0]
        return Response(self.values)

    def rows_of(self, text: int) -> np.ndarray:
        """Return the rows that were read of a text, shape (row, classes)."""
        assert self._read is not None, "the pass was run"
        return np.asarray(self._read[self._places[0] == text])

    def positions_of(self, text: int) -> np.ndarray:
        """Return the positions of these rows in the text, shape (row,)."""
        return np.asarray(self._places[1][self._places[0] == text])


class _Rows:
    """Reads rows of the output of one text, in place of an objective.

    Attributes:
        read: the rows, after the pass.
    """

    def __init__(self, name: str | None, count: int, positions: np.ndarray) -> None:
        self.outputs = (name,)
        self.read: list[np.ndarray] = []
        self._count = count
        self._positions = positions

    def reads(self, name: str | None, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows."""
        if len(shape) != 3 or shape[:2] != (1, self._count):
            raise _UnsuitableError(f"the output of shape {shape} has no row for each of {self._count} positions")
        return np.zeros(len(self._positions), np.int64), self._positions

    def __call__(self, outputs: Mapping[str | None, np.ndarray]) -> Response:
        """Store the rows."""
        self.read.append(outputs[self.outputs[0]])
        return Response(np.zeros(1))


@dataclass
class _Passes:
    """Passes over the texts of a family."""

    bound: BoundModel
    batch: TokenBatch
    objective: Objective
    family: Family
    _kept: Prefix = field(init=False, repr=False)

    def __post_init__(self) -> None:
        kept = self.bound.prefix()
        assert kept is not None, "this was asked before"
        self._kept = kept

    @property
    def _last(self) -> int:
        return self.family.end - self.family.first

    def fill(self) -> tuple[_Answer, str]:
        """Run the shared text, and return the answer with the dtype in which the model computed."""
        family = self.family

        def call(model: Any, inputs: Any) -> Any:
            return self._kept.fill(model, inputs, self._last)

        answer, dtype = self._run(family.texts[:1], family.ids[None], 0, call)
        if self._kept.length != family.end:
            raise _UnsuitableError(f"the model kept {self._kept.length} of {family.end} positions")
        return answer, dtype

    def after(self, start: int, texts: np.ndarray, ids: np.ndarray) -> _Answer:
        """Run texts from a position on, after what was kept of the shared text, and return the answer.

        Args:
            start: the first position that is run.
            texts: the indices of the texts, shape (n,).
            ids: their ids, shape (n, position).
        """
        return self._run(texts, ids, start, self._kept.after(start, self._last))[0]

    def rows(self, ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Run a version of the shared text as a whole, in the user's way, and return rows of the output, (row, classes).

        Args:
            ids: its ids, shape (position,).
        """
        batch = self.batch.take(self.family.texts[:1]).replace(ids=ids[None])
        rows = _Rows(self.objective.output, len(ids), positions)
        self.bound.run(batch, Request((), (rows,), pullback=False))
        return rows.read[0]

    def _run(self, texts: np.ndarray, ids: np.ndarray, start: int, call: Call) -> tuple[_Answer, str]:
        end = self.family.end
        whole = self.batch.take(texts).replace(ids=ids)
        types = None if whole.types is None else whole.types[:, start:end]
        answer = _Answer(self.objective.take(texts, len(self.batch)), whole, end)
        request = Request((), (answer,), call=call, pullback=False)
        return answer, self.bound.run(TokenBatch(ids[:, start:end], types=types), request).compute_dtype


def _places(objective: Objective, batch: TokenBatch) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows that an objective reads of an output per position, as (texts, positions)."""
    try:
        places = objective.places((*batch.shape, 1), batch)
    except ObjectiveError:
        places = None
    if places is None:
        raise _UnsuitableError("the objective reads an output without positions")
    return places


def _try(passes: _Passes, filled: _Answer, dtype: str, tolerance: float) -> None:
    """Compare what is kept of the shared text with passes over whole texts.

    The rows of the text must be those that the model computes when the user's batch is run. And where all tokens after some are
    replaced, the rows before must stay as they are. In half precision they must be equal, since rounding could hide what
    tokens add to the rows before them; two passes of one shape do compute equal rows where nothing is added.

    Raises:
        _UnsuitableError: they differ by more than rounding.
    """
    family = passes.family
    start = int(family.shared.max())
    before = np.arange(max(0, start - TESTED), start)
    rows = passes.rows(family.ids, np.concatenate([before, filled.positions_of(0)]))
    _expect_same(filled.rows_of(0), rows[len(before) :], tolerance)
    known = np.unique(passes.batch.ids)
    others = known[(np.searchsorted(known, family.ids) + 1) % len(known)]
    changed = np.where(np.arange(len(others)) < start, family.ids, others)
    _expect_same(passes.rows(changed, before), rows[: len(before)], 0.0 if dtype in HALVES else tolerance)


def _expect_same(rows: np.ndarray, whole: np.ndarray, tolerance: float) -> None:
    """Compare the rows of a text with those of a pass over the whole text."""
    finite = np.isfinite(whole)  # masked classes may be infinite
    distance = float(np.linalg.norm(rows[finite].astype(np.float64) - whole[finite]))
    size = float(np.linalg.norm(whole[finite].astype(np.float64)))
    if not distance <= tolerance * size or not np.array_equal(rows[~finite], whole[~finite], equal_nan=True):
        raise _UnsuitableError(
            f"from where a text differs on, the outputs differ from those of the whole text by {distance:.1e} of "
            f"{size:.1e}"
        )

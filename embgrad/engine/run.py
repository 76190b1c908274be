"""What one call asks of a backend: finds the points, runs, and makes results, for each micro-batch alike."""

from __future__ import annotations

import contextlib
import platform
import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from embgrad.backend.objective_callback import Respond, objective_values, respond_with
from embgrad.backend.protocol import Backend, Call, Change, Request, Run, reads_the_whole
from embgrad.backend.replay import Gave
from embgrad.backend.signature import as_parts
from embgrad.common.options import expect_flag
from embgrad.engine.assemble import assembled
from embgrad.engine.decoder import expecting_decoder, with_decoder
from embgrad.engine.input_warnings import warn_of_empty_mask, warn_of_labels, warn_of_left_padding
from embgrad.engine.interventions import prepared
from embgrad.engine.locate import FewDoNotTellError, Located, Search, expect_ability, expect_each_once
from embgrad.engine.probe import could_be_made
from embgrad.errors import (
    AmbiguousPointError,
    EmbgradWarning,
    PointError,
    PointNotReachedError,
    UnsupportedError,
    level_of_user,
)
from embgrad.forward.points import WORD
from embgrad.inputs.batch import TokenBatch
from embgrad.objectives.native import NativeObjective, described
from embgrad.objectives.objectives import Objective
from embgrad.results.gradients import EmbeddingGradients
from embgrad.version import __version__

__all__ = ["Task", "level_of_user", "origins", "warn_of_unused"]


#: What of a result's origins is the same in the whole process.
PLATFORM: Final = {"embgrad": __version__, "python": platform.python_version(), "numpy": np.__version__}


@dataclass(frozen=True)
class Task:
    """What is asked, over all micro-batches.

    Attributes:
        names: the points to read, as given.
        examples: which examples of the whole batch are run.
        count: how many examples the whole batch has; None where it is not cut.
        changes: by option ("override", "add", "edit") the changes by name as given.
        compiled: whether a trace of the model is to be kept and run.
    """

    backend: Backend
    model: Any
    objective: Objective | NativeObjective
    names: tuple[str, ...]
    call: Call | None = None
    training: bool = False
    pads: str = "keep"
    split: bool = False
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    examples: slice = field(default_factory=lambda: slice(None))
    count: int | None = None
    compiled: bool = False

    def check(self) -> None:
        """Refuse what the backend cannot do, and options that are none, before anything runs."""
        for name, flag in (("training", self.training), ("split", self.split), ("compile", self.compiled)):
            expect_flag(flag, name)
        wanted: dict[str, Any] = {
            "training": self.training,
            "split": self.split,
            "native": isinstance(self.objective, NativeObjective),
            "compile": self.compiled,
            **self.changes,
        }
        for ability, asked in wanted.items():
            if asked:
                expect_ability(self.backend, ability)
        if self.split and isinstance(self.objective, NativeObjective) and self.objective.scalar:
            raise UnsupportedError(
                "split=True pulls back each example's objective by itself, and a Scalar objective has one for the whole batch: "
                "give an embgrad objective, or a function of shape (example,)"
            )

    def cut(self, examples: slice, count: int) -> Task:
        """The same for some of the `count` examples."""
        objective = self.objective
        if not isinstance(objective, NativeObjective):
            objective = objective.take(examples, count)
        return replace(self, objective=objective, examples=examples, count=count)

    def respond(self, batch: TokenBatch, sets: int = 1, *, sized: bool = False) -> Respond | NativeObjective:
        """Return the objective as a request has it, see `Respond`: in an encoder-decoder it knows the decoder's positions."""
        return respond_with(self.objective, with_decoder(self.model, batch), sets, sized=sized)

    def run(self, batch: TokenBatch) -> dict[str, EmbeddingGradients]:
        """The results for one batch, by the names as given."""
        with expecting_decoder(self.model, batch, self.call):
            run, respond, located = self._run(batch)
        objective = objective_values(respond, run)
        self.warn(batch, run.unused, run.masked_id)
        common = self.provenance(batch, run, respond)
        results: dict[str, EmbeddingGradients] = {}
        names_of = Counter([located[name].key for name in self.names])
        for name in self.names:
            place, key = located[name].place, located[name].key
            values = run.points[key if key in run.points else name]
            if names_of[key] > 1:  # each result has arrays of its own
                values = deepcopy(values)
            provenance = {**common, "point": name, "path": key}
            own, others = self._overridden(located, key)
            results[name] = assembled(
                name,
                values,
                place,
                batch,
                objective,
                provenance,
                self.pads,
                split=self.split,
                overridden=others,
                of_table=not own,
            )
        return results

    def warn(self, batch: TokenBatch, unused: Sequence[str], masked_id: int | None = None) -> None:
        """Warn, where the user's own code called, of what makes the numbers others than they may be taken for.

        Args:
            batch: what the model was run on.
            unused: as `Run.unused`; so is `masked_id`.
        """
        warn_of_unused(unused, batch, masked_id)
        warn_of_empty_mask(batch)
        warn_of_labels(self.objective, self.model, batch)
        warn_of_left_padding(self.backend, self.model, batch, self.call)

    def _run(self, batch: TokenBatch) -> tuple[Run, Respond | NativeObjective, Mapping[str, Located]]:
        """The run, what it answered, and where the points are."""
        if self._is_plain(batch):
            run, respond = self._answered(batch, None, {})
            return run, respond, {name: self._behind(name, run, batch) for name in self.names}
        gave: dict[tuple[str, str], Gave] = defaultdict(Gave)
        # A pass in training mode is made once, whatever comes of it.
        few = None if self.training else self._search.named_by_few(self._named, batch)
        ready = None if few is None else few.for_changes({name for one in self.changes.values() for name in one}, batch)
        if few is not None and ready is not None:
            self._expect_each_once(ready)
            with contextlib.suppress(FewDoNotTellError, AmbiguousPointError, PointNotReachedError, UnsupportedError):
                run, respond = self._answered(batch, ready, gave, None if self.compiled else few.times)
                for name in self.names:
                    one = few.named[name]
                    ready[name] = self._search.in_whole(name, one, run.points[one.key], batch)
                return run, respond, ready
            self._search.forget()
        located = self.locate(batch)
        return *self._answered(batch, located, gave), located

    def expect_examples_first(self, batch: TokenBatch, whole: TokenBatch) -> None:
        """Refuse points without an axis of examples, where each example's own gradient is asked for.

        Args:
            batch: what is run first, all examples or some.
            whole: all examples.

        Raises:
            UnsupportedError: the first axis of a point does not follow the number of examples.
        """
        other = whole[: len(batch) + 1] if len(batch) < len(whole) else whole[:-1]
        if self.names == (WORD,) or not len(other):
            return
        located = self.locate(batch)
        untold = {name: one for name in self.names if not (one := located[name]).by_role and one.place.layout is None}
        shapes = (
            {point.key: point.shape for point in self.backend.points(self.model, other, self.call)} if untold else {}
        )
        for name, one in untold.items():
            if shapes.get(one.key) != (len(other), *one.place.native[1:]) or one.place.native[0] != len(batch):
                raise UnsupportedError(
                    f"the point {name!r} has the shape {one.place.native} with {len(batch)} examples, and "
                    f"{shapes.get(one.key, 'is not reached')} with {len(other)}: expected examples on its first axis, which "
                    "split=... and batch_size=... go by; leave them out, or name it by a role"
                )

    def _overridden(self, located: Mapping[str, Located], key: str) -> tuple[list[str], list[str]]:
        """The names under which the point itself was overridden, and the others'."""
        names = self.changes.get("override", ())
        own = [name for name in names if located[name].key == key]
        return own, [name for name in names if name not in own]

    def objective_with(
        self, batch: TokenBatch, located: Mapping[str, Located], key: str, change: Change
    ) -> tuple[np.ndarray, float]:
        """The objective's values where something more is added at a point, and no pullback.

        Args:
            batch: what is run.
            located: the points that are named anywhere, see `locate`.
            key: the key of the point.
            change: what is added, in the tensor's own axes.

        Returns:
            The values, and by how much their sum changes at most when every number that it is made of does by its own size:
            times the rounding of the model's dtype, how far off it may be.
        """
        respond = self.respond(batch, 0)
        request = replace(self.request(respond, (), located), compiled=False)  # a check goes another way
        before = request.add.get(key)
        made = change if before is None else lambda value: before(value) + change(value)
        run = self.backend.run(self.model, batch, replace(request, add={**request.add, key: made}))
        values = objective_values(respond, run)
        # An objective of embgrad's is computed in float64 from outputs in the model's dtype, one of the user's in that dtype.
        return values, respond.size if isinstance(respond, Respond) else float(np.abs(values).sum())

    def locate(self, batch: TokenBatch) -> dict[str, Located]:
        """The points that are named anywhere, by the names as given, from a forward pass."""
        found = self._search.named(self._named, batch)
        self._expect_each_once(found)
        return found

    @property
    def _named(self) -> tuple[str, ...]:
        """All names, each once."""
        return tuple(dict.fromkeys([*self.names, *(name for one in self.changes.values() for name in one)]))

    def _expect_each_once(self, located: Mapping[str, Located]) -> None:
        for option, changes in self.changes.items():
            expect_each_once(option, changes, located)

    @property
    def _search(self) -> Search:
        return Search(self.backend, self.model, self.call)

    def _behind(self, name: str, run: Run, batch: TokenBatch) -> Located:
        lookup = run.points[name].lookup
        assert lookup is not None, "'word' is a lookup"
        return self._search.word(lookup, batch)

    def _is_plain(self, batch: TokenBatch) -> bool:
        """Whether one forward pass may do: `word` alone is asked for, and nothing is changed.

        A forward pass in training mode draws random numbers: it is made once, so what it may not tell is told before.
        """
        drawing = self.training and could_be_made(batch.ids)
        return self.names == (WORD,) and not any(self.changes.values()) and not drawing

    def _answered(
        self,
        batch: TokenBatch,
        located: Mapping[str, Located] | None,
        gave: dict[tuple[str, str], Gave],
        times: Mapping[str, int] | None = None,
    ) -> tuple[Run, Respond | NativeObjective]:
        """The run and what it answered. By option and name, `gave` holds what functions gave in an earlier try."""
        shared = located is not None and any(located[name].place.shared for name in self.names)
        sets = len(batch) if self.split or shared else 1
        if shared and isinstance(self.objective, NativeObjective) and self.objective.scalar:
            raise UnsupportedError(
                f"all examples share one tensor at {self.names}, and its gradient for each of them takes a pullback for each: "
                "a Scalar objective has one for the whole batch; give a function of shape (example,)"
            )
        respond = self.respond(batch, sets)
        points = self.names if located is None else tuple(dict.fromkeys(located[name].key for name in self.names))
        request = self.request(respond, points, located, several=sets > 1 or self.split, times=times, gave=gave)
        try:
            run = self.backend.run(self.model, batch, request)
        except (AmbiguousPointError, PointNotReachedError) as error:
            if located is not None:
                raise
            return self._told_apart(batch, error)
        return run, respond

    def _told_apart(self, batch: TokenBatch, error: PointError) -> tuple[Run, Respond | NativeObjective]:
        """Not one lookup's indices are the ids: told by another forward pass, which of several it is, or what is called so."""
        try:
            located = self.locate(batch)
        except PointNotReachedError:
            raise error from None  # it says more of why
        run, respond = self._answered(batch, located, {})
        return replace(run, points={name: run.points[located[name].key] for name in self.names}), respond

    def request(
        self,
        respond: Respond | NativeObjective,
        points: tuple[str, ...] = (),
        located: Mapping[str, Located] | None = None,
        *,
        several: bool = False,
        times: Mapping[str, int] | None = None,
        gave: Mapping[tuple[str, str], Gave] | None = None,
    ) -> Request:
        """What the backend is asked: to read these points, with the changes where the points are located."""

        def change(option: str, name: str, given: Any, one: Located) -> Change:
            ready = prepared(option, name, given, one.place, self.examples, self.count)
            return gave[option, name].again(ready) if gave is not None and callable(given) else ready

        def made(option: str) -> dict[str, Change]:
            found = located or {}
            changes = {} if located is None else self.changes.get(option, {})
            return {found[name].key: change(option, name, given, found[name]) for name, given in changes.items()}

        return Request(
            points,
            respond,
            (self.objective.output,) if isinstance(self.objective, Objective) else (),
            self.training,
            several,
            self.call,
            made("override"),
            made("add"),
            made("edit"),
            compiled=self.compiled or None,
            times=times,
            reads=respond.reads if isinstance(respond, Respond) else reads_the_whole,
        )

    def provenance(self, batch: TokenBatch, run: Run, respond: Respond | NativeObjective) -> dict[str, Any]:
        """What a result remembers, less the point."""
        return {
            **origins(self.backend, self.model),
            "objective": described(self.objective),
            "output_shape": list(respond.shape) if isinstance(respond, Respond) else None,
            "compute_dtype": run.compute_dtype,
            "training": self.training,
            "pads": self.pads,
            "split": self.split,
            "unused": list(run.unused),
            **({} if run.masked_id is None else {"masked_id": run.masked_id}),
            "truncated": batch.truncated.tolist(),
            "convention": batch.convention,
            "mask_is_bool": batch.mask_is_bool,
            "extras": sorted(batch.extras),
            **{option: list(changes) for option, changes in self.changes.items() if changes},
            **({"compiled": run.uncompiled is None, "uncompiled": run.uncompiled} if self.compiled else {}),
        }


def origins(backend: Backend, model: Any) -> dict[str, Any]:
    """What every result remembers of where it comes from: the versions, and the model's class."""
    kinds = [type(part) for part in as_parts(model)]
    return {
        **PLATFORM,
        "backend": backend.name,
        "versions": dict(backend.versions()),
        "model": " + ".join([f"{one.__module__}.{one.__qualname__}" for one in kinds]),
        **({"matrices": _matrices(backend, model)} if "weights" in backend.supports else {}),
    }


#: By a model's first part its other parts' identities, and the number of its matrices.
_counted: WeakKeyDictionary[Any, tuple[tuple[int, ...], int]] = WeakKeyDictionary()


def _matrices(backend: Backend, model: Any) -> int:
    """How many weights have two axes or more, for who asks how far rounding may go. Counted once a model, since it takes time.

    A model that is changed afterwards has about as many.
    """
    first, *others = as_parts(model)
    key = tuple(map(id, others))
    try:
        known = _counted.get(first)
    except TypeError:  # it cannot be referred to weakly
        known = None
    if known is not None and known[0] == key:
        return known[1]
    count = sum(one.is_matrix for one in backend.weights(model))
    with contextlib.suppress(TypeError):
        _counted[first] = (key, count)
    return count


def warn_of_unused(unused: Sequence[str], batch: TokenBatch, masked_id: int | None = None) -> None:
    """Tell of what the batch holds and the model does not take, where the user's own code called.

    Args:
        unused: as `Run.unused`; so is `masked_id`.
        batch: what the model was run on.
    """
    said = []
    if "mask" in unused and masked_id is not None:
        apart = np.argwhere((batch.ids != masked_id) != batch.real)
        said.append(
            f"the mask, and makes its own, 0 where the id is {masked_id}, which differs from it at {len(apart)} position(s), "
            f"such as example {apart[0][0]}, position {apart[0][1]}"
        )
    elif "mask" in unused and batch.padded:
        said.append("the mask, so that it reads padding as text")
    if "types" in unused and batch.types is not None and batch.types.any():
        said.append("the types, so that it cannot tell the segments")
    said += [f"the input {name!r}" for name in unused if name in batch.extras]
    if said:
        warnings.warn(
            f"the model cannot take {' and '.join(said)}; if it can under another name, pass call=lambda model, inputs: ...",
            EmbgradWarning,
            stacklevel=level_of_user() + 1,
        )

"""The task of one call of `gradients`: the model, the objective, the options, and the examples that are run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from embgrad.backend.objective_callback import BatchObjective, callback_of
from embgrad.backend.protocol import BoundModel, Change, FixedChange, Request, Run
from embgrad.backend.replay import CallbackMemo
from embgrad.engine.decoder import with_decoder
from embgrad.engine.input_warnings import (
    warn_of_empty_mask,
    warn_of_labels,
    warn_of_left_padding,
    warn_of_unused,
)
from embgrad.engine.interventions import prepared
from embgrad.engine.options import GradientOptions
from embgrad.engine.output_axes import expect_examples_first, layouts_of, learn_axes
from embgrad.engine.sole_use import expect_sole_use
from embgrad.errors import UnsupportedError
from embgrad.forward.axes import Located
from embgrad.forward.points import WORD
from embgrad.inputs.batch import TokenBatch
from embgrad.objectives.native import NativeObjective
from embgrad.objectives.objective import Layouts, OpenAxesError, OpenPositionsError
from embgrad.objectives.objectives import Objective

__all__ = ["Memos", "Task"]

#: By option and point's name, the recorded results of the user's function in earlier runs of the same call.
Memos = dict[tuple[str, str], CallbackMemo]


@dataclass(frozen=True)
class Task:
    """A model, an objective or several, and options, for all examples of a batch or for some of them.

    Attributes:
        bound: the model.
        objective: the objective of the examples that are run.
        options: the options of the call.
        examples: the examples of the whole batch that are run.
        count: the number of examples in the whole batch; None where it is run at once.
        pullback: whether gradients are computed; otherwise the results' `values` are zeros.
        quiet: whether `warn` does nothing, as for further passes on a batch of which the user has been warned.
        further: further objectives, which share the forward pass.
        layouts: what is known of the model's outputs, see `run`.

    Raises:
        UnsupportedError: the backend does not support the options.
    """

    bound: BoundModel
    objective: Objective | NativeObjective
    options: GradientOptions
    examples: slice = field(default_factory=lambda: slice(None))
    count: int | None = None
    pullback: bool = True
    quiet: bool = False
    further: tuple[Objective | NativeObjective, ...] = ()
    layouts: Layouts | None = None

    def __post_init__(self) -> None:
        for objective in self.objectives:
            self.options.expect_supported(self.bound, objective)
        if self.further and self.pullback:
            self.bound.expect_ability("split")
        if self.layouts is None:
            object.__setattr__(self, "layouts", layouts_of(self.bound))

    @property
    def objectives(self) -> tuple[Objective | NativeObjective, ...]:
        """All objectives, in order."""
        return (self.objective, *self.further)

    @property
    def is_scalar(self) -> bool:
        """Return whether an objective reduces over the examples itself."""
        return any(isinstance(objective, NativeObjective) and objective.scalar for objective in self.objectives)

    def of_objective(self, objective: Objective | NativeObjective) -> Task:
        """Return the same task for a single objective."""
        return replace(self, objective=objective, further=())

    def expect_cuttable(self, size: int | None, count: int) -> None:
        """Refuse a Scalar objective where a batch of `count` examples is run in sub-batches of at most `size`."""
        if self.is_scalar:
            raise UnsupportedError(
                f"batch_size={size} splits the batch of {count}, and a Scalar objective reduces over all of it: "
                "omit batch_size, or pass a function of shape (example,)"
            )

    def for_examples(self, examples: slice, count: int) -> Task:
        """Return the task for these of the `count` examples."""
        objective, *further = (
            objective if isinstance(objective, NativeObjective) else objective.take(examples, count)
            for objective in self.objectives
        )
        return replace(self, objective=objective, further=tuple(further), examples=examples, count=count)

    def run(self, batch: TokenBatch, request: Request) -> Run:
        """Return the run of a request on a batch; it is repeated where a probe has to show the axes of an output."""
        layouts, bound = self.layouts, self.bound
        assert layouts is not None, "they are set when the task is made"
        while True:
            try:
                run = bound.backend.run(bound.model, batch, request)
                break
            except (OpenAxesError, OpenPositionsError) as error:
                learn_axes(bound, batch, layouts, partial(with_decoder, bound), error)
        for objective, response in zip(request.objectives, run.objectives, strict=True):
            shape = response.shape
            if (
                isinstance(objective, BatchObjective)
                and shape
                and (*objective.outputs, len(shape)) not in layouts.first
            ):
                decode = partial(with_decoder, bound)
                expect_examples_first(bound, batch, objective.objective.output, shape, layouts, decode)
        return run

    def expect_sole_use(self, batch: TokenBatch, located: Mapping[str, Located], run: Run, own: np.ndarray) -> None:
        """Refuse "word" where a run read it and the objective follows the ids in another way, see `embgrad.engine.sole_use`.

        Args:
            batch: the batch that was run.
            located: the points that the task names.
            run: the run.
            own: the objective's values.

        Raises:
            PointNotReachedError: the lookup may be none of embeddings.
        """
        word = located.get(WORD)
        if word is None or word.lookup is None or word.lookup.dim != 1 or self.options.training or self.options.changed:
            return
        read = run.points[word.key if word.key in run.points else WORD].activation

        def evaluate(other: TokenBatch) -> np.ndarray:
            alone = self.of_objective(self.objective)
            request = replace(alone.request(other, sets=0), override={word.key: lambda value: read}, compiled=False)
            return self.run(other, replace(request, pullback=False)).objectives[0].values

        expect_sole_use(self.bound, batch, word.lookup, own, run.compute_dtype, evaluate)

    def request(
        self,
        batch: TokenBatch,
        points: tuple[str, ...] = (),
        located: Mapping[str, Located] | None = None,
        *,
        sets: int = 1,
        several: bool = False,
        sized: bool = False,
        memos: Memos | None = None,
    ) -> Request:
        """Return the request to a backend.

        Args:
            batch: the batch to run. The objectives know the positions of an encoder-decoder's decoder.
            points: the keys of the points to read.
            located: all points that the options name; None for a request without changes.
            sets: the number of sets of cotangents of an objective, see `BatchObjective`.
            several: whether there are several pullbacks for an objective.
            sized: see `BatchObjective`.
            memos: the recorded results of the user's functions, so that another run does not call them again.
        """
        decoded = with_decoder(self.bound, batch)

        def change(option: str, name: str, value: Any, point: Located) -> Change:
            function = prepared(option, name, value, point.arrangement, self.examples, self.count)
            if not callable(value):
                return FixedChange(function)
            return function if memos is None else memos[option, name].again(function)

        def changes(option: str) -> dict[str, Change]:
            if located is None:
                return {}
            values = self.options.changes.get(option, {})
            return {located[name].key: change(option, name, value, located[name]) for name, value in values.items()}

        return Request(
            points,
            tuple(
                callback_of(objective, decoded, sets, sized=sized, layouts=self.layouts)
                for objective in self.objectives
            ),
            self.options.training,
            several,
            self.bound.call,
            changes("override"),
            changes("add"),
            changes("edit"),
            compiled=self.options.compile or None,
            pullback=self.pullback,
        )

    def warn(self, batch: TokenBatch, unused: tuple[str, ...], masked_id: int | None = None) -> None:
        """Warn of a batch or an objective whose gradient is correct, but probably not the one that the user meant.

        Args:
            batch: the batch that was run.
            unused: see `Run.unused`.
            masked_id: see `Run.masked_id`.
        """
        if self.quiet:
            return
        warn_of_unused(unused, batch, masked_id)
        warn_of_empty_mask(batch)
        for objective in self.objectives:
            warn_of_labels(objective, self.bound.model, batch)
        warn_of_left_padding(self.bound, batch)

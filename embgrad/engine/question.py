"""The question of one call: the model, the batch, the objectives, and the options with the points and the changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from embgrad.backend.objective_callback import BatchObjective, callback_of
from embgrad.backend.protocol import BoundModel, Change, FixedChange, Request, Run
from embgrad.backend.replay import CallbackMemo
from embgrad.engine.encoder_decoders import with_decoder
from embgrad.engine.input_warnings import (
    warn_of_empty_mask,
    warn_of_labels,
    warn_of_left_padding,
    warn_of_unused,
)
from embgrad.engine.interventions import prepare
from embgrad.engine.options import GradientOptions
from embgrad.engine.origins import origins
from embgrad.engine.output_axes import expect_examples_first, layouts_of, learn_axes
from embgrad.errors import UnsupportedError
from embgrad.inputs.batch import TokenBatch
from embgrad.model_points.axes import Located
from embgrad.objectives.native import NativeObjective
from embgrad.objectives.objective import Layouts, OpenAxesError, OpenPositionsError
from embgrad.objectives.objectives import Objective, describe
from embgrad.objectives.selection import names_of_classes
from embgrad.toolkit.signature import as_parts

__all__ = ["Memos", "Question"]

#: By option and point's name, the recorded results of the user's function in earlier runs of the same call.
Memos = dict[tuple[str, str], CallbackMemo]


@dataclass(frozen=True)
class Question:
    """A model, a batch or some of its examples, objectives, and options.

    Attributes:
        objectives: their objectives, one or several, which share the forward pass.
        options: the options of the call: the points to read, the changes, and how to run.
        pullback: whether gradients are computed; otherwise the results' `values` are zeros.
        quiet: whether `warn` does nothing, as for further passes on a batch of which the user has been warned.
        examples: which examples of the user's batch these are.
        count: the number of examples in the user's batch; None where it is run at once.
        layouts: what is known of the model's outputs, see `run`.
    """

    bound: BoundModel
    batch: TokenBatch
    objectives: tuple[Objective | NativeObjective, ...]
    options: GradientOptions = field(default_factory=GradientOptions)
    pullback: bool = True
    quiet: bool = False
    examples: slice = field(default_factory=lambda: slice(None))
    count: int | None = None
    layouts: Layouts | None = None

    def __post_init__(self) -> None:
        if self.pullback:
            self.bound.expect_gradients()
        for objective in self.objectives:
            self.options.expect_supported(self.bound, objective)
        if any(isinstance(objective, Objective) and objective.named for objective in self.objectives):
            known = names_of_classes(as_parts(self.bound.model))
            resolved = tuple(
                each.with_classes(known) if isinstance(each, Objective) else each for each in self.objectives
            )
            object.__setattr__(self, "objectives", resolved)
        if len(self.objectives) > 1 and self.pullback:
            self.bound.expect_ability("split")
        if self.layouts is None:
            object.__setattr__(self, "layouts", layouts_of(self.bound))

    @property
    def objective(self) -> Objective | NativeObjective:
        """The first objective."""
        return self.objectives[0]

    @property
    def is_scalar(self) -> bool:
        """Return whether an objective reduces over the examples itself."""
        return any(isinstance(objective, NativeObjective) and objective.scalar for objective in self.objectives)

    @cached_property
    def decoded(self) -> TokenBatch:
        """The batch with what an encoder-decoder's decoder reads, see `embgrad.engine.encoder_decoders`."""
        return with_decoder(self.bound, self.batch)

    def only(self, index: int) -> Question:
        """Return the same question for the objective with this index alone."""
        return replace(self, objectives=(self.objectives[index],))

    def is_cut(self, size: int | None) -> bool:
        """Return whether the batch is run in several sub-batches, of at most `size` examples; None for the whole batch."""
        return size is not None and size < len(self.batch)

    def expect_cuttable(self, size: int | None) -> None:
        """Refuse a Scalar objective where the batch is run in several sub-batches, see `is_cut`."""
        if self.is_scalar and self.is_cut(size):
            raise UnsupportedError(
                f"batch_size={size} splits the batch of {len(self.batch)}, and a Scalar objective reduces over all of it: "
                "omit batch_size, or pass a function of shape (example,)"
            )

    def part(self, start: int, end: int) -> Question:
        """Return the question for the examples from an index up to another."""
        first, count = self.examples.start or 0, len(self.batch)
        return replace(
            self,
            batch=self.batch[start:end],
            objectives=tuple(
                objective if isinstance(objective, NativeObjective) else objective.take(slice(start, end), count)
                for objective in self.objectives
            ),
            examples=slice(first + start, first + end),
            count=count if self.count is None else self.count,
        )

    def run(self, request: Request) -> Run:
        """Return the run of a request; it is repeated where a probe has to show the axes of an output."""
        layouts, bound, batch = self.layouts, self.bound, self.batch
        assert layouts is not None, "they are set when the question is made"
        decode = partial(with_decoder, bound)
        while True:
            try:
                run = bound.backend.run(bound.model, batch, request)
                break
            except (OpenAxesError, OpenPositionsError) as error:
                learn_axes(bound, batch, layouts, decode, error)
        for objective, response in zip(request.objectives, run.objectives, strict=True):
            shape = response.shape
            if (
                isinstance(objective, BatchObjective)
                and shape
                and (*objective.outputs, len(shape)) not in layouts.first
            ):
                expect_examples_first(bound, batch, objective.objective.output, shape, layouts, decode)
        return run

    def request(
        self,
        points: tuple[str, ...] = (),
        located: Mapping[str, Located] | None = None,
        *,
        sets: int = 1,
        several: bool = False,
        sized: bool = False,
        memos: Memos | None = None,
    ) -> Request:
        """Return the request to a backend; its objectives know the positions of an encoder-decoder's decoder.

        Args:
            points: the keys of the points to read.
            located: all points that the options name; None for a request without changes.
            several: whether there are several pullbacks for an objective.
            memos: the recorded results of the user's functions, so that another run does not call them again.
        """

        def change(option: str, name: str, value: Any, point: Located) -> Change:
            function = prepare(option, name, value, point.arrangement, self.examples, self.count)
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
                callback_of(objective, self.decoded, sets, sized=sized, layouts=self.layouts)
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

    def provenance(self, run: Run, index: int = 0) -> dict[str, Any]:
        """Return the provenance of the results of a run, without their points."""
        options, shape = self.options, run.objectives[index].shape
        return {
            **origins(self.bound),
            "objective": describe(self.objectives[index]),
            "output_shape": None if shape is None else list(shape),
            "compute_dtype": run.compute_dtype,
            "training": options.training,
            "pads": options.pads,
            "split": options.split,
            "unused": list(run.unused),
            **({} if run.masked_id is None else {"masked_id": run.masked_id}),
            "truncated": self.batch.truncated.tolist(),
            "convention": self.batch.convention,
            "mask_is_bool": self.batch.mask_is_bool,
            "extras": sorted(self.batch.extras),
            **{option: list(changes) for option, changes in options.changes.items() if changes},
            **({"compiled": run.uncompiled is None, "uncompiled": run.uncompiled} if options.compile else {}),
        }

    def warn(self, unused: tuple[str, ...], masked_id: int | None = None) -> None:
        """Warn of a batch or an objective whose gradient is correct, but probably not the one that the user meant."""
        if self.quiet:
            return
        warn_of_unused(unused, self.batch, masked_id)
        warn_of_empty_mask(self.batch)
        for objective in self.objectives:
            warn_of_labels(objective, self.bound.model, self.batch)
        warn_of_left_padding(self.bound, self.batch)

"""The conformance checks that public calls restore all state: after success, after each mistake, and after interruptions."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.backend.registry import backend_named
from embgrad.testing.calls import CALLS, Asked
from embgrad.testing.examples import example_batch
from embgrad.testing.harness import Harness
from embgrad.testing.leaving import Trial

__all__ = ["NoTraceChecks"]


class NoTraceChecks:
    """The checks of restored state that every backend must pass."""

    @pytest.mark.filterwarnings("ignore::embgrad.EmbgradWarning")  # a warning may say that a model runs without a trace
    @pytest.mark.parametrize("name", CALLS)
    def test_no_trace_of_a_call(self, harness: Harness, model: Any, name: str) -> None:
        call, trial = CALLS[name], _trial(harness, model("interrupted"), disturbed="compile" not in CALLS[name].needs)
        if not backend_named(harness.backend).supports.issuperset(call.needs):
            with pytest.raises((embgrad.errors.UnsupportedError, embgrad.errors.PointError)):
                call.make(trial.asked)
            return
        left = [*trial.traces(call), *trial.traces_of_mistakes(call)]
        assert not left, "\n".join(left)

    @pytest.mark.filterwarnings("ignore::embgrad.EmbgradWarning")
    @pytest.mark.parametrize("place", ["forward", "backward"])
    def test_no_trace_of_a_trace_that_is_interrupted(self, harness: Harness, model: Any, place: str) -> None:
        call = CALLS["gradients, compiled"]
        if "compile" not in backend_named(harness.backend).supports:
            with pytest.raises(embgrad.errors.UnsupportedError):
                call.make(_trial(harness, model("interrupted"), disturbed=False).asked)
            return
        for error in (RuntimeError, KeyboardInterrupt):
            trial = _trial(harness, model("interrupted"), disturbed=False)
            left = [*trial.traces_of_an_interruption(call, place, error), *trial.traces(call)]
            assert not left, "\n".join(left)


def _trial(harness: Harness, built: Any, *, disturbed: bool) -> Trial:
    """Return a trial on a model; with `disturbed` the model first gets state that a call could lose, see `Harness.disturb`."""
    if disturbed:
        harness.disturb(built)
    step = partial(harness.step, rate=0.0)
    arguments = Asked(built, example_batch(), np.array([2, 0, 1]), harness.logit(1), step)
    return Trial(arguments, partial(harness.state, built), harness)

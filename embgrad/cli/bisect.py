"""`embgrad bisect`: the first point at which two models diverge, forward or backward, and the parameters there."""

from __future__ import annotations

from typing import Annotated, Any

from embgrad.cli.command import command
from embgrad.cli.options import GradientRequest, Inputs, Models, Tolerance
from embgrad.cli.request import batch_from, note_default, with_objective
from embgrad.cli.run import DIFFER, OK
from embgrad.cli.terminal import Terminal
from embgrad.common.tolerance import check_tolerance
from embgrad.loading.errors import UsageError

__all__ = ["bisect"]


@command
def bisect(
    terminal: Terminal,
    *,
    models: Models,
    inputs: Inputs,
    request: Annotated[GradientRequest, "objective", "labels", "call"],
    tolerance: Tolerance = None,
) -> int:
    """Find where two models first diverge: values forward, gradients backward. Exit code 0 if they agree, 1 if they differ.

    \b
    embgrad bisect -m FOLDER --frameworks torch,keras -t "A gripping film."
    embgrad bisect -m old.py:build --against new.py:build --ids ids.json
    """
    if len(models.specify()) != 2:
        raise UsageError(f"--frameworks {models.frameworks!r}: expected exactly two frameworks to bisect")
    request.expect()
    check_tolerance(tolerance)
    batch = batch_from(inputs, models.expect(), terminal, request)
    loaded = models.load(terminal)
    first, second = (each.model for each in loaded.values())
    call = request.function()

    def run(objective: Any) -> Any:
        import embgrad

        with terminal.busy("running both models, point by point …"):
            return embgrad.bisect(first, second, batch, objective, call_a=call, call_b=call, tolerance=tolerance)

    used, bisection = with_objective(request.parsed, run)
    note_default(request, used, terminal)
    terminal.say(f"a is {', b is '.join(loaded)}")
    terminal.say(repr(bisection))
    terminal.give({"models": list(loaded), **bisection.to_dict()})
    return OK if bisection.agrees else DIFFER

"""`embgrad bisect`: the first point at which two models diverge, forward or backward, and the parameters there."""

from __future__ import annotations

from typing import Any

from embgrad.cli import options as o
from embgrad.cli.errors import UsageError
from embgrad.cli.models import Models
from embgrad.cli.request import GradientRequest, Inputs, batch_from, call_from, note_default, with_objective
from embgrad.cli.run import DIFFER, OK, execute
from embgrad.cli.terminal import Terminal
from embgrad.common.tolerance import checked_tolerance

__all__ = ["bisect"]


def bisect(
    model: o.Model = None,
    frameworks: o.Frameworks = None,
    against: o.Against = None,
    framework: o.Framework = None,
    text: o.TextOption = None,
    pair: o.Pair = None,
    file: o.File = None,
    pairs: o.Pairs = False,
    ids: o.Ids = None,
    tokenizer: o.Tokenizer = None,
    max_length: o.MaxLength = None,
    objective: o.ObjectiveText = None,
    labels: o.Labels = None,
    ignore: o.Ignore = None,
    call: o.Call = None,
    tolerance: o.Tolerance = None,
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Find where two models first diverge: values forward, gradients backward. Exit code 0 if they agree, 1 if they differ.

    \b
    embgrad bisect -m FOLDER --frameworks torch,keras -t "A gripping film."
    embgrad bisect -m old.py:build --against new.py:build --ids ids.json
    """

    def work(terminal: Terminal) -> int:
        models = Models(model, framework, frameworks, against, ignore or ())
        if len(models.specified()) != 2:
            raise UsageError(f"--frameworks {frameworks!r}: expected exactly two frameworks to bisect")
        request = GradientRequest(objective, labels, call=call)
        checked_tolerance(tolerance)
        inputs = Inputs(text or (), o.pairs_from(pair), file, pairs, ids, tokenizer, max_length)
        batch = batch_from(inputs, models.expect(), terminal, request)
        loaded = models.load(terminal)
        first, second = (each.model for each in loaded.values())
        function = call_from(request)

        def run(objective: Any) -> Any:
            from embgrad.comparison.bisect import bisect as bisect_models

            with terminal.busy("running both models, point by point …"):
                return bisect_models(
                    first, second, batch, objective, call_a=function, call_b=function, tolerance=tolerance
                )

        used, bisection = with_objective(request.parsed, run)
        note_default(request, used, terminal)
        terminal.say(f"a is {', b is '.join(loaded)}")
        terminal.say(repr(bisection))
        terminal.give({"models": list(loaded), **bisection.to_dict()})
        return OK if bisection.agrees else DIFFER

    execute(work, as_json=as_json, debug=debug)

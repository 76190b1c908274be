"""Attributions of the batches of a data set, in place of gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from embgrad.attribution.attribute import attribute_by, method_from
from embgrad.attribution.method import Method
from embgrad.attribution.passes import passes_through
from embgrad.engine.call_errors import explain_errors
from embgrad.engine.options import GradientOptions
from embgrad.engine.question import Question
from embgrad.errors import UnsupportedError
from embgrad.results.attribution import Attribution

__all__ = ["attributions_of", "expect_of_attributions", "method_from"]


def attributions_of(method: Method, tokenizer: Any, question: Question, size: int | None) -> dict[str, Attribution]:
    """Return the attribution of a batch, by the name of the point.

    Args:
        tokenizer: knows the ids of special tokens; None where there is none.
        size: how many examples or steps one pass runs at most, see `attribute`.
    """
    bound, options = question.bound, question.options
    (name,) = options.names
    passes = passes_through(
        bound, question.batch, question.objective, name, options.pads, size, training=options.training
    )
    with explain_errors(bound, passes.batch):
        return {name: attribute_by(passes, method, tokenizer)}


def expect_of_attributions(options: GradientOptions, others: Sequence[str] = (), asked: str = "method") -> None:
    """Check that no option is set that is of gradients alone; `others` are options, as written, that are as well.

    Args:
        asked: the option that asks for attributions.
    """
    flags = [f"{name}=True" for name in ("split", "check", "compile") if getattr(options, name)]
    changes = [name for name, values in options.changes.items() if values]
    for option in (*flags, *changes, *others):
        raise UnsupportedError(f"{option} is for gradients, and {asked} computes attributions: omit one of the two")

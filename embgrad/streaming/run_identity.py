"""What tells a run of a stream from others: digests of its model's weights, its objective and its options."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from embgrad.backend.signature import as_parts
from embgrad.engine.interventions import ForAll
from embgrad.engine.task import Task
from embgrad.engine.weights import weights_of
from embgrad.objectives.native import as_objective, described
from embgrad.objectives.objectives import Objective
from embgrad.streaming.code_digest import read
from embgrad.streaming.digest import digest_of, function_digest, object_digest, tokenizer_digest, update
from embgrad.streaming.objectives import Labelled, Objectives, PerBatch
from embgrad.streaming.source import Source

__all__ = ["identity", "weights_digest"]

#: The longest description of an objective that stands in a manifest as it is; of a longer one its digest does.
LONGEST = 200


def identity(task: Task, source: Source, objectives: Objectives, options: Mapping[str, Any]) -> dict[str, Any]:
    """By the options' names what JSON can hold, the same for the same run in any process.

    Functions and the user's own classes go by their names, their code and what they read.

    Args:
        task: what is asked of each batch.
        source: what is read; its items are told by the shards' own digests.
        objectives: of the batches.
        options: others, plain values.
    """
    own = as_parts(task.bound.model)  # which its weights tell
    parts = [f"{type(part).__module__}.{type(part).__qualname__}" for part in own]
    changes = {
        option: digest_of(read(_plain(given), digest_of, own)) if (given := task.options.changes.get(option)) else None
        for option in ("override", "add", "edit")
    }
    return {
        "model": " + ".join(parts),
        "weights": weights_digest(task),
        "objective": _of_objective(objectives, own),
        "source": "batches" if source.tokenizer is None else "texts",
        "tokenizer": tokenizer_digest(source.tokenizer),
        "max_length": source.max_length,
        "call": None if task.bound.call is None else function_digest(task.bound.call, own),
        "training": bool(task.options.training),
        "pads": task.options.pads,
        "split": bool(task.options.split),
        "compile": bool(task.options.compile),
        **changes,
        **options,
    }


def _plain(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes as the user gave them."""
    return {name: change.array if isinstance(change, ForAll) else change for name, change in changes.items()}


def weights_digest(task: Task) -> str | None:
    """How many weights have values, and a digest of these; None where the backend cannot tell."""
    if not task.bound.supports("weights"):
        return None
    weights = weights_of(task.bound.model)
    made = hashlib.sha256()
    for weight in weights:
        update(made, [weight.name, weight.dtype, weight.get()])
    return f"{len(weights)}: {made.hexdigest()[:16]}"


def _of_objective(objectives: Objectives, known: Sequence[Any]) -> str:
    given = objectives.given
    if isinstance(given, (Labelled, PerBatch)):
        batch = ", with the batch" if isinstance(given, Labelled) and given.with_batch else ""
        return f"{type(given).__name__} {function_digest(given.make, known)}{batch}"
    if isinstance(given, Objective):
        whole = repr(given.describe())
        told = whole if len(whole) <= LONGEST else f"{given!r}"[:LONGEST]
        ours = type(given).__module__.startswith("embgrad.")
        return f"{told} {digest_of(given.describe()) if ours else object_digest(given, known)}"
    native: Any = as_objective(given)
    return f"{described(native)['class']} {function_digest(native.function, known)}"

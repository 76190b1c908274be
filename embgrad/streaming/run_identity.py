"""The identity of a run: digests of its model's weights, its objective and its options."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from embgrad.attribution.method import Method
from embgrad.backend.protocol import BoundModel
from embgrad.backend.signature import as_parts
from embgrad.engine.interventions import BroadcastArray
from embgrad.engine.options import GradientOptions
from embgrad.engine.weights import weights_of
from embgrad.objectives.objectives import Objective, as_objective, described
from embgrad.streaming.code_digest import read
from embgrad.streaming.digest import digest_of, function_digest, object_digest, tokenizer_digest, update
from embgrad.streaming.objectives import Labelled, Objectives, PerBatch
from embgrad.streaming.source import Source

__all__ = ["identity", "objective_identity", "weights_digest"]

#: The longest description of an objective that a manifest holds in full; of a longer one it holds the beginning and a digest.
LONGEST = 200


def identity(
    bound: BoundModel,
    options: GradientOptions,
    source: Source,
    objectives: Objectives,
    further: Mapping[str, Any],
    method: Method | None = None,
) -> dict[str, Any]:
    """Return the identity of a run by option, as values that JSON can hold, equal for the same run in every process.

    Functions and users' classes are represented by their names, their code and what the code reads.

    Args:
        bound: the model.
        options: the options of each batch.
        source: the source; its items are identified by the digests of the shards.
        objectives: the objectives of the batches.
        further: further options, as plain values.
        method: the attribution method; None for gradients, whose identity has no such entry.
    """
    parts = as_parts(bound.model)  # the weights identify these
    names = [f"{type(part).__module__}.{type(part).__qualname__}" for part in parts]
    changes = {
        option: digest_of(read(_plain(values), digest_of, parts)) if values else None
        for option, values in options.changes.items()
    }
    return {
        "model": " + ".join(names),
        "weights": weights_digest(bound),
        "objective": _objective_identity(objectives, parts),
        "source": "batches" if source.tokenizer is None else "texts",
        "tokenizer": tokenizer_digest(source.tokenizer),
        "max_length": source.max_length,
        "call": None if bound.call is None else function_digest(bound.call, parts),
        "training": bool(options.training),
        "pads": options.pads,
        "split": bool(options.split),
        "compile": bool(options.compile),
        **changes,
        **further,
        **({} if method is None else {"method": _method_identity(method, parts)}),
    }


def _plain(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes as the user gave them."""
    return {name: change.array if isinstance(change, BroadcastArray) else change for name, change in changes.items()}


def weights_digest(bound: BoundModel) -> str | None:
    """Return the number of weights and a digest of their values, or None where the backend cannot read weights."""
    if not bound.supports("weights"):
        return None
    weights = weights_of(bound.model)
    hasher = hashlib.sha256()
    for weight in weights:
        update(hasher, [weight.name, weight.dtype, weight.get()])
    return f"{len(weights)}: {hasher.hexdigest()[:16]}"


def _method_identity(method: Method, known: Sequence[Any]) -> dict[str, Any]:
    methods = (method, getattr(method, "of", method))
    are_embgrads = all(type(entry).__module__.startswith("embgrad.") for entry in methods)
    return method.describe() if are_embgrads else {**method.describe(), "code": object_digest(method, known)}


def _objective_identity(objectives: Objectives, known: Sequence[Any]) -> str:
    objective = objectives.argument
    if isinstance(objective, (Labelled, PerBatch)):
        batch = ", with the batch" if isinstance(objective, Labelled) and objective.with_batch else ""
        return f"{type(objective).__name__} {function_digest(objective.make, known)}{batch}"
    return objective_identity(objective, known)


def objective_identity(objective: Any, known: Sequence[Any]) -> str:
    """Return the description of an objective with a digest of it: of a function, of its code.

    Args:
        objective: an objective of embgrad, or a function.
        known: the parts of the model, which other digests identify.
    """
    if isinstance(objective, Objective):
        description = repr(objective.describe())
        shown = description if len(description) <= LONGEST else f"{objective!r}"[:LONGEST]
        is_embgrads = type(objective).__module__.startswith("embgrad.")
        return f"{shown} {digest_of(objective.describe()) if is_embgrads else object_digest(objective, known)}"
    native: Any = as_objective(objective)
    return f"{described(native)['class']} {function_digest(native.function, known)}"

"""The identity of a run: digests of its model's weights and of its plain arguments, and the user's name for its functions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from embgrad.attribution.method import Method
from embgrad.backend.protocol import BoundModel
from embgrad.engine.interventions import BroadcastArray
from embgrad.engine.options import GradientOptions
from embgrad.engine.origins import model_name
from embgrad.engine.weights import weights_of
from embgrad.errors import EmbgradError, UnsupportedError, brief
from embgrad.objectives.objectives import Objective, as_objective, describe
from embgrad.streaming.digest import UnreadableError, digest_of, name_of, tokenizer_digest, update
from embgrad.streaming.objectives import Labelled, Objectives, PerBatch
from embgrad.streaming.source import Source

__all__ = ["Names", "identity", "weights_digest"]

#: The longest description of an objective that a manifest holds in full; of a longer one it holds the beginning and a digest.
LONGEST = 200


class Names:
    """The texts that identify the arguments of a call: digests of plain values, and names of functions.

    What the user's functions and classes compute is not known, so that a call that has any must have a name.

    Args:
        run_id: the user's name for the call; None for none.

    Raises:
        EmbgradError: `run_id` is no text.
    """

    def __init__(self, run_id: Any) -> None:
        if run_id is not None and (not isinstance(run_id, str) or not run_id):
            raise EmbgradError(f"run_id is {brief(run_id)}: expected a text, such as 'first', or None")
        self.run_id = run_id

    def of(self, what: str, value: Any, describe: Callable[[Any], str | None] = digest_of) -> str | None:
        """Return the text that identifies an argument.

        Args:
            what: the argument, for the message.
            value: its value.
            describe: returns the text, or raises UnreadableError.

        Raises:
            UnsupportedError: the argument is, or holds, a function or an object of a user's class, and the call has no name.
        """
        try:
            return describe(value)
        except UnreadableError as error:
            if self.run_id is None:
                raise UnsupportedError(
                    f"{what} is or holds {brief(error.value)}, of type {type(error.value).__name__}, and what your functions and "
                    "classes compute cannot be compared with what another call's do: give run_id='...', a text that you change "
                    "whenever they change, or omit to"
                ) from None
            cls = value if hasattr(value, "__qualname__") else type(value)
            return f"{cls.__module__}.{cls.__qualname__}"

    def of_function(self, what: str, function: Any) -> str | None:
        """Return the name of a function or class that is an argument, None for None; see `of`."""
        return None if function is None else self.of(what, function, name_of)

    def of_objective(self, objective: Any) -> str | None:
        """Return the description of an objective with a digest of it; or the name of a function, see `of`."""
        if not isinstance(objective, Objective):
            native: Any = as_objective(objective)
            return f"{describe(native)['class']} {self.of_function('the objective', native.function)}"
        description = repr(objective.describe())
        shown = description if len(description) <= LONGEST else f"{objective!r}"[:LONGEST]
        return self.of("the objective", objective, lambda own: f"{shown} {digest_of(_of_embgrad(own).describe())}")

    def of_method(self, method: Any) -> Mapping[str, Any]:
        """Return the description of a method of attribution or of search."""
        for entry in (method, getattr(method, "of", method)):
            self.of("method", entry, lambda own: type(_of_embgrad(own)).__name__)
        arguments: Mapping[str, Any] = method.describe()
        return arguments


def _of_embgrad(value: Any) -> Any:
    """Return an object whose class is embgrad's."""
    if not type(value).__module__.startswith("embgrad."):
        raise UnreadableError(value)
    return value


def identity(
    bound: BoundModel,
    options: GradientOptions,
    source: Source,
    objectives: Objectives,
    further: Mapping[str, Any],
    method: Method | None = None,
    run_id: str | None = None,
) -> dict[str, Any]:
    """Return the identity of a run by option, as values that JSON can hold, equal for the same run in every process.

    Args:
        options: the options of each batch.
        source: the source; its items are identified by the digests of the shards.
        objectives: the objectives of the batches.
        further: further options, as plain values.
        method: the attribution method; None for gradients, whose identity has no such entry.
        run_id: the user's name for the run.

    Raises:
        UnsupportedError: an argument is a function, and `run_id` is None.
    """
    names = Names(run_id)
    return {
        "model": model_name(bound),
        "weights": weights_digest(bound),
        "objective": _of_argument(names, objectives.argument),
        "source": "batches" if source.tokenizer is None else "texts",
        "tokenizer": names.of("tokenizer", source.tokenizer, tokenizer_digest),
        "max_length": source.max_length,
        "call": names.of_function("call", bound.call),
        "training": bool(options.training),
        "pads": options.pads,
        "split": bool(options.split),
        "compile": bool(options.compile),
        **{option: _of_changes(names, option, changes) for option, changes in options.changes.items()},
        **further,
        **({} if run_id is None else {"run_id": run_id}),
        **({} if method is None else {"method": names.of_method(method)}),
    }


def _of_argument(names: Names, objective: Any) -> str | None:
    if not isinstance(objective, (Labelled, PerBatch)):
        return names.of_objective(objective)
    batch = ", with the batch" if isinstance(objective, Labelled) and objective.with_batch else ""
    return f"{type(objective).__name__} {names.of_function('the objective', objective.make)}{batch}"


def _of_changes(names: Names, option: str, changes: Mapping[str, Any]) -> str | None:
    plain = {name: change.array if isinstance(change, BroadcastArray) else change for name, change in changes.items()}
    described = {
        name: names.of_function(f"{option}[{name!r}]", change) if callable(change) else change
        for name, change in plain.items()
    }
    return digest_of(described) if described else None


def weights_digest(bound: BoundModel) -> str | None:
    """Return the number of weights and a digest of their values, or None where the backend cannot read weights."""
    if not bound.supports("weights"):
        return None
    weights = weights_of(bound.model)
    hasher = hashlib.sha256()
    for weight in weights:
        update(hasher, [weight.name, weight.dtype, weight.get()])
    return f"{len(weights)}: {hasher.hexdigest()[:16]}"

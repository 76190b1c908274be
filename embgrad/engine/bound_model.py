"""A model with its backend and the way in which it is called, which travel together through a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from embgrad.backend.protocol import Backend, Call, Request, Run
from embgrad.backend.registry import backend_for, model_in
from embgrad.backend.signature import expect_callable
from embgrad.errors import UnsupportedError, listed
from embgrad.forward.points import Point
from embgrad.inputs.batch import TokenBatch

__all__ = ["BoundModel", "bind"]


@dataclass(frozen=True)
class BoundModel:
    """A model, ready to be run on batches.

    Attributes:
        backend: the backend that owns the model.
        model: the model, or a sequence of its parts.
        call: the user's function that calls the model, `call(model, inputs) -> outputs`; None for the backend's own way.
    """

    backend: Backend
    model: Any
    call: Call | None = None

    def points(self, batch: TokenBatch) -> list[Point]:
        """Return the points that a forward pass in evaluation mode reaches, in order."""
        return list(self.backend.points(self.model, batch, self.call))

    def run(self, batch: TokenBatch, request: Request) -> Run:
        """Run one forward pass, and the pullbacks that the request asks for."""
        return self.backend.run(self.model, batch, request)

    def accepts(self, batch: TokenBatch) -> bool:
        """Return whether a forward pass on the batch raises no exception."""
        try:
            self.points(batch)
        except Exception:  # the framework's own, about shapes that do not fit together
            return False
        return True

    def supports(self, *abilities: str) -> bool:
        """Return whether the backend has all of these abilities."""
        return all(ability in self.backend.supports for ability in abilities)

    def expect_ability(self, ability: str) -> None:
        """Raise UnsupportedError where the backend lacks an ability."""
        if ability not in self.backend.supports:
            supported = listed(sorted(self.backend.supports), 20)
            instead = getattr(self.backend, "instead", {}).get(ability, "leave it out")
            raise UnsupportedError(
                f"the backend {self.backend.name!r} does not support {ability!r}: it supports {supported}; {instead}"
            )


def bind(model: Any, call: Call | None = None) -> BoundModel:
    """Return the model, or the model that an object such as a pipeline holds, with its backend.

    Raises:
        BackendError: no backend takes the model.
        BatchError: `call` is not a function.
    """
    expect_callable(call)
    model = model_in(model)
    return BoundModel(backend_for(model), model, call)

"""Why there is no trace of a model: with any objective, or with one function given as such, whose own doing it may be."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from embgrad.backend import NativeObjective, Request
from embgrad.bounded import Bounded
from embgrad.identity import code_of

__all__ = ["OBJECTIVES", "Refusals"]

#: Of how many functions given as objectives anything is remembered.
OBJECTIVES: Final = 256


class Refusals:
    """The reasons for which one way of asking takes no trace.

    Functions given as objectives go by the Python that they are made of: one that is made anew for each call is the same.

    Attributes:
        of_all: why there is none whatever the objective; None where there may be one.
    """

    def __init__(self) -> None:
        self.of_all: str | None = None
        self._of_objectives: Bounded[str] = Bounded(OBJECTIVES)

    def why(self, request: Request) -> str | None:
        """Why there can be no trace for this request; None where there may be one."""
        if self.of_all is not None or not self._of_objectives:
            return self.of_all
        return self._of_objectives.get(_code(request), None)

    def add(self, why: str, request: Request | None = None) -> None:
        """There can be none.

        Args:
            why: as "compile=True: ..." goes on.
            request: for which it was tried, where its objective may be the reason; one of embgrad's own is none.
        """
        if request is None or not isinstance(request.respond, NativeObjective):
            self.of_all = why
            return
        self._of_objectives.put(_code(request), why)


def _code(request: Request) -> Hashable:
    respond = request.respond
    return code_of(respond.function) if isinstance(respond, NativeObjective) else None

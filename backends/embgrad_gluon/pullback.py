"""Pulls cotangents back through a recorded forward pass, stage by stage where gradients are edited on their way."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from embgrad.answering import Cotangents
from embgrad.backend import Change
from embgrad.errors import UnsupportedError
from embgrad_gluon.graph import reached, recorded_before
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.inputs import native_like, widened
from embgrad_gluon.tap import Kept

__all__ = ["Pullback", "Pulled"]


@dataclass(frozen=True)
class Pulled:
    """What one set of cotangents gave; None where no way leads there.

    Attributes:
        gradients: by the points' keys, as they went on up.
        before: by the keys of those that were edited, as they came.
        others: of the other arrays, in their order.
    """

    gradients: Mapping[str, np.ndarray | None]
    before: Mapping[str, np.ndarray | None]
    others: Sequence[np.ndarray | None]


class Pullback:
    """The way back through one forward pass.

    The graph is cut at each point whose gradient is edited. The cotangents are pulled back to the cuts, in the reverse
    order of the forward pass; what comes is edited in NumPy, and is the cotangent of what lies below the cut. MXNet's own
    custom functions would do it in one go, but swallow exceptions, and lose gradients on leaves.

    Args:
        kept: the points that were kept hold of, by key, in the order of the forward pass.
        wanted: the keys of those whose gradient is wanted.
        others: further arrays whose gradient is wanted.
        also: arrays whose gradient must be asked for along with the others, see `Cures`.
        edits: by key what takes the place of a gradient.
        training: the mode of the forward pass.
        first: where what is recorded may be forgotten after the last pullback, the number of the first operator of the forward
            pass, see `next_number`: what was recorded before is the user's. None where all is to be kept.
        forgetting: is called before a pullback in which what is recorded is forgotten.
    """

    def __init__(
        self,
        kept: Mapping[str, Kept],
        wanted: Sequence[str],
        others: Sequence[Any],
        also: Sequence[Any],
        edits: Mapping[str, Change],
        *,
        training: bool,
        first: int | None = None,
        forgetting: Callable[[], None],
    ) -> None:
        self._first = first
        self._forgetting = forgetting
        self._kept = kept
        self._wanted = tuple(wanted)
        self._edited = [key for key in kept if key in edits]  # in the order of the forward pass
        self._edits = edits
        self._training = training
        keys = list(dict.fromkeys((*wanted, *self._edited)))
        self._places = {key: place for place, key in enumerate(keys)}
        self._others = slice(len(keys), len(keys) + len(others))
        self._variables = [*(kept[key].mark for key in keys), *others, *also]
        self._asked = len(keys) + len(others)
        self._ways: dict[int, tuple[Any, Sequence[bool]]] = {}

    def __call__(self, cotangents: Cotangents, meanwhile: Callable[[], None], *, last: bool) -> Pulled:
        """The gradients for one set of cotangents.

        Args:
            cotangents: the set.
            meanwhile: is called while MXNet computes.
            last: there is no other set after it.
        """
        found: list[Any] = [None] * self._asked
        heads = [(output, native_like(cotangent, output)) for output, cotangent in cotangents]
        self._pull(heads, found, last=last and not self._edited)
        meanwhile()
        before: dict[str, np.ndarray | None] = {}
        for key in reversed(self._edited):
            before[key] = self._edit(key, found)
        with _computed():
            gradients = [None if one is None else widened(one.asnumpy()) for one in found]
        return Pulled(
            {key: gradients[self._places[key]] for key in self._wanted},
            before,
            gradients[self._others],
        )

    def _edit(self, key: str, found: list[Any]) -> np.ndarray | None:
        """What came to the point; the edited takes its place and goes on to what lies below."""
        place, kept = self._places[key], self._kept[key]
        came = found[place]
        if came is None:
            return None
        with _computed():
            before = widened(came.asnumpy())
        found[place] = native_like(self._edits[key](before.copy()), kept.gone_on)
        if kept.below is not None:
            self._pull([(kept.below, found[place])], found)
        return before

    def look_at(self, output: Any) -> None:
        """Looks at the way from an output, which is not needed before it is pulled back: while MXNet computes it."""
        # What is wrong with it is said when it is pulled back.
        with contextlib.suppress(UnsupportedError):
            self._way(output)

    def _pull(self, heads: Sequence[tuple[Any, Any]], found: list[Any], *, last: bool = False) -> None:
        """Adds what comes from some outputs to what was found.

        Args:
            heads: the outputs with their cotangents.
            found: of the arrays whose gradients are asked for.
            last: nothing is pulled back after it.
        """
        heads = [head for head in heads if any(self._way(head[0])[: self._asked])]
        if not heads:
            return
        there = [any(ways) for ways in zip(*(self._way(output) for output, _ in heads), strict=True)]
        places = [place for place, way in enumerate(there) if way]
        variables = [self._variables[place] for place in places]
        # Of what the user recorded before nothing may be forgotten.
        first = self._first if last else None
        keep = first is None or any(recorded_before(output, first) for output, _ in heads)
        if not keep:
            self._forgetting()
        for place, gradient in zip(places, _gradients(heads, variables, self._training, keep=keep), strict=True):
            if place < self._asked:
                found[place] = gradient if found[place] is None else found[place] + gradient

    def _way(self, output: Any) -> Sequence[bool]:
        """For each variable whether a gradient comes to it from the output."""
        if id(output) not in self._ways:
            self._ways[id(output)] = (output, reached(output, self._variables))
        return self._ways[id(output)][1]


@contextlib.contextmanager
def _computed() -> Iterator[None]:
    """What MXNet fails at while gradients are computed and read is said as such.

    Raises:
        UnsupportedError: it failed.
    """
    try:
        yield
    except import_mxnet().MXNetError as error:
        operator = re.search(r"Operator (\S+) is non-differentiable", str(error))
        if operator is not None:
            raise UnsupportedError(
                f"between the lookup and the objective is the operator {operator[1]!r}, for which MXNet has no gradient: "
                "expected operators that have one; write it in terms of others"
            ) from error
        said = str(error).strip().splitlines()[-1].strip()
        raise UnsupportedError(
            f"MXNet fails to compute the gradient of an operator between the lookup and the objective ({said}): expected "
            "operators whose gradient it computes; write it in terms of others"
        ) from error


def _gradients(heads: Sequence[tuple[Any, Any]], variables: Sequence[Any], training: bool, *, keep: bool) -> list[Any]:
    with _computed():
        found = import_mxnet().autograd.grad(
            [output for output, _ in heads],
            variables,
            head_grads=[cotangent for _, cotangent in heads],
            retain_graph=keep,
            train_mode=training,
        )
    return list(found)

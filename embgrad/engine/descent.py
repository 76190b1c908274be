"""Roles of models with several stacks of blocks: a block is a layer only if its input changes with what the ids look up."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import replace
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from embgrad.backend.protocol import BoundModel, Change, Request, Run
from embgrad.common.tolerance import unit_roundoff
from embgrad.common.tracebacks import errors_of_model
from embgrad.errors import AmbiguousPointError, quote
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.other_ids import with_other_ids
from embgrad.model_points.descent import Chain, Reached
from embgrad.model_points.names import needs_added, needs_layers
from embgrad.model_points.points import WORD, Point, split_name
from embgrad.model_points.roles import points_of, with_role_by_position
from embgrad.toolkit.signature import NAMES

__all__ = ["with_certain_roles", "with_roles_of_text", "with_roles_of_user_pass"]

#: A change of a block's input below this share of it, in unit roundoffs, may be rounding that differs from pass to pass.
ROUNDING: Final = 16.0

#: The integer arguments that describe one text.
OF_TEXT: Final = frozenset(itertools.chain(*NAMES.values(), ("position_ids", "labels")))

#: By model and by form of a batch, whether the tensors at points change with what the ids look up, by the points' keys.
_known: WeakKeyDictionary[Any, dict[Hashable, dict[str, bool]]] = WeakKeyDictionary()


def with_roles_of_text(
    bound: BoundModel,
    batch: TokenBatch,
    reached: Sequence[Point],
    resolved: Sequence[Point],
    names: Collection[str] | None,
) -> list[Point]:
    """Return the points with the roles of the blocks that take the ids, and not those of an image or another text.

    Where the model has several stacks of blocks, or gets further inputs, forward passes with other rows at "word" show it. They
    are remembered.

    Args:
        names: the names that are to be located; None for all roles.

    Raises:
        AmbiguousPointError: a pass raised, or showed a change too small to decide on.
    """
    if not isinstance(reached, Reached) or (names is not None and not any(map(needs_layers, names))):
        return list(resolved)
    reached = _without_chance(reached, resolved)
    chains = reached.chains(alone=bound.call is None and not batch.extras)
    if not chains:
        return list(resolved)
    memory = bound.memory_of(_known)
    known = {} if memory is None else memory.setdefault((_form(bound, batch), *reached.words()), {})
    rows = min((lookup.rows for lookup in reached.lookups), default=0)
    others = None if reached.words() and bound.supports("add") else with_other_ids(batch, rows) or batch
    passes = _Passes(
        lambda run, request: bound.run(run, replace(request, call=bound.call)), reached, chains, known, others
    )
    return _with_words(passes.settle(lookups=names is None or any(map(needs_added, names))), resolved)


def with_roles_of_user_pass(
    reached: Sequence[Point], names: Collection[str], arguments: Collection[str]
) -> list[Point]:
    """Return the points that a pass of the user reached as `with_roles_of_text` does.

    Args:
        arguments: the names of the integer arguments of the pass.
    """
    if not isinstance(reached, Reached) or not any(map(needs_layers, names)):
        return list(reached)
    chains = reached.chains(alone=not reached.has_others and OF_TEXT.issuperset(arguments))
    again = reached.again
    if not chains:
        return list(reached)
    if again is None or not reached.words():
        raise AmbiguousPointError(f"{_several(reached, chains)}: name a module by its path")
    passes = _Passes(lambda _, request: again(request), reached, chains, {})
    return passes.settle(lookups=any(map(needs_added, names)))


def with_certain_roles(
    bound: BoundModel, batch: TokenBatch, reached: Sequence[Point], resolved: Sequence[Point]
) -> list[Point]:
    """Return the points as `with_roles_of_text` does for all roles, without those that it cannot decide on."""
    try:
        return with_roles_of_text(bound, batch, reached, resolved, None)
    except AmbiguousPointError:
        assert isinstance(reached, Reached)
        return _with_words(_without(reached, reached.chains(alone=False), _find_added(reached)), resolved)


def _without_chance(reached: Reached, resolved: Sequence[Point]) -> Reached:
    """Return what was reached, without the layouts of lookups whose indices are the ids by chance: those of an equal text."""
    words = {point.key for point in resolved if WORD in point.roles}
    chance = {point.key for point in reached if WORD in point.roles} - words
    lookups = [replace(lookup, layout=None) if lookup.key in chance else lookup for lookup in reached.lookups]
    return Reached(reached, reached.batch, lookups, reached.calls)


def _with_words(points: Sequence[Point], resolved: Sequence[Point]) -> list[Point]:
    before = {point.key: point for point in resolved}
    return [_with_word(point, before.get(point.key)) for point in points]


def _with_word(point: Point, before: Point | None) -> Point:
    """Return the point with the role "word" only where it was resolved to have it."""
    if before is None:
        return point
    words = tuple(role for role in before.roles if role == WORD)
    return replace(point, roles=(*words, *(role for role in point.roles if role != WORD)), lookup=before.lookup)


def _form(bound: BoundModel, batch: TokenBatch) -> Hashable:
    """Return the properties of a call that can decide what the model computes from what."""
    code = getattr(bound.call, "__code__", type(bound.call))
    return code, batch.convention, batch.mask is None, batch.types is None, tuple(batch.extras)


class _Passes:
    """Forward passes that show which tensors change with the rows of a lookup.

    Args:
        chains: the chains of blocks that it is not known of.
        known: whether the input of a chain changes, by its key, and whether a lookup leads to the layers; added to.
        others: the batch with other ids, which are run where the rows at "word" cannot be changed; None where they can.
    """

    def __init__(
        self,
        run: Callable[[TokenBatch, Request], Run],
        reached: Reached,
        chains: Sequence[Chain],
        known: dict[str, bool],
        others: TokenBatch | None = None,
    ) -> None:
        self._run = run
        self._reached = reached
        self._chains = chains
        self._known = known
        self._others = others
        self._unchanged: dict[str, np.ndarray] = {}

    def settle(self, *, lookups: bool) -> list[Point]:
        """Return the points with the roles of the text.

        Args:
            lookups: whether the roles are needed that depend on the lookups by position and by type.
        """
        try:
            foreign = self._foreign()
            apart = [key for key in _find_added(self._reached) if not self._leads(key)] if lookups else []
        except AmbiguousPointError:
            raise
        except errors_of_model() as failure:
            raise AmbiguousPointError(
                f"{_several(self._reached, self._chains)}, and a forward pass with other rows at {WORD!r}, which would show it, "
                f"raised {type(failure).__name__}: name a module by its path"
            ) from failure
        return _without(self._reached, foreign, apart) if foreign or apart else list(self._reached)

    def _foreign(self) -> list[Chain]:
        """Return the chains that do not take the ids."""
        keys = [self._reached.key(chain) for chain in self._chains]
        if any(key not in self._known for key in keys):
            changed = self._find_changed(keys, self._reached.words())
            self._known.update({key: self._expect_decided(key, changes) for key, changes in changed.items()})
        return [chain for chain, key in zip(self._chains, keys, strict=True) if not self._known[key]]

    def _leads(self, lookup: str) -> bool:
        """Return whether a lookup by position or type leads to blocks that take the ids, if there are any, and to no others."""
        if lookup not in self._known:
            keys = [self._reached.key(chain) for chain in self._chains]
            entries = [key for key in keys if self._known[key]]
            changed = self._find_changed(keys, [lookup])
            if any(changes for key, changes in changed.items() if not self._known[key]):
                self._known[lookup] = False
            else:
                self._known[lookup] = not entries or any(self._expect_decided(key, changed[key]) for key in entries)
        return self._known[lookup]

    def _find_changed(self, keys: Sequence[str], lookups: Sequence[str]) -> dict[str, bool | None]:
        """Return by key whether the tensors at points change with the rows of the lookups; without lookups, with the ids.

        None is for a tensor that changes as little as rounding may differ from pass to pass.
        """
        missing = [key for key in keys if key not in self._unchanged]
        if missing:
            self._unchanged.update(self._values(self._reached.batch, missing, {}))
        if self._others is None:
            values = self._values(self._reached.batch, keys, dict.fromkeys(lookups, _noise))
        else:
            values = self._values(self._others, keys, {})
        return {key: self._differs(self._unchanged[key], values[key]) for key in keys}

    def _values(self, batch: TokenBatch, keys: Sequence[str], add: dict[str, Change]) -> dict[str, np.ndarray]:
        run = self._run(batch, Request(tuple(keys), add=add, pullback=False))
        self._rounding = ROUNDING * unit_roundoff(run.compute_dtype)
        return {key: run.points[key].activation for key in keys}

    def _differs(self, before: np.ndarray, value: np.ndarray) -> bool | None:
        if before.shape != value.shape:
            return True
        if np.array_equal(before, value, equal_nan=True):
            return False
        most = float(np.abs(np.nan_to_num(value) - np.nan_to_num(before)).max())
        return most > self._rounding * float(np.abs(np.nan_to_num(before)).max()) or None

    def _expect_decided(self, key: str, changes: bool | None) -> bool:
        if changes is None:
            raise AmbiguousPointError(
                f"{_several(self._reached, self._chains)}: {key!r} hardly changes with other rows at {WORD!r}. Name a module by "
                "its path"
            )
        return changes


def _find_added(reached: Reached) -> list[str]:
    """Return the keys of the lookups that may be those by position or by type."""
    fitting = with_role_by_position(reached.batch, reached.lookups)
    return [lookup.key for lookup in fitting if lookup.layout is None]


def _without(reached: Reached, chains: Collection[Chain], lookups: Collection[str]) -> list[Point]:
    """Return the points with roles that are those of neither these chains nor these lookups."""
    return points_of(reached.batch, reached.lookups, reached.calls, reached.inside(chains), frozenset(lookups))


def _several(reached: Reached, chains: Sequence[Chain]) -> str:
    paths = quote([split_name(reached.key(chain)).path for chain in chains])
    return f"the layers may be those of the text or of another input, in {paths}"


def _noise(value: np.ndarray) -> np.ndarray:
    """Return what is added to the rows of a lookup: as large as they are, and different in each of their numbers."""
    size = float(np.sqrt(np.mean(np.square(value, dtype=np.float64)))) or 1.0
    return np.random.default_rng(0).normal(0, size, value.shape)

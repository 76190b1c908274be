"""The hypothesis of a sum of earlier tensors, alone or given to a norm, one of whose terms is another one in b."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.combination import by_multipliers, distinct, terms_of
from embgrad.comparison.hypotheses.lookup import explanation_of_rows, roles_of, rows_of, table_of
from embgrad.comparison.hypotheses.norm import norms_of
from embgrad.comparison.hypotheses.site import (
    Before,
    Changed,
    Explanation,
    Site,
    Values,
    kept,
    known_changes,
    remember,
    unset,
)
from embgrad.comparison.hypotheses.sources import Term, carried, norms_before, skipped_norms
from embgrad.model_points.points import INPUT, OUTPUT

__all__ = ["OtherTerm", "changed_sum", "sums"]

#: The most entries of a table times the number of tokens for which all rows are tried behind a norm.
MOST_TRIED: Final = 2**24

#: The size of a gain, as a share of the largest, up to which its feature of a norm's input cannot be seen.
HIDDEN: Final = 1e-6

#: The number of nearest tensors among which those of a alone may be terms.
MOST_UNSHARED: Final = 12

#: The most norms before a sum that may be those of one of its terms.
MOST_NORMS: Final = 4

#: The relative difference up to which two multipliers are equal.
SAME: Final = 1e-3


Function = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class Sum:
    """A sum, or a function of one, that a computes at a site.

    Attributes:
        whole: the sum.
        apply: the function: a norm, or none.
        name: the name of the point at which the norm is given the sum; "" without a norm.
        free: the directions in which a token's sum does not change b's output, orthonormal, (token, feature, direction), with
            the features that the output shows; None where every change shows.
        shown: the indices of these features.
    """

    whole: np.ndarray
    apply: Function
    name: str = ""
    free: np.ndarray | None = None
    shown: np.ndarray | None = None

    def seen(self, rows: np.ndarray) -> np.ndarray:
        """Return what of vectors, (token, feature), is not among the free directions; of b's sum nothing is."""
        assert self.free is not None
        own = rows[:, self.shown]
        return np.asarray(own - (self.free @ (own[:, None] @ self.free).swapaxes(1, 2))[..., 0])


#: The name of a table, its values, and the rows of it that a looks up.
Looked = tuple[str, np.ndarray, np.ndarray]


class OtherTerm:
    """A sum of which b multiplies a term by another number, leaves it out, or takes other rows of its table."""

    def explain(self, site: Site) -> list[Explanation]:
        """Return how b's sum differs from a's; an empty list where a computes none."""
        if not np.isfinite(site.rows(site.b)).all():
            return []
        near = itertools.islice(distinct(site, shared=False), MOST_UNSHARED)
        tensors = [*distinct(site), *(it for it in near if not it.shared)]
        known = known_changes(site)
        found: list[Explanation] = []
        for computed in sums(site):
            ways = [_again(computed, known), _explanations(site, computed, tensors)]
            for explanation, change in itertools.chain(*(ways if computed.name else reversed(ways))):
                predicted = computed.apply(computed.whole + change)
                found.append(replace(explanation, predicted=predicted))
                if site.off(predicted) <= site.near:
                    rivals = [] if _is_known(explanation, known) else explanation.rivals
                    remember(site, explanation, change)
                    for rival in rivals:
                        remember(site, rival, rival.predicted - computed.whole)
                    return found[-1:]
        return found


def _again(computed: Sum, known: Sequence[Changed]) -> Iterator[Changed]:
    """Yield what was found of earlier sums, which later ones contain as well where b cannot be given a's."""
    for explanation, change in known:
        if change.shape == computed.whole.shape:
            again, _ = _of_change(computed, replace(explanation, also=()), change)
            yield Changed(again if computed.name else replace(again, compute=None, inputs=()), change)


def _is_known(explanation: Explanation, known: Sequence[Changed]) -> bool:
    """Return whether an explanation is that of an earlier sum, whose rivals were remembered there."""
    return any(entry.rivals is explanation.rivals for entry, _ in known)


def _of_change(computed: Sum, explanation: Explanation, change: np.ndarray) -> Changed:
    """Return an explanation with b's function: a norm of its input in a with the change, or the changed sum."""
    whole, changed = computed.whole + change, Changed(explanation, change)
    if not computed.name:
        return changed._replace(explanation=replace(explanation, compute=lambda _: whole, inputs=()))
    names = tuple(dict.fromkeys((computed.name, *changed.inputs)))
    compute = partial(changed_sum, computed, changed.read, computed.name)
    return changed._replace(explanation=replace(explanation, compute=compute, inputs=names))


def changed_sum(
    computed: Sum, change: np.ndarray | Callable[[Values], np.ndarray], name: str, at: Values
) -> np.ndarray:
    """Return what the function of a sum, which is read at a point, returns of the sum with a change."""
    return computed.apply(unset(at)(name) + (change(at) if callable(change) else change))


def _explanations(site: Site, computed: Sum, tensors: Sequence[Before]) -> Iterator[Changed]:
    """Yield how b's sum differs from one that a computes.

    Args:
        site: the site.
        computed: a's sum.
        tensors: those that may be its terms, likeliest first.
    """
    yield from _of_skipped_norms(site, computed, computed.whole, 1.0)
    yield from _of_normed_residuals(site, computed)
    parts = [tensor for tensor in tensors if not np.array_equal(tensor.values, computed.whole)]
    found = terms_of(site, parts, site.rows(computed.whole))
    if found is None:
        return
    multipliers = found[1]
    own = [Term(parts[number], parts[number].values) for number in found[0]]
    yield from _of_multipliers(site, computed, own, multipliers)
    led = [carried(site, term) for term in own]
    if any(led):
        terms = [change or term for change, term in zip(led, own, strict=True)]
        yield from _of_multipliers(site, computed, terms, multipliers)
    for earlier, number in itertools.product(reversed(known_changes(site)), range(len(own))):
        if earlier.values.shape == computed.whole.shape:  # which goes on in one of the terms
            terms = [*own]
            terms[number] = _with_change(own[number], earlier)
            yield from _of_multipliers(site, computed, terms, multipliers)
    looked_up: list[tuple[Before, float, Looked]] = []
    for term, multiplier in zip(own, multipliers, strict=True):
        path = term.before.name.removesuffix(f":{OUTPUT}").partition("#")[0]
        held = table_of(site, path, site.rows(term.values))
        if held is not None:
            looked_up.append((term.before, multiplier, held))
            yield from _of_rows(site, computed, *looked_up[-1])
        yield from _of_skipped_norms(site, computed, term.values, multiplier)
    for entry in looked_up:
        yield from _of_features(computed, *entry)
    for entry in looked_up:
        yield from _of_positions(site, computed, *entry)


def sums(site: Site) -> Iterator[Sum]:
    """Yield the sums that a may compute: what it gives to a norm, and its output."""
    b = site.rows(site.b)
    for entry, norm in norms_of(site):
        if len(norm.gain) != b.shape[1]:  # by head
            continue
        shown = np.flatnonzero(np.abs(norm.gain) > HIDDEN * np.abs(norm.gain).max())
        directions = [((b - norm.shift) / np.where(norm.gain == 0, 1.0, norm.gain))[:, shown]]
        directions += [np.ones_like(directions[0])] if norm.centred else []
        yield Sum(entry.values, norm.apply, entry.name, np.linalg.qr(np.stack(directions, -1))[0], shown)
    yield Sum(site.a, np.asarray)


def _of_skipped_norms(site: Site, computed: Sum, term: np.ndarray, multiplier: float) -> Iterator[Changed]:
    """Yield the explanation that b goes on with what a norm is given, where a goes on with what it returns.

    It is one of order where both models have the norm's output as well: then b applies the norm before a part.
    """
    is_held = term is not computed.whole and any(it.shared and np.array_equal(it.values, term) for it in site.before)
    for norm, given in skipped_norms(site, term):
        cause, values = "missing-norm", ("applied", "missing")
        text = f"b lacks the norm {norm}"
        if is_held:
            cause, values = "norm-order", ("what it returns", "what it is given")
            text = f"b adds what the norm {norm} is given, where a adds what it returns"
        found = Explanation(
            cause, f"the norm {norm}", values, given.values, None, (given.name, norm), text,
            change=partial(_instead, Term(given, given.values), norm, multiplier),
        )  # fmt: skip
        yield _of_change(computed, found, multiplier * (given.values - term))


def _instead(term: Term, name: str, multiplier: float, at: Values) -> np.ndarray:
    """Return what a sum differs by that has a multiple of a term in place of that of a point."""
    return multiplier * (term.read(at) - at(name))


def _of_normed_residuals(site: Site, computed: Sum) -> Iterator[Changed]:
    """Yield the explanation that b adds to a part what the norm before it returns, where a adds what the norm is given."""
    for given, returned in itertools.islice(norms_before(site), MOST_NORMS):
        if returned.values.shape != computed.whole.shape or np.array_equal(given.values, computed.whole):
            continue
        norm, texts = returned.name, ("what it is given", "what it returns")
        sentence = f"b adds what the norm {norm} returns, where a adds what it is given"
        own = Term(returned, returned.values)
        for term in filter(None, (carried(site, own), own)):
            found = Explanation(
                "norm-order", f"the norm {norm}", texts, term.values, None, (given.name, *term.inputs), sentence,
                change=partial(_instead, term, given.name, 1.0),
            )  # fmt: skip
            yield _of_change(computed, found, term.values - given.values)


def _of_multipliers(site: Site, computed: Sum, terms: Sequence[Term], multipliers: np.ndarray) -> Iterator[Changed]:
    """Yield the explanation by other numbers by which terms are multiplied before a norm."""
    if computed.free is None or len(terms) < 2:
        return
    seen = np.stack([computed.seen(m * site.rows(t.values)).ravel() for t, m in zip(terms, multipliers, strict=True)])
    powers, vectors = np.linalg.eigh(seen @ seen.T)
    if powers[0] > site.near**2 * powers[-1]:
        return
    found = [
        explanation
        for factors in _with_unchanged(site, terms, vectors[:, 0])
        for explanation in itertools.islice(by_multipliers(site, terms, multipliers, factors * multipliers), 1)
    ]
    if found:
        first, *rivals = (_with_sum(it, computed.name) for it in found)
        change = first.predicted - computed.whole
        changed = replace(first, rivals=tuple(rivals))
        yield Changed(changed, change) if first.compute is None else _of_change(computed, changed, change)


def _with_sum(explanation: Explanation, name: str) -> Explanation:
    """Return the explanation of a sum, which a point is given, with its change."""
    whole = explanation.compute
    if whole is None:
        return explanation
    inputs = tuple(dict.fromkeys((*explanation.inputs, name)))
    return replace(explanation, change=kept(lambda at: whole(at) - unset(at)(name), inputs), inputs=inputs)


def _with_change(term: Term, earlier: Changed) -> Term:
    """Return a term in which the change of an earlier sum goes on."""
    name = term.before.name
    carrying = replace(
        earlier.explanation,
        compute=lambda at: unset(at)(name) + earlier.read(at),
        inputs=(name, *earlier.inputs),
        also=(),
    )
    return Term(term.before, term.values + earlier.values, carrying)


def _with_unchanged(site: Site, terms: Sequence[Term], factors: np.ndarray) -> list[np.ndarray]:
    """Return factors, which are known up to a common one, so that as many terms as can be are unchanged, likeliest first.

    Words are seldom unchanged, and what a sum is given by a module is so less often than what a residual carries.
    """
    same = max(SAME, site.floor)
    factors = np.where(np.abs(factors) <= same * np.abs(factors).max(), 0.0, factors)

    def unchanged(number: int) -> int:
        return int((np.abs(factors / factors[number] - 1) <= same).sum())

    def likelihood(number: int) -> tuple[bool, bool]:
        before = terms[number].before
        return not {"word", "embeddings"} & set(roles_of(site, before)), before.name.endswith(f":{INPUT}")

    numbers = np.flatnonzero(factors).tolist()
    most = max(map(unchanged, numbers))
    found: list[np.ndarray] = []
    for number in sorted((it for it in numbers if unchanged(it) == most), key=likelihood, reverse=True):
        each = factors / factors[number]
        each = np.where(np.abs(each - 1) <= same, 1.0, each)
        if not any(np.array_equal(each == 1, other == 1) for other in found):
            found.append(each)
    return found


def _of_rows(site: Site, computed: Sum, term: Before, multiplier: float, held: Looked) -> Iterator[Changed]:
    """Yield the explanation by other rows of a term's table."""
    _, table, rows = held
    rest = computed.whole - multiplier * term.values
    others = _rows_behind(site, computed, site.rows(rest), multiplier * table)
    if others is not None and not np.array_equal(others, rows):
        changed = np.array(term.values)
        changed[site.real_of(changed)] = table[others]
        change = multiplier * (changed - term.values)
        explanation = explanation_of_rows(site, term.name, roles_of(site, term), rows, others, changed)
        yield _of_change(computed, explanation, change)


def _of_features(computed: Sum, term: Before, multiplier: float, held: Looked) -> Iterator[Changed]:
    """Yield the explanations by a table whose features are in another order, as those of sines and cosines."""
    name, table, _ = held
    if table.shape[1] % 2:
        return
    in_turn = np.arange(table.shape[1]).reshape(2, -1).T.ravel()
    for order, text in ((in_turn, "in turn"), (np.argsort(in_turn), "apart")):
        values = term.values[..., order]
        sentence = f"b adds the rows of {name} with the features of their halves {text}"
        found = Explanation("permuted-weight", name, ("a's own order", text), values, sentence=sentence)
        yield _of_change(computed, found, multiplier * (values - term.values))


def _of_positions(site: Site, computed: Sum, term: Before, multiplier: float, held: Looked) -> Iterator[Changed]:
    """Yield the explanation by other vectors by position, which are the same in all texts."""
    if computed.free is not None or "position" not in roles_of(site, term):
        return
    name, table, rows = held
    added = (site.rows(site.b) - site.rows(computed.whole - multiplier * term.values)) / multiplier
    different, number, counts = np.unique(rows, return_inverse=True, return_counts=True)
    means = np.zeros((len(different), table.shape[1]))
    np.add.at(means, number, added / counts[number, None])
    moved = means - table[different]  # all by the same vector are another table's, such as that of types
    is_by_position = np.linalg.norm(means[number] - added) <= site.near * np.linalg.norm(added)
    if len(different) == len(rows) or not is_by_position or np.allclose(moved, moved[0], atol=site.near):
        return
    changed = np.array(term.values)
    changed[site.real_of(changed)] = means[number]
    sentence = f"b adds other vectors than the rows of {name}"
    found = Explanation("different-table", name, ("a's own", "others"), changed, sentence=sentence)
    yield _of_change(computed, found, multiplier * (changed - term.values))


def _rows_behind(site: Site, computed: Sum, rest: np.ndarray, table: np.ndarray) -> np.ndarray | None:
    """Return the rows of a table with which the rest of a sum leads to b's output; None where none do."""
    if computed.free is None:
        return rows_of(table, site.rows(site.b) - rest)
    if len(table) * len(rest) > MOST_TRIED:
        return None
    rest, table = rest[:, computed.shown], table[:, computed.shown]
    power = (rest**2).sum(-1)[:, None] + 2 * rest @ table.T + (table**2).sum(-1)
    free = sum(
        ((rest * direction).sum(-1)[:, None] + direction @ table.T) ** 2
        for direction in np.moveaxis(computed.free, -1, 0)
    )
    share = 1 - free / np.maximum(power, 1e-300)
    others = share.argmin(1)
    return others if (share.min(1) <= site.near**2).all() else None

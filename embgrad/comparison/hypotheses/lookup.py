"""The hypothesis of rows that are looked up in a table: other rows, another table, or rows times a number."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.site import NEAR, Before, Explanation, Site
from embgrad.comparison.recording import Tensor
from embgrad.comparison.sites import name_of
from embgrad.comparison.weight_values import keys_of_rows, nearest_of
from embgrad.model_points.points import INPUT, OUTPUT

__all__ = [
    "Rows",
    "cause_of_missing",
    "explanation_of_rows",
    "is_looked_up",
    "roles_of",
    "rows_of",
    "table_of",
]

#: The share of rows that are moved by the same number, from which the ids are moved and the table is not permuted.
MOVED: Final = 0.8

#: The causes of vectors that are zeros or left out in b, by the role of their lookup.
MISSING: Final = {"type": "types-ignored", "position": "missing-positions"}


class Rows:
    """The rows of a table by the batch's ids or positions."""

    def explain(self, site: Site) -> list[Explanation]:
        """Return how the lookups of both models differ; an empty list where a makes none."""
        tensor = site.recordings[0].tensors[site.pair.a]
        lookup = _lookup_at(site) if tensor.side == INPUT else tensor
        if lookup is None or site.a.shape[:2] != site.real.shape:
            return []
        a, b = site.rows(site.a), site.rows(site.b)
        held = table_of(site, lookup.path, a)
        label = site.name if lookup is tensor else name_of(lookup)
        return [] if held is None else list(self._explanations(site, label, *held, b))

    def _explanations(
        self, site: Site, label: str, name: str, table: np.ndarray, rows: np.ndarray, b: np.ndarray
    ) -> Iterator[Explanation]:
        own = table[rows]
        number = float((own * b).sum() / ((own * own).sum() or 1.0))
        if abs(number - 1) > site.near:
            roles = _roles(site)
            cause = next((key for role, key in MISSING.items() if role in roles and not b.any()), "scaled-lookup")
            yield _explanation(cause, f"{label} is multiplied by", ("1", site.text_of(number)), number * site.a)
        others = _rows_in_b(site, name, table, b)
        match = next((match for match in site.matching.matches if match.a == name), None)
        is_moved = others is not None and np.unique(others - rows, return_counts=True)[1].max() > MOVED * len(rows)
        if others is not None and match is not None and match.order is not None and not is_moved:
            predicted = np.array(site.b)
            predicted[site.real] = table[others]
            text = f"b has the rows of {name} in another order"
            yield _explanation(
                "permuted-weight", f"the rows of {name}", ("in order", "in another order"), predicted, text
            )
        elif others is not None and not np.array_equal(others, rows):
            predicted = np.array(site.b)
            predicted[site.real] = table[others]
            yield explanation_of_rows(site, label, _roles(site), rows, others, predicted)
        else:
            yield from self._of_table(site, name, table, rows, b)

    def _of_table(
        self, site: Site, name: str, table: np.ndarray, rows: np.ndarray, b: np.ndarray
    ) -> Iterator[Explanation]:
        differing = np.unique(rows[np.abs(b - table[rows]).max(-1) > site.near * np.abs(table).max()])
        others = np.unique(rows)
        match = next((match for match in site.matching.matches if match.a == name), None)
        partner = None if match is None else next(w for w in site.recordings[1].weights if w.name == match.b)
        if partner is None or partner.get().size != table.size:
            return
        theirs = partner.get().astype(np.float64)
        theirs = theirs if theirs.shape == table.shape else theirs.reshape(table.shape[::-1]).T
        predicted = np.array(site.b)
        predicted[site.real] = theirs[rows]
        if len(differing) == 1 and len(others) > 1:
            row = int(differing[0])
            how = "zeros" if not theirs[row].any() else "other values"
            text = f"b has {how} in row {row} of {name}"
            yield _explanation("padding-row", f"row {row} of {name}", ("a's own", how), predicted, text)
        elif match is not None and match.relation.startswith("rounded"):
            how = match.relation.removesuffix(" in b")
            yield _explanation("half-weights", name, ("a's own", how), predicted, f"b has {name} {how}")
        else:
            text = f"b has other rows in {name}"
            yield _explanation("different-table", name, ("a's own", "another table"), predicted, text)


def _lookup_at(site: Site) -> Tensor | None:
    """Return a lookup of a alone whose rows are given to the module at a site, such as that of a decoder's ids."""
    if any(before.shared and np.array_equal(before.values, site.a) for before in site.before):
        return None
    lookups = (tensor for tensor in site.recordings[0].tensors.values() if tensor.ids is not None)
    return next((tensor for tensor in lookups if np.array_equal(tensor.values, site.a)), None)


def explanation_of_rows(
    site: Site, name: str, roles: Container[str], rows: np.ndarray, others: np.ndarray, predicted: np.ndarray
) -> Explanation:
    """Return the explanation that b looks up other rows.

    Args:
        site: the site.
        name: of the lookup.
        roles: the lookup's.
        rows: a's rows at real positions.
        others: b's.
        predicted: b's output.
    """
    steps = np.unique(others - rows)
    types = site.recordings[0].batch.types
    varying = rows if rows.any() else others
    is_of_types = types is not None and types.shape == site.real.shape and np.array_equal(varying, types[site.real])
    is_of_types = is_of_types or ("type" in roles and len(np.unique(varying)) > 1)
    if not (rows.any() and others.any()) and is_of_types:
        first, second, values = ("b", "a", ("the types", "0")) if rows.any() else ("a", "b", ("0", "the types"))
        sentence = f"{first} looks up row 0 of {name} everywhere, where {second} takes the batch's types"
        return _explanation("types-ignored", f"the rows of {name}", values, predicted, sentence)
    if "type" in roles:
        texts = (" and ".join(str(row) for row, _ in _changed(rows, others)), _turned(_changed(rows, others)))
        return _explanation("other-ids", f"the types that are looked up in {name} are", texts, predicted)
    ids = site.ids[site.real] if site.ids.shape == site.real.shape else np.zeros(0, int)
    if not np.array_equal(rows, ids) and not np.array_equal(others, ids):
        if len(steps) > 1 and not _counts_on(site, rows):
            return _explanation(
                "other-ids", f"the rows of {name} are", ("a's own", _moved(site, rows, others)), predicted
            )
        if len(steps) == 1:
            text = str(int(rows.min())), str(int(others.min()))
            return _explanation("position-ids-offset", f"the rows of {name} start at", text, predicted)
        values, sentence = ("a's own", "others"), f"the rows of {name} are those of other positions in b"
        padding = np.repeat(site.real.argmax(1), site.real.sum(1))  # before the text
        for first, second, counted in (("b", "a", padding), ("a", "b", -padding)):
            if np.array_equal(others - rows, counted):
                values = ("as they are", "with padding") if first == "b" else ("with padding", "as they are")
                sentence = f"the positions of {name} count the padding before a text in {first}, and not in {second}"
        return _explanation("position-ids-offset", f"the rows of {name}", values, predicted, sentence)
    values = (_relative_to(site, ids, rows), _relative_to(site, ids, others))
    return _explanation("other-ids", f"the rows of {name} are", values, predicted)


def _counts_on(site: Site, rows: np.ndarray) -> bool:
    """Return whether rows are those of positions: the next one, or the same, from each position to the next of its text."""
    steps = [np.diff(part) for part in _by_text(site, rows)]
    return all(np.isin(step, (0, 1)).all() for step in steps)


def _moved(site: Site, rows: np.ndarray, others: np.ndarray) -> str:
    """Return a text for rows of b: those of a at a neighbouring position, or from the text's end, or others."""
    both = list(zip(_by_text(site, rows), _by_text(site, others), strict=True))
    if all(np.array_equal(its, mine[::-1]) for mine, its in both):
        return "those of the text from its end"
    if all(np.array_equal(its[1:], mine[:-1]) for mine, its in both):
        return "those of the position before"
    if all(np.array_equal(its[:-1], mine[1:]) for mine, its in both):
        return "those of the position behind"
    return "others"


def _by_text(site: Site, rows: np.ndarray) -> list[np.ndarray]:
    """Return rows at real positions by their texts."""
    return np.split(rows, np.cumsum(site.real.sum(1))[:-1])


def table_of(site: Site, path: str, vectors: np.ndarray) -> tuple[str, np.ndarray, np.ndarray] | None:
    """Return the name of a table of a module of a, the table and the rows that vectors are; None where none holds them all."""
    for weight in site.recordings[0].weights:
        if len(weight.shape) == 2 and weight.module == path and weight.shape[1] == vectors.shape[1]:
            table = weight.get().astype(np.float64)
            rows = rows_of(table, vectors)
            if rows is not None:
                return weight.name, table, rows
    return None


def _changed(rows: np.ndarray, others: np.ndarray) -> list[tuple[int, int]]:
    """Return the different pairs of a row of a and the row of b in its place."""
    return [(int(row), int(other)) for row, other in np.unique(np.stack([rows, others], 1), axis=0)]


def _turned(changed: Sequence[tuple[int, int]]) -> str:
    """Return a text for b's rows, such as "1 for 0 and 0 for 1"."""
    if len(changed) == 1:
        return str(changed[0][1])
    return " and ".join(f"{other} for {row}" for row, other in changed)


def _relative_to(site: Site, ids: np.ndarray, rows: np.ndarray) -> str:
    """Return a text for the rows that are looked up, such as "the ids + 1"."""
    steps = np.unique(rows - ids)
    if len(steps) > 1:
        return _moved(site, ids, rows)
    return "the ids" if not steps[0] else f"the ids {'+' if steps[0] > 0 else '-'} {abs(steps[0])}"


def _roles(site: Site) -> set[str]:
    """Return the roles of the lookup at a site, also where the site is the output of the lookup's module."""
    tensors = site.recordings[0].tensors.values()
    return {role for tensor in tensors if tensor.path == site.path for role in tensor.roles}


def _explanation(
    cause: str, setting: str, values: tuple[str, str], predicted: np.ndarray, sentence: str = ""
) -> Explanation:
    return Explanation(cause, setting, values, predicted, lambda at: predicted, (), sentence)


def rows_of(table: np.ndarray, values: np.ndarray) -> np.ndarray | None:
    """Return the rows of a table that hold these vectors; None where one is no row."""
    keys = keys_of_rows(table)
    ranked = np.argsort(keys, kind="stable")
    rows = ranked[nearest_of(keys[ranked], keys_of_rows(values))]
    scale = np.linalg.norm(values, axis=1) + 1e-30
    return rows if (np.linalg.norm(table[rows] - values, axis=1) <= NEAR * scale).all() else None


def _rows_in_b(site: Site, name: str, table: np.ndarray, values: np.ndarray) -> np.ndarray | None:
    """Return the rows of a table that b's vectors are, as a holds it or as b does; None where one is no row."""
    other, match = site.partners.get(name, (None, None))
    tables = [table]
    if other is not None and match is not None and match.relation.startswith("rounded") and other.shape == table.shape:
        tables.append(other.get().astype(np.float64))
    return next((rows for it in tables if (rows := rows_of(it, values)) is not None), None)


def is_looked_up(site: Site, before: Before) -> bool:
    """Return whether a tensor holds rows of a table, such as those of a decoder's ids."""
    tensors = site.recordings[0].tensors.values()
    return any(tensor.ids is not None and name_of(tensor) == before.name for tensor in tensors)


def cause_of_missing(site: Site, before: Before) -> str:
    """Return the cause of a term of a sum that one model leaves out."""
    return next((MISSING[role] for role in roles_of(site, before) if role in MISSING), "missing-residual")


def roles_of(site: Site, before: Before) -> tuple[str, ...]:
    """Return the roles of a tensor in either model, or of the lookup whose module outputs it."""
    path = before.name.removesuffix(f":{OUTPUT}")
    tensors = [tensor for tensor in site.recordings[0].tensors.values() if tensor.path == path]
    tensors += [site.recordings[1].tensors[pair.b] for pair in site.pairs if pair.name == before.name]
    return next((tensor.roles for tensor in tensors if tensor.roles), ())

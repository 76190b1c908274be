"""The page docs/architectures.md, made from the rows in docs/architectures.json."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.zoo.frameworks import FRAMEWORKS

__all__ = ["CHECKS", "PAGE", "RECORD", "ROLES", "Verdict", "count", "page", "recorded", "write"]

DOCS: Final = Path(__file__).parents[2] / "docs"
PAGE: Final = DOCS / "architectures.md"
RECORD: Final = DOCS / "architectures.json"

#: The calls that are compared, in the order in which they are made.
CHECKS: Final = ("word", "layer.-1", "attribute", "attribute_tokens")
#: The roles whose points are listed.
ROLES: Final = ("word", "position", "type", "embeddings", "layer.0", "layer.-1")

HEAD: Final = """# Architectures and roles

Every text architecture of `transformers` and of `keras-hub` is built small, with random weights, from the parameters of its
configuration or its backbone alone, and compared with gradients by hand: the rows of the ids, or a layer's output, become a
variable of the framework, whose own differentiation gives the gradient. Compared are `gradients` at `word` and at `layer.-1`,
`attribute` by integrated gradients, and `attribute_tokens` of models that continue texts. Afterwards the model must be what it
was before: its mode, hooks, attributes and buffers, and the bits of its weights. `make zoo` does this and writes the page."""

ABOUT_COUNTS: Final = """\
*Equal* is a difference of at most 1e-5 from the gradient by hand, relative in the L2 norm, and 1e-4 for attributions, whose
steps are run as further examples. *Refused* is an error of embgrad's, which says why. *Wrong* is a number that differs. *Raw* is
an error that is not embgrad's. *Not compared* are gradients that are zero, or that are not to be had by hand."""

ABOUT_ROLES: Final = """\
The names of modules play no role: `word` is the lookup whose indices are the batch's ids, `position` and `type` are the
lookups whose indices count up or are the types, `layer.N` are the calls of the repeated block, and `embeddings` is the output
of the block that makes all lookups, or else the input of the first layer. Each architecture is listed with one of its classes."""


@dataclass(frozen=True)
class Verdict:
    """What a row counts as.

    Attributes:
        statuses: how many calls are "equal", "exact" among them, "refused", "wrong", "raw" or "unchecked", by call.
        lines: what is wrong, raw, another layer, changed or ended, a line each.
    """

    statuses: Mapping[str, str]
    lines: tuple[str, ...]

    @property
    def bad(self) -> bool:
        """Whether a number is wrong, an error is raw, or the model was changed or ended."""
        return bool(self.lines)


def count(row: Mapping[str, Any]) -> Verdict:
    """Return what a row counts as."""
    checks = row.get("checks", {})
    lines = [
        f"{name} {check['status']}: {check.get('message') or check.get('difference')}"
        for name, check in checks.items()
        if check["status"] in ("wrong", "raw")
    ]
    lines += [f"the last layer by hand is {row['layer']}"] if "layer" in row else []
    lines += [f"changed: {text}" for text in row.get("changed", ())]
    lines += [f"ended: {row['ended']}"] if "ended" in row else []
    return Verdict({name: check["status"] for name, check in checks.items()}, tuple(lines))


def recorded(path: Path = RECORD) -> dict[str, Any]:
    """Return the rows by framework; none if there is no such file."""
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return record


def write(record: Mapping[str, Any], listed: Iterable[str], framework: str, path: Path = RECORD) -> None:
    """Write the rows, a line each, a framework's in the order of a list, and its roles once for each architecture."""
    rows = record[framework]["rows"]
    families = set()
    for name in [name for name in listed if name in rows]:
        row = rows.pop(name)
        if "roles" in row and row["family"] in families:
            del row["roles"]
        families |= {row["family"]} if "roles" in row else set()
        rows[name] = row
    sections = [
        f'"{name}": {{"versions": {json.dumps(record[name]["versions"])}, "rows": {{\n'
        + ",\n".join(f"{json.dumps(key)}: {json.dumps(row)}" for key, row in record[name]["rows"].items())
        + "\n}}"
        for name in FRAMEWORKS
        if name in record
    ]
    path.write_text("{\n" + ",\n".join(sections) + "\n}\n", encoding="utf-8")


def page(record: Mapping[str, Any]) -> str:
    """Return the page."""
    present = [name for name in FRAMEWORKS if name in record]
    parts = [HEAD, _versions(record, present), _counts(record, present), ABOUT_COUNTS]
    bad = [
        f"- {row['name']} ({name}): {line}"
        for name in present
        for row in _rows(record, name)
        for line in count(row).lines
    ]
    if bad:
        parts += ["## What is wrong", "\n".join(bad)]
    parts += ["## What is refused", _reasons(record, present, "refused")]
    parts += ["## What was not compared", _reasons(record, present, "unchecked")]
    parts += ["## Where each role is", ABOUT_ROLES]
    for name in present:
        parts += [f"### {FRAMEWORKS[name].title}", _roles(_rows(record, name))]
    return "\n\n".join(parts) + "\n"


def _rows(record: Mapping[str, Any], framework: str) -> list[Mapping[str, Any]]:
    return list(record[framework]["rows"].values())


def _versions(record: Mapping[str, Any], present: Iterable[str]) -> str:
    named = (
        f"{FRAMEWORKS[name].title}: "
        + ", ".join(f"{package} {version}" for package, version in record[name]["versions"].items())
        for name in present
    )
    return f"The packages are, for {'; '.join(named)}."


def _counts(record: Mapping[str, Any], present: Iterable[str]) -> str:
    """Return a line on each framework, and the table of its calls."""
    sentences = []
    titles = ("classes", "equal", "bit for bit", "refused", "wrong", "raw", "not compared")
    table = [f"| | | {' | '.join(titles)} |", f"|---|---|{'---|' * len(titles)}"]
    for name in present:
        rows, title = _rows(record, name), FRAMEWORKS[name].title
        ran = [row for row in rows if row.get("checks")]
        changed, ended = (sum(key in row for row in rows) for key in ("changed", "ended"))
        sentences.append(
            f"- {title}: {len(rows):,} classes of {_architectures(rows):,} architectures were tried; {len(ran):,} of "
            f"{_architectures(ran):,} run, of which {changed:,} were changed by a call; {ended:,} did not come to an end."
        )
        for check in CHECKS:
            own = [row["checks"][check] for row in ran if check in row["checks"]]
            statuses = Counter(entry["status"] for entry in own)
            exact = sum(entry.get("difference") == 0 for entry in own)
            others = (statuses[status] for status in ("refused", "wrong", "raw", "unchecked"))
            cells = (len(own), statuses["equal"], exact, *others)
            table.append(f"| {title} | `{check}` | {' | '.join(f'{cell:,}' for cell in cells)} |")
    return "\n".join(sentences) + "\n\n" + "\n".join(table)


def _architectures(rows: Iterable[Mapping[str, Any]]) -> int:
    return len({row["family"] for row in rows})


def _reasons(record: Mapping[str, Any], present: Iterable[str], status: str) -> str:
    """Return the reasons as a list, each with the calls and the classes."""
    reasons: dict[str, dict[str, list[str]]] = {}
    for name in present:
        for row in _rows(record, name):
            entries = [
                (check, entry["message"]) for check, entry in row.get("checks", {}).items() if entry["status"] == status
            ]
            if status == "unchecked" and "unchecked" in row:
                entries.append(("", row["unchecked"]))
            for check, message in entries:
                reasons.setdefault(_general(message), {}).setdefault(check, []).append(row["name"])
    lines = []
    for reason, checks in sorted(reasons.items(), key=lambda item: (-sum(map(len, item[1].values())), item[0])):
        counted = ", ".join(
            f"{len(set(names))} at `{check}`" if check else f"{len(set(names))}" for check, names in checks.items()
        )
        classes = list(dict.fromkeys(name for names in checks.values() for name in names))
        shown = ", ".join(classes[:4]) + (", …" if len(classes) > 4 else "")
        lines.append(f"- {counted}: {_code(reason)} ({shown})")
    return "\n".join(lines) or "Nothing."


def _general(message: str) -> str:
    """Return a message without the names and the numbers of one model."""
    text = re.split(r"(?<=[.!?;]) ", message)[0]
    text = re.sub(r"[\w.]+#\d+( \([^)]*\))?", "…", text)
    text = re.sub(r"'[\w.]*\d[\w.]*'", "…", text)
    text = re.sub(r"(?<![\w.-])-?\d+(\.\d+)?(,\d{3})*", "N", text)
    return text if len(text) <= 200 else f"{text[:197]}..."


def _code(text: str) -> str:
    return f"`{text.replace('`', chr(39))}`"


def _roles(rows: Iterable[Mapping[str, Any]]) -> str:
    lines = [f"| | {' | '.join(f'`{role}`' for role in ROLES)} |", f"|---|{'---|' * len(ROLES)}"]
    for row in rows:
        if "roles" in row:
            names = (f"`{row['roles'][role]}`" if role in row["roles"] else "–" for role in ROLES)
            lines.append(f"| {row['family']} ({row['name']}) | {' | '.join(names)} |")
    return "\n".join(lines)

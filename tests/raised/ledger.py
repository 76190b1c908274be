"""The list of every error with a test that raises it: kept beside the tests, checked by them, and written out as a page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.raised.sites import CLASSES, ROOT, Site, sites

__all__ = ["LEDGER", "PAGE", "Row", "chosen", "page", "read", "write"]

LEDGER = Path(__file__).parent / "raised.json"
PAGE = ROOT / "docs" / "errors" / "messages.md"

_HEAD = """# Every message

Each place in the library that makes an error, by class, with a test that raises it; `…` stands for what is filled in.
Written by `python -m tests.raised`; a new error without a test in this list fails the tests, and so does a test in it that does
not raise its error any more. `in` names the frameworks in whose tests the error was raised; where there is none, it is raised
before a framework comes in.
"""


@dataclass(frozen=True)
class Row:
    """What is known of a place that makes an error.

    Attributes:
        test: a test that raises it, by pytest's name for it.
        frameworks: the backends at work when a test raised it.
    """

    test: str
    frameworks: tuple[str, ...]


def read() -> dict[str, Row]:
    """The list, by the places' keys."""
    rows = json.loads(LEDGER.read_text(encoding="utf-8"))
    return {key: Row(row["test"], tuple(row["frameworks"])) for key, row in rows.items()}


def write(rows: Mapping[str, Row]) -> None:
    """Keep the list, and its page."""
    kept = {key: {"test": row.test, "frameworks": list(row.frameworks)} for key, row in sorted(rows.items())}
    LEDGER.write_text(json.dumps(kept, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(rows), encoding="utf-8")


def chosen(records: Iterable[Path]) -> dict[str, Row]:
    """Of what `Recorder` wrote, a test for each place: one that runs without any framework, if there is one, and the shortest."""
    raised: dict[str, dict[str, set[str]]] = {}
    for path in records:
        for key, tests in json.loads(path.read_text(encoding="utf-8")).items():
            for test, names in tests.items():
                raised.setdefault(key, {}).setdefault(test, set()).update(names)
    known = {site.key for site in sites()}
    rows = {}
    for key, tests in raised.items():
        if key in known and tests:
            rows[key] = Row(min(tests, key=_rank), tuple(sorted(set[str]().union(*tests.values()))))
    return rows


def _rank(test: str) -> tuple[bool, int, str]:
    return not test.startswith("tests/core/"), len(test), test


def page(rows: Mapping[str, Row]) -> str:
    """The list as Markdown."""
    parts = [_HEAD]
    by_class: dict[str, list[Site]] = {}
    for site in sites():
        by_class.setdefault(site.error, []).append(site)
    for error in sorted(by_class, key=lambda name: (name not in CLASSES, name)):
        link = f"[`{error}`]({error.lower()}.md)" if error in CLASSES else f"`{error}`"
        parts.append(f"## {link}\n")
        parts += [_entry(site, rows.get(site.key)) for site in by_class[error]]
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def _entry(site: Site, row: Row | None) -> str:
    said = " ".join(site.message.split()).replace("`", "'")
    where = f"`{site.module}.{site.function}`".replace(".`", "`")
    if row is None:
        return f"- `{said}` – {where}; no test"
    held = f", in {', '.join(row.frameworks)}" if row.frameworks else ""
    return f"- `{said}` – {where}{held}; `{row.test.partition('[')[0]}`"

"""The table of docs/decoders.md, made from the cells in docs/decoders.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

DOCS: Final = Path(__file__).parents[2] / "docs"
RECORD: Final = DOCS / "decoders.json"
TITLES: Final = {"torch": "PyTorch", "tensorflow": "TensorFlow", "gluon": "MXNet Gluon"}
BEGIN: Final = "<!-- decoders: table -->"
END: Final = "<!-- decoders: end of the table -->"

#: The largest relative difference that rounding explains, in float32 and where a mode computes with few digits.
EXACT: Final = 1e-6
ROUNDED: Final = 6e-2


def recorded() -> Mapping[str, Any]:
    """Return the recorded cells by framework."""
    record: Mapping[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return record


def with_table(text: str, record: Mapping[str, Any]) -> str:
    """Return the page with the table of these cells in its marked block."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(record)}\n{END}{after}"


def table(record: Mapping[str, Any]) -> str:
    """Return all tables and the errors that they refer to, as Markdown."""
    errors: dict[str, int] = {}
    parts = []
    for framework, title in TITLES.items():
        if framework in record:
            versions = ", ".join(f"{name} {version}" for name, version in record[framework]["versions"].items())
            parts.append(f"**{title}** ({versions})\n\n{_modes(record[framework]['cells'], errors)}")
    if "torch" in record:
        cells = record["torch"]["cells"]
        parts.append(f"**Padding**, in float32\n\n{_padding(record)}")
        parts.append(f"**What quantisation and bfloat16 change** in the gradient, beside float32\n\n{_changes(cells)}")
    parts.append("\n".join(f"{number}. {error}" for error, number in errors.items()))
    return "\n\n".join(parts)


def _modes(cells: Mapping[str, Mapping[str, Any]], errors: dict[str, int]) -> str:
    modes = list(next(iter(cells.values())))
    lines = [f"| | {' | '.join(modes)} |", f"|---|{'---|' * len(modes)}"]
    for name, row in cells.items():
        lines.append(f"| {name} | {' | '.join(_outcome(row[mode], errors) for mode in modes)} |")
    return "\n".join(lines)


def _outcome(cell: Mapping[str, Any], errors: dict[str, int]) -> str:
    """Return what a cell shows: the difference from the framework's own gradient, or the number of an error."""
    reason = cell["error"] or cell["inapplicable"]
    if reason:
        return f"no ({errors.setdefault(reason, len(errors) + 1)})"
    if cell["changed"]:
        return f"changes {cell['changed'][0]}"
    return _figure(max(cell["own"], cell["right"]))


def _padding(record: Mapping[str, Any]) -> str:
    cells = {
        name if framework == "torch" else f"{name}, in {TITLES[framework]}": row
        for framework in TITLES
        for name, row in record.get(framework, {"cells": {}})["cells"].items()
    }
    lines = ["| | on the right | on the left | on the left, with `position_ids` |", "|---|---|---|---|"]
    for name, row in cells.items():
        cell = row["float32"]
        left = _figure(cell["left"]) + (", with a warning" if cell["warned"] else "")
        positions = "takes none" if cell["positions"] is None else _figure(cell["positions"])
        lines.append(f"| {name} | {_figure(cell['right'])} | {left} | {positions} |")
    return "\n".join(lines)


def _changes(cells: Mapping[str, Mapping[str, Any]]) -> str:
    modes = [mode for mode in next(iter(cells.values())) if any(row[mode]["from_float32"] for row in cells.values())]
    lines = [f"| | {' | '.join(modes)} |", f"|---|{'---|' * len(modes)}"]
    for name, row in cells.items():
        shares = [row[mode]["from_float32"] for mode in modes]
        lines.append(f"| {name} | {' | '.join('–' if share is None else f'{share:.1%}' for share in shares)} |")
    return "\n".join(lines).replace("%", " %")


def _figure(value: float) -> str:
    return "0" if value == 0 else f"{value:.0e}".replace("e-0", "e-")

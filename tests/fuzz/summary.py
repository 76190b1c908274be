"""The tables at the end of a run."""

from __future__ import annotations

from collections.abc import Sequence

from tests.fuzz.running import Tally

KINDS = ("right", "refused", "failed")


def summary(tally: Tally) -> str:
    """Return tables of verdicts, errors and speeds by public function and framework."""
    functions = sorted({function for function, _, _ in tally.verdicts})
    frameworks = list(dict.fromkeys(framework for _, framework, _ in sorted(tally.verdicts, key=lambda one: one[1])))
    rows = [["function", *frameworks, "all"]]
    for function in functions:
        cells = ["/".join(str(tally.verdicts[function, framework, kind]) for kind in KINDS) for framework in frameworks]
        whole = (sum(tally.verdicts[function, one, kind] for one in frameworks) for kind in KINDS)
        rows.append([function, *cells, "/".join(map(str, whole))])
    whole = [
        "/".join(str(sum(tally.verdicts[f, one, kind] for f in functions)) for kind in KINDS) for one in frameworks
    ]
    totals = "/".join(str(sum(count for key, count in tally.verdicts.items() if key[2] == kind)) for kind in KINDS)
    rows.append(["all", *whole, totals])
    speeds = [["milliseconds a call", *frameworks]]
    for function in functions:
        speeds.append([function, *(_milliseconds(tally, function, framework) for framework in frameworks)])
    rates = [["framework", "calls", "seconds", "calls per second"]]
    for framework in frameworks:
        calls = sum(count for key, count in tally.verdicts.items() if key[1] == framework)
        seconds = sum(spent for key, spent in tally.seconds.items() if key[1] == framework)
        rates.append([framework, str(calls), f"{seconds:.1f}", f"{calls / seconds:.1f}" if seconds else "-"])
    errors = [["error", "count"], *([name, str(count)] for name, count in tally.errors.most_common())]
    return "\n\n".join(
        [
            f"verdicts: {'/'.join(KINDS)}\n{_table(rows)}",
            f"errors\n{_table(errors)}\n{tally.warned} EmbgradWarnings",
            _table(speeds),
            _table(rates),
            f"{tally.calls} calls, {len(tally.failed)} failed{': ' + str(tally.failed[:50]) if tally.failed else ''}",
        ]
    )


def _milliseconds(tally: Tally, function: str, framework: str) -> str:
    calls = sum(tally.verdicts[function, framework, kind] for kind in KINDS)
    return f"{1000 * tally.seconds[function, framework] / calls:.0f}" if calls else "-"


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    )

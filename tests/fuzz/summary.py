"""The tables at the end of a run."""

from __future__ import annotations

from collections.abc import Sequence

from tests.fuzz.running import Tally

KINDS = ("right", "refused", "failed")


def summary(tally: Tally) -> str:
    functions = sorted({function for function, _, _ in tally.verdicts})
    frameworks = sorted({framework for _, framework, _ in tally.verdicts})

    def verdicts(some_functions: Sequence[str], some_frameworks: Sequence[str]) -> list[int]:
        pairs = [(function, framework) for function in some_functions for framework in some_frameworks]
        return [sum(tally.verdicts[(*pair, kind)] for pair in pairs) for kind in KINDS]

    def cells(some_functions: Sequence[str]) -> list[str]:
        columns = [*([framework] for framework in frameworks), frameworks]
        return ["/".join(map(str, verdicts(some_functions, column))) for column in columns]

    rows = [
        ["function", *frameworks, "all"],
        *([name, *cells([name])] for name in functions),
        ["all", *cells(functions)],
    ]
    errors = [["error", "count"], *([name, str(count)] for name, count in tally.errors.most_common())]
    failed = f": {tally.failed[:50]}" if tally.failed else ""
    return (
        f"verdicts: {'/'.join(KINDS)}\n{_table(rows)}\n\nerrors\n{_table(errors)}\n{tally.warned} EmbgradWarnings\n\n"
        f"{tally.calls} calls, {len(tally.failed)} failed{failed}"
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    )

"""`embgrad attribute --to`: the scores of any number of texts as a table in a file, written batch by batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from embgrad.attribution.method import Method
from embgrad.cli.files import expect_writable
from embgrad.cli.options import GradientRequest, Inputs, Models, of_output
from embgrad.cli.request import load_with_batch, note_default, with_objective
from embgrad.cli.run import OK
from embgrad.cli.terminal import Terminal
from embgrad.errors import EmbgradError
from embgrad.loading.errors import UsageError
from embgrad.objectives.objectives import Objective
from embgrad.results.attribution import Attributions
from embgrad.results.table_file import expect_table_file, open_table
from embgrad.results.tabular import Columns, Tabular, TabularByChoice, TabularGradients, columns_of_tokens, stack
from embgrad.streaming.stream import stream
from embgrad.streaming.tables import columns_in_turn

__all__ = ["TableOptions", "expect_table", "write_results", "write_table"]


@dataclass(frozen=True)
class TableOptions:
    """The file of a table, and what its rows stand for."""

    to: Annotated[
        str | None,
        of_output(
            "--to",
            metavar="TABLE",
            help="The table to write, .parquet or .csv: a row for each token. Without --output and --html the texts are run in "
            "batches of --batch-size (32) and not printed, so that there may be any number of them.",
        ),
    ] = None
    words: Annotated[bool, of_output("--words", help="With --to: a row for each word.")] = False

    @property
    def by(self) -> str:
        """The unit of a row, "tokens" or "words"."""
        return "words" if self.words else "tokens"

    def expect(self) -> None:
        """Check, before anything is computed, that the table can be written."""
        if self.to is None:
            if self.words:
                raise UsageError("--words says what the rows of --to stand for: add --to TABLE, or remove it")
            return
        expect_table(self.to)

    def write(self, results: Attributions) -> None:
        """Write the table of results that are in memory."""
        if self.to is not None:
            with open_table(self.to) as add:
                add(columns_of_tokens(results, self.by, True))

    def say_written(self, terminal: Terminal) -> None:
        """Print which table was written."""
        if self.to is not None:
            terminal.say(f"written to {self.to}")


def expect_table(path: str) -> None:
    """Check, before anything is computed, that a table can be written."""
    if path == "-":
        raise UsageError("--to is '-': expected the name of a file that ends in .parquet or .csv")
    expect_writable(path, "--to")
    try:
        expect_table_file(path)
    except EmbgradError as error:
        raise UsageError(f"--to: {error.message}") from error


def write_results(path: str, results: Mapping[str, Any], by: str) -> None:
    """Write the table of saved results; that of several has their names in a column.

    Args:
        by: "tokens" or "words", for results with a score for each token.
    """
    tables = {name: _columns_of(name, result, by) for name, result in results.items()}
    if len({tuple(columns) for columns in tables.values()}) > 1:
        raise UsageError("--to: the results have different tables; choose one of them with --at")
    with open_table(path) as add:
        add(stack("result", tables) if len(tables) > 1 else next(iter(tables.values())))


def _columns_of(name: str, result: Any, by: str) -> Columns:
    if isinstance(result, TabularByChoice):
        return result._columns_by(None)
    if isinstance(result, Tabular | TabularGradients):
        return columns_of_tokens(result, by, True)
    raise UsageError(f"--to: {name!r} is a {type(result).__name__}, which has no table; remove --to")


def write_table(
    table: TableOptions,
    methods: Mapping[str, Method],
    models: Models,
    inputs: Inputs,
    request: GradientRequest,
    at: str,
    terminal: Terminal,
) -> int:
    """Compute the attributions of all texts batch by batch, and write each batch's rows before the next is computed."""
    assert table.to is not None
    with open_table(table.to) as add:  # opened before the model runs: what cannot be written is known at once
        loaded, batch, tokenizer = load_with_batch(models, inputs, request, terminal)
        options = {
            "tokenizer": tokenizer,
            "max_length": inputs.max_length,
            "batch_size": request.batch_size,
            "at": at,
            "call": request.function(),
            "training": request.training,
            "pads": request.pads,
            "keep": "saliency",
        }

        def run(objective: Objective) -> int:
            count = 0
            for name, method in methods.items():
                with terminal.progress(f"{name.replace('_', '-')} in {loaded.framework} …") as progress:
                    source: Any = [batch] if batch.texts is None else batch.texts
                    with stream(
                        loaded.model, source, objective, method=method, progress=progress, **options
                    ) as results:
                        for columns in columns_in_turn(results, None, table.by, True):
                            add(stack("method", {name: columns}))
                            count += len(columns["score"])
            return count

        used, rows = with_objective(request.parsed, run)
    note_default(request, used, terminal)
    terminal.say(f"{rows} rows of {len(batch)} examples")
    table.say_written(terminal)
    terminal.give({"framework": loaded.framework, "examples": len(batch), "rows": rows, "table": table.to})
    return OK

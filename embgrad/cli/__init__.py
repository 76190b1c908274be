"""The command `embgrad`: imports nothing heavy, and says what to install where the extra `cli` is missing."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: what follows the command's name; None for the process's own.

    Returns:
        The exit code: 0 agree, or done; 1 differ; 2 usage or input; 130 interrupted; 141 the reader of the output has gone.
    """
    missing = [name for name in ("typer", "rich") if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"embgrad: the command line needs {' and '.join(missing)}: pip install 'embgrad[cli]'",
            file=sys.stderr,
        )
        return 2
    from embgrad.cli.app import run

    return run(arguments)

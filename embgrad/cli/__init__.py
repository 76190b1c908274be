"""The command `embgrad`: a light entry point that names the packages to install if the extra `cli` is missing."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: the arguments after the command's name; None for those of the process.

    Returns:
        The exit code: 0 success or agreement; 1 difference; 2 wrong usage or input; 130 interrupted; 141 the reader of the
        output has closed the pipe.
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

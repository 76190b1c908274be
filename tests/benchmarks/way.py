"""The way of one call: how much of embgrad a warm `gradients` goes through, and how deep the model's own forward pass is.

Of embgrad and its backends: the files and functions that are entered, the lines that are executed, each counted once, and the
calls; then the model's forward passes, and the functions on the stack when one is called. The models are those whose points are
priced: `python -m tests.benchmarks.way PyTorch JAX`, or `make way`, in an environment with these frameworks.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

#: The points of the calls, the size of the models, and the number of calls before the one that is followed.
POINTS: Final = ("word", "layer.-1")
LAYERS, DIM, WARM = 2, 32, 3

COLUMNS: Final = ("files", "functions", "lines", "calls", "passes", "depth")


@dataclass
class Way:
    """What one call goes through.

    Attributes:
        lines: each executed line of our own, by its file and number.
        entered: how often each code object of our own was entered; a generator is entered each time that it goes on.
        stacks: the names of our functions on the stack, each time that the model's forward pass is entered.
    """

    lines: set[tuple[str, int]] = field(default_factory=set)
    entered: Counter[CodeType] = field(default_factory=Counter)
    stacks: list[list[str]] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """Return the figures of a row. The depth is that of the deepest pass, None without one in Python."""
        deepest = max(self.stacks, key=len, default=None)
        return {
            "files": len({code.co_filename for code in self.entered}),
            "functions": sum(not code.co_name.startswith("<") for code in self.entered),
            "lines": len(self.lines),
            "calls": self.entered.total(),
            "passes": len(self.stacks),
            "depth": None if deepest is None else len(deepest),
            "stack": deepest,
        }


def followed(call: Callable[[], Any], model: Any, forward: CodeType, own: Callable[[str], bool]) -> Way:
    """Return the way of a call.

    Args:
        call: makes the call.
        model: the model, of which the call may run a copy; models of other classes may share its code.
        forward: the code of the model's forward pass, a function of the model and of the inputs.
        own: returns whether a file is one of ours.
    """
    way = Way()

    def in_function(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            way.lines.add((frame.f_code.co_filename, frame.f_lineno))
        return in_function

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is forward and isinstance(frame.f_locals[forward.co_varnames[0]], type(model)):
            way.stacks.append([_name(code) for code in _stack(frame.f_back) if own(code.co_filename)])
        if not own(frame.f_code.co_filename):
            return None
        way.entered[frame.f_code] += 1
        return in_function

    before = sys.gettrace(), threading.gettrace()
    threading.settrace(trace)
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before[0])
        threading.settrace(before[1])  # type: ignore[arg-type]
    return way


def _name(code: CodeType) -> str:
    return str(getattr(code, "co_qualname", code.co_name))  # from Python 3.11 on


def _stack(frame: FrameType | None) -> list[CodeType]:
    """Return the code objects from the outermost to the frame's."""
    codes = []
    while frame is not None:
        codes.append(frame.f_code)
        frame = frame.f_back
    return codes[::-1]


def rows_of(mode: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each point of a model whose points are priced."""
    import embgrad
    from tests.benchmarks.points import PRICED

    priced = importlib.import_module(f"tests.benchmarks.{PRICED[mode][1]}").MODES[mode](LAYERS, DIM)
    batch, rooms = priced.batch(2, 4), Path(embgrad.__file__).parent
    beginnings = (f"{rooms}/", str(rooms.parent / "backends" / "embgrad_"), str(rooms.parent / "embgrad_"))

    def own(file: str) -> bool:
        return file.startswith(beginnings) and file != priced.forward.co_filename

    for point in POINTS:

        def call(point: str = point) -> Any:
            return embgrad.gradients(priced.model, batch, priced.objective, at=point, **priced.options)

        for _ in range(WARM):
            call()
        yield {"mode": mode, "at": point, **followed(call, priced.model, priced.forward, own).figures()}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as plain text, and below them the functions between the user's call and the model's forward pass."""
    lines = [["mode", "at", *COLUMNS]]
    for row in rows:
        figures = ["-" if row[name] is None else f"{row[name]:,}" for name in COLUMNS]
        lines.append([row["mode"], row["at"], *figures])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    stacks = [
        f"{row['mode']}, {row['at']}: {' > '.join(row['stack'] or ['no forward pass in Python'])}" for row in rows
    ]
    return "\n".join([*text, "", *stacks])


def main(arguments: Sequence[str] | None = None) -> None:
    from tests.benchmarks.points import PRICED

    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.way", description=__doc__)
    parser.add_argument("modes", nargs="*", default=["PyTorch", "JAX"], help=f"some of: {'; '.join(PRICED)}")
    print(table([row for mode in parser.parse_args(arguments).modes for row in rows_of(mode)]))


if __name__ == "__main__":
    main()

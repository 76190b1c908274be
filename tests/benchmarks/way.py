"""The way of one call: how much of embgrad a warm `gradients` goes through, and how deep the model's own forward pass is.

Of embgrad and its backends: the files that are entered, the functions, all code objects (with those that have no name), the
lines that are executed, each counted once, and the calls; then the model's forward passes, and how many functions are on the
stack when one is called.

`python -m tests.benchmarks.way`, or `make way`, in an environment with the frameworks that are to be shown. For figures of
another version, `--code FOLDER` names its checkout: `python -m tests.benchmarks.way --code ../before --json before.json`, then
`python -m tests.benchmarks.way --compare before.json`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]

#: The points of the calls.
POINTS: Final = ("word", "layer.-1")

#: The columns: the figure's name in a row, and its heading.
COLUMNS: Final = {
    "files": "files",
    "functions": "functions",
    "codes": "code objects",
    "lines": "lines",
    "calls": "calls",
    "passes": "passes",
    "depth": "depth",
}

#: The number of calls before the one that is followed.
WARM: Final = 3

Row = Mapping[str, Any]


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
        """Return the figures of a row.

        Functions are the code objects with a name. The depth is that of the deepest pass, None without one in Python.
        """
        deepest = max(self.stacks, key=len, default=None)
        return {
            "files": len({code.co_filename for code in self.entered}),
            "functions": sum(not code.co_name.startswith("<") for code in self.entered),
            "codes": len(self.entered),
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


def _stack(frame: FrameType | None) -> list[CodeType]:
    """Return the code objects from the outermost to the frame's."""
    codes = []
    while frame is not None:
        codes.append(frame.f_code)
        frame = frame.f_back
    return codes[::-1]


def _name(code: CodeType) -> str:
    return str(getattr(code, "co_qualname", code.co_name))


def rows_of(kind: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each point in one framework."""
    import embgrad
    from tests.benchmarks.classifiers import KINDS

    made = KINDS[kind].build()
    rooms = Path(embgrad.__file__).parent
    backends = (rooms.parent / "backends" / "embgrad_", rooms.parent / "embgrad_")
    beginnings = (f"{rooms}{os.sep}", *map(str, backends))

    def own(file: str) -> bool:
        return file.startswith(beginnings) and file != made.own

    for point in POINTS:

        def call(point: str = point) -> Any:
            return embgrad.gradients(made.model, made.batch, made.objective, at=point)

        for _ in range(WARM):
            call()
        yield {"framework": kind, "at": point, **followed(call, made.model, made.forward, own).figures()}


def table(rows: Sequence[Row], before: Sequence[Row] = ()) -> str:
    """Return the rows as plain text, with the figures of before at their left where there are some."""
    earlier = {(row["framework"], row["at"]): row for row in before}
    lines = [["framework", "at", *COLUMNS.values()]]
    for row in rows:
        other = earlier.get((row["framework"], row["at"]))
        lines.append([row["framework"], row["at"], *(_cell(name, row, other) for name in COLUMNS)])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([*text, "", *_stacks(rows)]) + "\n"


def _cell(name: str, row: Row, before: Row | None) -> str:
    figures = [row[name]] if before is None else [before[name], row[name]]
    return " -> ".join("-" if figure is None else f"{figure:,}" for figure in figures)


def _stacks(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the functions between the user's call and the model's forward pass, equal ones once."""
    yield "Functions of ours on the stack when the model's forward pass is called:"
    stacks: dict[str, list[str]] = {}
    for row in rows:
        names = "no forward pass in Python" if row["stack"] is None else " > ".join(row["stack"])
        stacks.setdefault(names, []).append(f"{row['framework']}, {row['at']}")
    for names, where in stacks.items():
        yield f"{'; '.join(where)}:\n    {names}"


def measured(kinds: Sequence[str], code: Path) -> list[dict[str, Any]]:
    """Return the rows of each framework, each from a process of its own."""
    from tests.benchmarks.classifiers import KINDS

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds:
            print(kind, file=sys.stderr, flush=True)
            file, keras = Path(folder) / "rows.json", KINDS[kind].keras
            environment = {
                **os.environ,
                "TF_USE_LEGACY_KERAS": "0" if keras else "1",
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "JAX_PLATFORMS": "cpu",
                **({"KERAS_BACKEND": keras} if keras else {}),
                **({} if "TensorFlow" in kind else {"USE_TF": "0"}),  # transformers imports it where it is installed
            }
            module = ["-m", "tests.benchmarks.way", "--one", kind, "--code", str(code), "--json", str(file)]
            command = [sys.executable, *module]
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{kind}: the process ended with {done.returncode}:\n{done.stderr}")
            rows += json.loads(file.read_text(encoding="utf-8"))
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    if options.one:
        warnings.simplefilter("ignore")
        _import_embgrad(options.code)
        rows = list(rows_of(options.one))
    else:
        rows = measured(_kinds(options.frameworks), options.code.resolve())
        before = json.loads(options.compare.read_text(encoding="utf-8")) if options.compare else ()
        print(table(rows, before), end="")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


def _import_embgrad(code: Path) -> None:
    """Import embgrad from a checkout, whose tests must not be found in place of these."""
    sys.path[:0] = [str(code), str(code / "backends")]
    importlib.import_module("embgrad")
    sys.path.remove(str(code))


def _kinds(names: Sequence[str] | None) -> list[str]:
    from tests.benchmarks.classifiers import KINDS

    if names is None:
        return [name for name, kind in KINDS.items() if kind.installed()]
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        raise SystemExit(f"there is no framework {unknown[0]!r}; there are: {'; '.join(KINDS)}")
    return list(names)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.way", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--framework", dest="frameworks", action="append", help="one of them, several times if needed")
    parser.add_argument("--code", type=Path, default=ROOT, help="the checkout that is measured (default: this one)")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--compare", type=Path, help="figures of --json, to print as before -> after")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

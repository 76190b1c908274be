"""Commands of the command line with random arguments."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import embgrad
from embgrad.cli import main
from tests.fuzz.calls_files import folder, result
from tests.fuzz.cases import Case, expect
from tests.fuzz.drawing import Draw
from tests.unit.cli.commands import MODELS

#: Arguments that exist, and values that rarely fit: each command gets a few of them.
WORDS: Final = tuple(
    shlex.split("""
    --json --words --kind norm dot x.safetensors broken.safetensors
    missing.safetensors --at word wrod
""")
)
WORDS_ASKING: Final = tuple(
    shlex.split("""
    -m reference nowhere --text 'a film' --ids ids.json bad.json --objective Sum() Logit(1) Logit(
    "__import__('os')" CrossEntropy([0]) --labels 0,1 -1 --tokenizer vocab.txt --max-length 3 0 nan -o
    out.safetensors /nowhere/x.safetensors --framework reference torchh --debug --pads zero
""")
)
COMMANDS: Final = ("show", "compare", "gradients", "bisect", "report", "shwo", "--version", "", "doctors")


def commands(draw: Draw, framework: str) -> Case:
    """Draw a command, which must end with a documented exit code and without a traceback."""
    sample = replace(result(draw), tables=None)
    command = draw.choice(COMMANDS)
    asking = command in ("gradients", "bisect", "compare", "report")
    words = [*WORDS, *WORDS_ASKING] if asking else list(WORDS)
    arguments = [command, *(draw.choice(words) for _ in range(draw.integer(0, 5)))]
    if command in ("show", "report") and draw.chance(0.5):
        arguments = [
            command,
            "x.safetensors",
            *(["--json"] if draw.chance(0.5) else []),
            *(["-o", "p.html"] if command == "report" else []),
        ]
    if command in ("gradients", "bisect") and draw.chance(0.6):
        options = ["-m", "models.py:build", "--ids", "ids.json"]
        arguments = [command, *options, *(["--against", "models.py:doubled"] if command == "bisect" else [])]
        arguments += draw.choice(
            [[], ["--json"], ["--objective", "Logit(1)"], ["--objective", "Logit(9)"], ["--at", "wrod"]]
        )
        arguments += [draw.choice(words) for _ in range(draw.integer(0, 2))]
    if "--version" not in arguments and draw.chance(0.02):
        arguments.append("--help")

    def run() -> Any:
        out, err = _Stream(), _Stream()
        with (
            folder() as directory,
            _inside(directory),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            embgrad.save(sample, "x.safetensors")
            Path("broken.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{}      ")
            Path("ids.json").write_text("[[1, 2], [3, 0]]")
            Path("bad.json").write_text('{"ids": [[1, 2], [3]]}')
            Path("models.py").write_text(MODELS)
            Path("vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\nfilm\n")
            code = main(arguments)
        return code, out.text, err.text

    def judge(actual: tuple[int, str, str]) -> None:
        code, out, err = actual
        expect(code in (0, 1, 2), f"the exit code is {code}: {err}")
        expect("Traceback" not in err or "--debug" in arguments, f"a traceback: {err}")
        expect(code != 2 or err.strip(), "usage is wrong, and nothing is said")
        if code == 0 and "--json" in arguments and command != "--version" and "--help" not in arguments:
            json.loads(out)

    return Case(
        "cli",
        f"embgrad {' '.join(map(repr, arguments))}\nx.safetensors: {sample!r}",
        run,
        judge,
        warns=True,
        random_moves=True,
    )


class _Stream(io.TextIOWrapper):
    """A text stream over bytes, like a process's own."""

    def __init__(self) -> None:
        self.kept = io.BytesIO()
        super().__init__(self.kept, encoding="utf-8", write_through=True)

    @property
    def text(self) -> str:
        self.flush()
        return self.kept.getvalue().decode("utf-8", "replace")


@contextlib.contextmanager
def _inside(directory: Path) -> Iterator[None]:
    before, stdin, environment = os.getcwd(), sys.stdin, dict(os.environ)
    os.chdir(directory)
    sys.stdin = _Terminal()
    try:
        yield
    finally:
        os.chdir(before)
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]  # the command sets some, as the owner of its process
        sys.stdin = stdin


class _Terminal(io.StringIO):
    """A stdin without a pipe."""

    def isatty(self) -> bool:
        return True

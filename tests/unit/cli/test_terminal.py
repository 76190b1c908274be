"""Output of commands: colours, narrow and plain terminals, pipes, interruption, progress."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.cli import main
from embgrad.cli.result_lines import legend_of, text_lines
from embgrad.cli.terminal import Terminal, _console, own_stdout
from embgrad.results.gradient_display import gradient_lines
from tests.unit.cli.commands import ASK, TEXTS, child, expected


@pytest.fixture
def saved(command: Any) -> Path:
    done = command("gradients", *TEXTS, "-t", "a gripping film <script>", "-t", "never", "-o", "g.safetensors")
    assert done.code == 0, done.err
    return Path("g.safetensors")


def test_tokens_in_colours(saved: Path) -> None:
    done = child("show", str(saved), FORCE_COLOR="1", COLORTERM="truecolor")
    assert b"\x1b[38;2;255;255;255;48;2;106;44;145m" in done.out  # the strongest
    assert b"(9)" not in done.out
    plainly = child("show", str(saved), FORCE_COLOR="1", COLORTERM="truecolor", NO_COLOR="1")
    assert b"48;2;" not in plainly.out
    assert b"(9)" in plainly.out


@pytest.mark.parametrize("settings", [{"TERM": "dumb"}, {"NO_COLOR": "1"}, {"TERM": "xterm", "FORCE_COLOR": "1"}])
def test_figures_replace_colours_on_plain_terminals(saved: Path, settings: dict[str, str]) -> None:
    assert b"(9)" in child("show", str(saved), **settings).out


@pytest.mark.parametrize(
    "arguments",
    [["show", "g.safetensors"], ["compare", "g.safetensors", "g.safetensors"], ["show", "--words", "g.safetensors"]],
)
def test_a_narrow_terminal(saved: Path, arguments: list[str]) -> None:
    done = child(*arguments, COLUMNS="30")
    assert done.code == 0, done.err
    assert max(map(len, done.out.decode().splitlines())) <= 30


@pytest.mark.parametrize("columns", ["1", "0", "-5", "wide", ""])
def test_terminals_of_odd_widths(saved: Path, columns: str) -> None:
    assert child("show", str(saved), COLUMNS=columns).code == 0


def test_a_terminal_of_ascii(directory: Path) -> None:
    for arguments in (
        ["gradients", *TEXTS, "-t", "é never \U0001f600", "-o", "g.safetensors"],
        ["show", "g.safetensors"],
    ):
        done = child(*arguments, PYTHONIOENCODING="ascii")
        assert done.code == 0, done.err
        done.out.decode("ascii")
    words = child("gradients", *TEXTS, "-t", "never", PYTHONIOENCODING="ascii").out
    assert b"1 \\xd7 3 \\xd7 4 float32" in words


def result_of(texts: list[str], values: Any, mask: Any = None) -> embgrad.results.EmbeddingGradients:
    ids = np.arange(len(texts))[None]
    array = np.asarray(values, np.float32).reshape(1, len(texts), 1)
    return embgrad.results.EmbeddingGradients(
        array, np.ones_like(array), np.zeros(1), ids, mask, None, (tuple(texts),), None, 100, 0.0, {"point": "word"}
    )


def painted(result: embgrad.results.EmbeddingGradients, kind: str = "norm", coloured: bool = False) -> str:
    (line,) = text_lines(gradient_lines(result, kind, "tokens", [0]), coloured)
    return str(line.plain)


def test_a_stream_in_memory_takes_any_character_while_a_command_writes_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    binary, errors = io.BytesIO(), io.StringIO()
    stream = io.TextIOWrapper(binary, "ascii", "strict")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", errors)
    with own_stdout() as own:
        assert own is stream
        print("a library's")
        own.write("2 × 3 √ é")
    assert sys.stdout is stream
    assert stream.errors == "strict"
    assert binary.getvalue() == b"2 \\xd7 3 \\u221a \\xe9", "flushed"
    assert errors.getvalue() == "a library's\n"


@pytest.mark.parametrize(
    ("columns", "width"),
    [("30", 30), ("10", 10), ("9", 10), ("1", 10), ("0", 100), ("-5", 100), ("wide", 100), ("", 100)],
)
def test_the_width_of_text_without_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: str, width: int) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert [_console(stream).width for stream in (io.StringIO(), None)] == [width] * 2


def test_a_remark_is_one_line_in_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    terminal = Terminal(io.StringIO())
    for say in (terminal.note, terminal.warn, terminal.fail):
        say("a longer text " * 9)
    assert [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()] == ["note", "warning", "error"]


def test_warnings_of_models_are_notes_and_those_for_developers_are_not_shown(command: Any) -> None:
    ask = ("gradients", "-m", "models.py:talks", "--ids", "ids.json", "--labels", "0,2")
    said = command(*ask).err.splitlines()
    assert "warning: mind the gap" in said
    assert not any("old" in line for line in said)


def test_labels_stand_right_aligned_before_their_lines() -> None:
    lines = [
        replace(gradient_lines(result_of(["a"], [1]), "norm", "tokens", [0])[0], label=name) for name in ("ab", "c")
    ]
    assert [str(text.plain) for text in text_lines(lines, False, labels=True)] == ["ab  a(9)", " c  a(9)"]
    assert [str(text.plain) for text in text_lines(lines, False)] == ["a(9)", "a(9)"]
    assert text_lines([], False) == []


def test_subwords_are_joined() -> None:
    result = result_of(["<s>", "Ġa", "Ġgrip", "ping", "</s>"], [9, 1, -2, 3, 9])
    assert painted(result, "dot") == "<s> a(+3) grip(-6)ping(+9) </s>"
    assert painted(result, "norm") == "<s> a(3) grip(6)ping(9) </s>"
    assert legend_of(result, True, "dot") == "gradient · embedding: orange is above zero, blue below"
    assert legend_of(result, True) == "length of the gradient: the darker, the more"


@pytest.mark.parametrize(
    ("values", "shown"), [([0, 0], "a(0) b(0)"), ([np.nan, 1], "a(?) b(9)"), ([np.inf, 1], "a(?) b(9)")]
)
def test_figures_that_are_zero_or_not_finite(values: list[float], shown: str) -> None:
    with np.errstate(invalid="ignore"):
        assert painted(result_of(["a", "b"], values)) == shown
        assert painted(result_of(["a", "b"], values), coloured=True) == re.sub(r"\(\d\)", "", shown)


def test_padding_is_skipped_and_unknown_tokens_are_ids() -> None:
    result = result_of(["a", "b"], [1, 2], np.array([[1, 0]]))
    assert painted(result) == "a(9)"
    nameless = embgrad.results.EmbeddingGradients(**{**vars(result), "tokens": None})
    assert painted(nameless) == "0(9)"


def test_a_file_on_stdout_is_not_mixed_with_other_output(directory: Path) -> None:
    done = child("gradients", "-m", "models.py:talks", "--ids", "ids.json", "--labels", "0,2", "-o", "-")
    assert done.code == 0, done.err
    (directory / "g.safetensors").write_bytes(done.out)
    np.testing.assert_array_equal(embgrad.load("g.safetensors").values, expected().values)
    assert "said in Python" in done.err
    assert "said in C" in done.err
    assert "warning: mind the gap" in done.err
    assert "old" not in done.err


def test_json_is_not_mixed_with_other_output(capfd: pytest.CaptureFixture[str]) -> None:
    ask = ["gradients", "-m", "models.py:talks", "--ids", "ids.json", "--json"]
    assert json.loads(child(*ask).out)["framework"] == "reference"
    assert main(ask) == 0
    print("after")
    out, err = capfd.readouterr()
    assert out.endswith("}\nafter\n")
    assert "said in Python" in err


def test_commands_read_and_write_pipes() -> None:
    line = f"{sys.executable} -m embgrad gradients {' '.join(TEXTS)} -o - | {sys.executable} -m embgrad show -"
    done = subprocess.run(["sh", "-c", line], input=b"never again", capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(rb"\[CLS\] never\(\d\) again\(\d\) \[SEP\]", done.stdout)


@pytest.mark.parametrize("options", [("--json",), (), ("-o", "-")])
def test_a_closed_pipe_is_no_error(directory: Path, options: tuple[str, ...]) -> None:
    (directory / "many.json").write_text(json.dumps([[1, 2, 3, 4, 5, 6, 7, 8]] * 3000))
    process = subprocess.Popen(
        [sys.executable, "-m", "embgrad", "gradients", "-m", "models.py:build", "--ids", "many.json", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    said = process.stderr.read().decode()
    assert process.wait(60) == 141
    assert "Traceback" not in said
    assert "Broken" not in said
    assert "Exception ignored" not in said


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "0<&-", "1>&- 2>&-"])
def test_closed_standard_streams(closed: str) -> None:
    line = f"{sys.executable} -m embgrad gradients {' '.join(ASK)} -o g.safetensors {closed}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert Path("g.safetensors").exists()
    assert b"Traceback" not in done.stderr


def test_an_error_in_the_model_is_one_line_without_debug(command: Any) -> None:
    ask = ("gradients", "-m", "models.py:raises", "--ids", "ids.json")
    done = command(*ask)
    assert done.code == 2
    assert done.err.splitlines()[-1] == "error: RuntimeError: the model broke (--debug shows where)"
    done = command(*ask, "--debug")
    assert done.code == 2
    assert "Traceback" in done.err
    assert "models.py" in done.err


def test_a_model_that_exits_is_an_error(command: Any) -> None:
    done = command("compare", *ASK, "--against", "models.py:leaves")
    assert done.code == 2
    assert "sys.exit(0)" in done.err


def test_an_interrupted_model(command: Any) -> None:
    done = command("gradients", "-m", "models.py:stops", "--ids", "ids.json")
    assert (done.code, done.out, done.err) == (130, "", "error: interrupted\n")


@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX's")
def test_an_interrupted_process(directory: Path) -> None:
    (directory / "slow.py").write_text(
        "import time, models\ndef build():\n    open('begun', 'w').close()\n    time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "embgrad", "gradients", "-m", "slow.py:build", "--ids", "ids.json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 30
    while not (directory / "begun").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, b"")
    assert err == b"error: interrupted\n"


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("rich_there", [True, False])
def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch, rich_there: bool) -> None:
    from embgrad.common.progress import bar

    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    if not rich_there:
        monkeypatch.setitem(sys.modules, "rich.progress", None)
    with bar("examples") as report:
        report(0, 5)
        report(5, 5)
    assert "examples" in screen.getvalue()
    assert "5/5" in screen.getvalue() if rich_there else "examples: 5 of 5" in screen.getvalue()


@pytest.mark.skipif(os.name == "nt", reason="a pseudo-terminal is POSIX's")
def test_progress_on_a_terminal_is_drawn_on_stderr(directory: Path) -> None:
    (directory / "many.json").write_text(json.dumps([[1, 2, 3]] * 40))
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "embgrad", "gradients", *ASK[:2], "--ids", "many.json", "--batch-size", "2", "--json"],
        stdout=subprocess.PIPE,
        stderr=theirs,
        stdin=theirs,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    os.close(theirs)
    assert process.stdout is not None
    answer = process.stdout.read()
    drawn = b""
    try:
        while piece := os.read(ours, 65536):
            drawn += piece
    except OSError:  # how Linux says that the other side has closed
        pass
    finally:
        os.close(ours)
    assert process.wait(60) == 0
    assert json.loads(answer)["results"]["word"]["shape"] == [40, 3, 4]
    assert b"gradients in reference" in drawn
    assert b"40/40" in drawn


def test_a_binary_file_is_not_written_to_a_terminal(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    done = command("gradients", *ASK, "-o", "-")
    assert done.code == 2
    assert "stdout is a terminal" in done.err

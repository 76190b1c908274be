"""Commands check their arguments before they load a model, and import no framework for their help."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

#: What takes long to import.
HEAVY = (
    "torch", "tensorflow", "mxnet", "gluonnlp", "transformers", "keras", "tf_keras", "tokenizers", "ray", "matplotlib",
)  # fmt: skip
COMMANDS = (
    *("gradients", "attribute", "search", "compare", "bisect", "check-port", "dump", "report", "show", "doctor"),
    *("explain", "demo"),
)

#: A model's module that leaves a file behind where it is run.
LOADED = """
import pathlib
pathlib.Path("loaded").touch()
from models import build
"""


def test_the_help_of_a_command_imports_no_framework() -> None:
    code = (
        "import json, sys\n"
        "from embgrad.cli import main\n"
        f"codes = [main([*name, '--help']) for name in {[[], *([name] for name in COMMANDS)]!r}]\n"
        f"print(json.dumps([any(codes), [name for name in {HEAVY!r} if name in sys.modules]]), file=sys.stderr)"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(child.stderr) == [False, []]


WRONG = [
    (["-f", "nowhere.txt"], "nowhere.txt: No such file or directory"),
    (["-t", "one", "--tokenizer", "nowhere"], "--tokenizer 'nowhere' does not exist"),
    (["--ids", "nowhere.json"], "nowhere.json: No such file or directory"),
    (
        ["--ids", "ids.json", "--labels", "nowhere"],
        "--labels 'nowhere': expected whole numbers such as 0,1,1, or a file",
    ),
    (["--ids", "ids.json", "--labels", "0,1,1"], "labels has 3 entries: expected 2, one for each example"),
    (["--ids", "ids.json", "--objective", "Sun()"], "there is no objective 'Sun' on the command line"),
    (
        ["-t", "one", "--tokenizer", "vocab.txt", "--max-length", "0"],
        "max_length is 0: expected a whole number of at least 1",
    ),
    (["--ids", "ids.json", "--call", "nowhere.py:call"], "nowhere.py does not exist: expected a Python file"),
    (["-t", "one"], "texts need a tokenizer, and the model has no folder that holds one"),
    ([], "there is no text: give --text TEXT, --pair A B, --file FILE or --ids FILE, or pipe texts in"),
]
OF_GRADIENTS = [
    (["--ids", "ids.json", "--batch-size", "0"], "batch_size is 0: expected a whole number of at least 1, or None"),
    (["--ids", "ids.json", "--pads", "left"], "pads is 'left': expected 'keep' or 'zero'"),
    (
        ["--ids", "ids.json", "-o", "nowhere/g.safetensors"],
        "--output 'nowhere/g.safetensors': there is no folder 'nowhere'",
    ),
    (["--ids", "ids.json", "--framework", "trch"], "there is no backend 'trch'"),
]
OF_TWO = [(["--ids", "ids.json", "--tolerance", "-1"], "tolerance is -1.0: expected a number of at least 0")]


def test_the_number_of_labels_is_checked_before_a_model_is_loaded(command: Any, directory: Path) -> None:
    (directory / "my.py").write_text(LOADED)
    done = command("gradients", "-m", "my.py:build", "--ids", "ids.json", "--labels", "0,1,2")
    assert done.code == 2
    assert "label" in done.err
    assert not (directory / "loaded").exists()


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (["gradients"], OF_GRADIENTS),
        (["compare", "--against", "my.py:build"], OF_TWO),
        (["bisect", "--against", "my.py:build"], OF_TWO),
    ],
    ids=["gradients", "compare", "bisect"],
)
def test_wrong_usage_is_reported_before_a_model_is_loaded(
    start: Sequence[str],
    more: Sequence[tuple[list[str], str]],
    command: Callable[..., SimpleNamespace],
    directory: Path,
) -> None:
    (directory / "my.py").write_text(LOADED)
    for wrong, message in [*WRONG, *more]:
        done = command(*start, "-m", "my.py:build", *wrong)
        assert done.code == 2, wrong
        assert f"error: {message}" in " ".join(done.err.split()), wrong
        assert not (directory / "loaded").exists(), wrong


@pytest.mark.parametrize("against", ["nowhere", "nowhere.py:build"])
def test_the_second_model_is_found_before_the_first_is_loaded(
    against: str, command: Callable[..., SimpleNamespace], directory: Path
) -> None:
    (directory / "my.py").write_text(LOADED)
    done = command("compare", "-m", "my.py:build", "--against", against, "--ids", "ids.json")
    assert done.code == 2
    assert "does not exist" in done.err
    assert not (directory / "loaded").exists()


def test_the_checkpoint_of_the_demo_needs_no_typer() -> None:
    """Since the extra `demo` does not install it."""
    code = "import sys; sys.modules['typer'] = None; from embgrad.loading.minilm import minilm_folder"
    subprocess.run([sys.executable, "-c", code], check=True)

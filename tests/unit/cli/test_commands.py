"""The commands on the reference backend: results, exit codes and messages."""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.testing

import embgrad
from embgrad.cli import app as application
from embgrad.cli import explain as explaining
from embgrad.cli import main
from embgrad.cli.app import app
from embgrad.cli.explain import NAMES
from embgrad.cli.files import load_results
from embgrad.cli.run import own_process
from embgrad.cli.terminal import plain
from embgrad.testing.reference import ReferenceModel, lookup
from tests.unit.cli.commands import ASK, child, expected, refused


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_a_missing_extra_says_what_to_install(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from embgrad.cli import main; sys.exit(main(['--help']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"embgrad: the command line needs {missing}: pip install 'embgrad[cli]'\n"


ROOT = Path(__file__).parents[3]


def test_importing_the_package_loads_no_library() -> None:
    code = "import embgrad.cli, sys; print([name for name in ('typer', 'rich', 'tokenizers') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(
    "name",
    [
        *("doctor", "gradients", "attribute", "search", "compare", "bisect", "check-port", "dump", "show", "report"),
        *("explain", "demo"),
    ],
)
def test_every_command_has_help(name: str) -> None:
    runner = typer.testing.CliRunner()
    long, short = (runner.invoke(app, [name, option]) for option in ("--help", "-h"))
    assert long.exit_code == short.exit_code == 0
    assert long.output == short.output
    assert "--json" in long.output
    if name not in ("doctor", "demo"):
        assert f"embgrad {name} " in long.output, "an example"


def test_the_version(command: Any) -> None:
    done = command("--version")
    assert (done.code, done.out) == (0, f"embgrad {embgrad.__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gradient"], "there is no command 'gradient'.*Did you mean 'gradients'"),
        (["compare", "--tolerence", "3"], "No such option.*--toler"),
        *(([name], "--model is missing") for name in ("gradients", "attribute", "search")),
        (["gradients", "-m", "nowhere"], "--model 'nowhere' does not exist.*downloads nothing"),
        (["gradients", "-m", "models.py:biuld", "--ids", "ids.json"], "models.py has no 'biuld'. Did you mean 'build'"),
        (["gradients", "-m", "none.py:build", "--ids", "ids.json"], "none.py does not exist"),
        (["gradients", "-m", "no_such_module:build", "--ids", "ids.json"], "there is no module 'no_such_module'"),
        (["gradients", "-m", "models.py:number", "--ids", "ids.json"], "no installed backend takes"),
        (["gradients", "-m", "models.py:needs", "--ids", "ids.json"], "needs requires the arguments 'size'"),
        (["gradients", "-m", "models.py:for_framework", "--ids", "ids.json"], "name one with --framework"),
        (["gradients", *ASK, "--framework", "torch"], "framework 'reference': expected 'torch'"),
        (["gradients", *ASK, "-t", "a"], "--ids gives the examples as ids, and --text is for texts"),
        (["gradients", *ASK, "--at", "wrod"], "Did you mean 'word'"),
        (["gradients", *ASK, "--pads", "kepe"], "Did you mean 'keep'"),
        (["gradients", *ASK, "--batch-size", "many"], "batch-size"),
        (["gradients", *ASK, "--labels", "0,9"], "label"),
        (["gradients", *ASK, "--objective", "Sum(output='pooled')"], "'pooled'"),
        (["gradients", *ASK, "--call", "nothing"], "--call 'nothing': expected path/to/file.py:function"),
        (["gradients", *ASK, "--json", "-o", "-"], "pass only one"),
        (["gradients", "-m", ".", "-t", "a"], "holds neither config.json nor saved_model.pb.*'models.py'"),
        (["gradients", "-m", "models.py:build", "--pair", "one"], "--pair has 1 text: expected two"),
        (["show", "none.safetensors"], "none.safetensors does not exist"),
        (["show", "models.py"], "not a complete safetensors file"),
        (["show", "a", "--kind", "nrom"], "Did you mean 'norm'"),
        (["compare", "one.safetensors"], "1 file was named: expected two"),
        (["compare", "-", "-"], "can be read once"),
        (["compare", "a", "b", "-m", "c"], "--model is for models"),
        (["compare"], "--model is missing: expected two files, or --model"),
        (["compare", *ASK], "only one model"),
        (["compare", *ASK, "--frameworks", "torch,torch"], "different names"),
        (["bisect"], "--model is missing: expected --model with --frameworks or --against"),
        (["bisect", *ASK, "--frameworks", "a,b,c"], "expected exactly two frameworks to bisect"),
        (["report", "a.safetensors"], "--output is missing"),
        (["report", "-o", "page.html"], "no file is named: expected files of results"),
        (
            ["report", "a", "-o", "-", "--json"],
            "-o - writes the page to stdout, which --json uses as well: pass only one",
        ),
        (
            ["compare", *ASK, "--framework", "torch", "--frameworks", "torch,gluon"],
            "--framework and --frameworks both name the framework of the model: pass only one",
        ),
        (
            ["compare", *ASK, "--against", "models.py:doubled", "--frameworks", "torch,tensorflow,gluon"],
            "--against compares two models: expected one framework, or one for each of the two",
        ),
        (["doctor", "--timeout", "0"], "--timeout is 0"),
        (["doctor", "--timeout", "inf"], "--timeout is inf: expected a number of seconds above 0, and 86400 at most"),
        (["doctor", "--timeout", "1e300"], r"--timeout is 1e\+300"),
        (["compare", "a", "b", "-t", "a"], "--text is for models"),
        (["compare", "a", "b", "--objective", "junk"], "--objective is for models"),
        (["compare", "a", "b", "--batch-size", "2"], "--batch-size is for models"),
        (["report", "a", "-o", "no/page.html"], "--output 'no/page.html': there is no folder 'no'; make it"),
        (["report", "a", "-o", ""], "--output '' is empty"),
        (["gradients", "-m", "nowhere", "-o", "."], "--output '.' is a folder: expected the name of a file"),
        (["gradients", *ASK, "--ignore", "cls.*"], "models.py:build is your own code: remove it"),
        (["gradients", *ASK, "--objective", "Logit(index=0, index=1)"], "has index twice: expected each argument once"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_one_line_on_stderr(command: Any, arguments: list[str], said: str) -> None:
    done = command(*arguments)
    assert done.code == 2
    assert done.out == ""
    assert re.search(said, " ".join(done.err.split()))
    assert "Traceback" not in done.err
    errors = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 or "Usage: " in done.err


def test_only_the_arguments_of_the_process_are_run_as_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(application, "app", lambda args, prog_name: seen.append((args, own_process())))
    monkeypatch.setattr(sys, "argv", ["embgrad", "explain", "BatchError"])
    assert application.run() == application.run(["doctor"]) == 0
    assert seen == [(["explain", "BatchError"], True), (["doctor"], False)]
    assert not own_process()


def test_a_file_that_is_named_twice_has_two_names(command: Any) -> None:
    assert command("gradients", *ASK, "-o", "g.safetensors").code == 0
    assert list(load_results(["g.safetensors"] * 3)) == [
        *("g.safetensors", "g.safetensors (again, 1)", "g.safetensors (again, 2)")
    ]


def test_results_are_saved(command: Any) -> None:
    done = command("gradients", *ASK, "--labels", "0,2", "-o", "g.safetensors")
    assert done.code == 0, done.err
    for text in ("2 × 3 × 4 float32", "CrossEntropy(labels=[0, 2]", "written to g.safetensors"):
        assert text in done.out
    saved = embgrad.load("g.safetensors")
    np.testing.assert_array_equal(saved.values, expected().values)
    np.testing.assert_array_equal(saved.mask, [[1, 1, 1], [1, 1, 0]])
    assert saved.certificate is None
    assert [saved.provenance[name] for name in ("training", "split", "pads")] == [False, False, "keep"]
    done = command("gradients", *ASK, "--at", "word", "--at", "E", "-o", "g.safetensors", "--labels", "0 2")
    assert done.code == 0, done.err
    several = embgrad.load("g.safetensors")
    assert list(several) == ["word", "E"]
    np.testing.assert_array_equal(several["word"].values, expected().values)


def test_json_holds_the_figures(command: Any) -> None:
    done = command("gradients", *ASK, "--labels", "0,2", "--json", "--check")
    result = expected()
    actual = json.loads(done.out)["results"]["word"]
    assert actual["shape"] == [2, 3, 4]
    assert actual["objective"] == result.objective.tolist()
    assert actual["certificate"] is not None
    assert done.out.startswith('{\n  "'), "one entry a line"
    assert "checked: Certificate(" in command("gradients", *ASK, "--labels", "0,2", "--check").out
    assert result.mask is not None
    norms = np.float32(actual["tables"]["tokens"]["norm"])
    np.testing.assert_array_equal(norms, result.saliency("norm")[result.mask > 0])


def test_json_has_null_for_numbers_that_are_not_finite() -> None:
    values = {"a": np.float32("nan"), "b": [float("inf"), np.int64(3)], 4: (True, None)}
    assert plain(values) == {"a": None, "b": [None, 3], "4": [True, None]}


@pytest.mark.parametrize("spelled", ["models:build", "models.py:model", "models.py:for_framework", "./models.py:build"])
def test_ways_to_name_a_model(command: Any, spelled: str) -> None:
    sys.modules.pop("models", None)
    done = command("gradients", "-m", spelled, "--framework", "reference", "--ids", "ids.json", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["framework"] == "reference"


def test_the_default_objective_is_a_note(command: Any) -> None:
    done = command("gradients", "-m", "models.py:encoder", "--ids", "ids.json")
    assert "the objective is Sum(output='pooled')" in done.err
    done = command("gradients", *ASK)
    assert "the objective is Sum() by default" in done.err


def test_a_call_from_a_file(command: Any) -> None:
    once = json.loads(command("gradients", *ASK, "--json").out)
    twice = json.loads(command("gradients", *ASK, "--json", "--call", "models.py:twice").out)
    assert twice["results"]["word"]["objective"] != once["results"]["word"]["objective"]


def test_options_of_gradients(command: Any) -> None:
    command("gradients", *ASK, "--batch-size", "1", "--pads", "zero", "--labels", "0,2", "-o", "g.safetensors")
    np.testing.assert_allclose(embgrad.load("g.safetensors").values, expected().values, rtol=1e-4)
    provenance = json.loads(command("gradients", *ASK, "--training", "--split", "--json").out)["results"]["word"][
        "provenance"
    ]
    assert (provenance["training"], provenance["split"]) == (True, True)


@pytest.mark.parametrize(
    "words",
    [("attribute", "--method", "saliency"), ("attribute-tokens",), ("search", "--set", "steps=1")],
    ids=lambda words: words[0],
)  # fmt: skip
def test_training_mode(command: Any, directory: Path, words: tuple[str, ...]) -> None:
    (directory / "language.py").write_text("from tests.unit.attribution.language_models import causal as build\n")
    (directory / "one.json").write_text("[[5, 7, 3]]")
    for options, training in (((), False), (("--training",), True)):
        asked = ("-m", "language.py:build", "--ids", "one.json", "-o", "a.safetensors", *options)
        assert command(*words, *asked).code == 0
        assert embgrad.load("a.safetensors").provenance["training"] is training


@pytest.fixture
def files(command: Any) -> None:
    for name, model in {"a": "build", "b": "doubled"}.items():
        options = f"-m models.py:{model} --ids ids.json --objective Logit(1) -o {name}.safetensors"
        assert command("gradients", *options.split()).code == 0


@pytest.mark.usefixtures("files")
def test_compare_files(command: Any) -> None:
    same = command("compare", "a.safetensors", "a.safetensors")
    assert same.code == 0
    assert "agrees" in same.out
    other = command("compare", "a.safetensors", "b.safetensors", "--json")
    assert other.code == 1
    actual = json.loads(other.out)
    assert actual["agrees"] is False
    comparison = embgrad.compare("a.safetensors", "b.safetensors")
    assert actual["comparisons"] == {"b.safetensors": plain(comparison.to_dict())}
    assert command("compare", "a.safetensors", "b.safetensors", "--tolerance", "2").code == 0
    assert command("compare", "a.safetensors", "b.safetensors", "--tolerance", "-1").code == 2


@pytest.mark.usefixtures("files")
def test_compare_reads_stdin(directory: Path) -> None:
    done = child("compare", "-", "a.safetensors", stdin=(directory / "a.safetensors").read_bytes())
    assert done.code == 0, done.err


def test_compare_models(command: Any) -> None:
    same = command("compare", *ASK, "--against", "models.py:model")
    assert same.code == 0, same.err
    other = command("compare", *ASK, "--against", "models.py:doubled", "--at", "word", "--at", "E", "--json")
    assert other.code == 1
    actual = json.loads(other.out)["comparisons"]["models.py:doubled"]
    assert set(actual["comparisons"]) == {"word", "E"}
    assert actual["comparisons"]["word"]["figures"]["relative_l2"] == pytest.approx(1, rel=1e-6)


@pytest.mark.usefixtures("files")
def test_report_files(command: Any, directory: Path) -> None:
    done = command("report", "a.safetensors", "b.safetensors", "-o", "page.html", "--title", "Two <models>", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out) == {"file": "page.html", "results": ["a.safetensors", "b.safetensors"]}
    page = (directory / "page.html").read_text(encoding="utf-8")
    assert "Two &lt;models&gt;" in page
    piped = child("report", "a.safetensors", "-o", "-")
    assert piped.out.decode().rstrip().endswith("</html>")


def test_bisect(command: Any) -> None:
    assert command("bisect", *ASK, "--against", "models.py:model").code == 0
    done = command("bisect", *ASK, "--against", "models.py:doubled", "--json")
    assert done.code == 1, done.err
    assert json.loads(done.out)["models"] == ["models.py:build", "models.py:doubled"]


def test_the_command_is_installed() -> None:
    (point,) = importlib.metadata.entry_points(group="console_scripts", name="embgrad")
    assert point.load() is main


def test_points_of_files_can_be_chosen(command: Any, directory: Path) -> None:
    assert command("gradients", *ASK, "-o", "one.safetensors").code == 0
    assert command("gradients", *ASK, "--at", "word", "--at", "E", "-o", "two.safetensors").code == 0
    done = command("compare", "one.safetensors", "two.safetensors", "--at", "word", "--json")
    assert done.code == 0, done.err
    assert list(json.loads(done.out)["comparisons"]["two.safetensors"]["comparisons"]) == ["word"]
    assert "holds no result at 'E'" in command("compare", "two.safetensors", "one.safetensors", "--at", "E").err
    assert command("report", "two.safetensors", "--at", "E", "-o", "page.html").code == 0
    assert command("report", "two.safetensors", "--at", "word.0", "-o", "page.html").code == 2


def test_an_error_of_show_leaves_stdout_empty(command: Any) -> None:
    assert command("gradients", *ASK, "-o", "g.safetensors").code == 0
    assert "the tokens of this result are not known" in refused(command("show", "g.safetensors", "--words"))


def test_explain_prints_the_page_of_an_error(command: Any) -> None:
    done = command("explain", "BatchError")
    assert (done.code, done.err) == (0, "")
    page = (ROOT / "docs" / "errors" / "batcherror.md").read_text(encoding="utf-8")
    assert done.out.startswith("# BatchError\n")
    assert done.out.rstrip() in page, "as it stands, no line wrapped"
    for spelled in (
        "batcherror",
        "embgrad.errors.BatchError",
        "embgrad.errors.BatchError",
        "docs/errors/batcherror.md",
    ):
        assert command("explain", spelled).out == done.out
    assert json.loads(command("explain", "BatchError", "--json").out) == {
        "error": "BatchError",
        "text": done.out.rstrip(),
    }


def test_explain_lists_the_errors(command: Any) -> None:
    done = command("explain")
    assert done.code == 0
    assert "UnknownPointError     No point of that name exists." in done.out
    assert json.loads(command("explain", "--json").out)["errors"].keys() == NAMES.keys()
    for name in NAMES:
        assert command("explain", name).out.startswith(f"# {name}\n")
    unknown = command("explain", "BathError")
    assert (unknown.code, unknown.out) == (2, "")
    assert "there is no error 'BathError': expected one of EmbgradError," in unknown.err
    assert "Did you mean 'BatchError'?" in unknown.err


def test_an_installation_without_pages(command: Any, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("documented", "docs"):
        assert not (directory / name).exists()
    monkeypatch.setattr(importlib.resources, "files", lambda package: directory)
    monkeypatch.setattr(explaining, "__file__", str(directory / "embgrad" / "cli" / "explaining.py"))
    assert "error: this installation of embgrad lacks its page batcherror.md: reinstall it with pip" in refused(
        command("explain", "BatchError")
    )


def test_a_point_without_positions_cannot_be_shown(command: Any, directory: Path) -> None:
    def forward(model: Any, input_ids: Any) -> Any:
        return model.module("pool", lambda x: x.mean(1), lookup(model["E"], input_ids))

    pooled = embgrad.gradients(ReferenceModel(forward, {"E": np.eye(9)}), [[4, 5], [7, 8]], embgrad.Logit(4), at="pool")
    pooled.save(directory / "g.safetensors")
    assert (
        "the gradient at 'pool' has the shape (2, 9), which is not one vector per token: expected a point such as 'word'"
        in refused(command("show", "g.safetensors"))
    )


@pytest.mark.parametrize("content", [b"", b"no results"])
def test_stdin_is_named_in_messages(command: Any, content: bytes) -> None:
    done = command("show", "-", stdin=content)
    assert (done.code, done.out) == (2, "")
    assert re.search(r"error: <stdin> (is|holds) not a complete safetensors file", done.err)


def test_an_error_names_its_page(command: Any, directory: Path) -> None:
    (directory / "outside.json").write_text("[[4, 99]]")
    done = command("gradients", "-m", "models.py:build", "--ids", "outside.json")
    assert done.code == 2
    assert "see docs/errors/batcherror.md, or run: embgrad explain BatchError" in done.err.splitlines()[-1]
    assert "see docs" not in command("gradients", "--ids", "ids.json").err, "the options are no matter of a page"

"""The commands check-port and dump: models and folders on either side, exit codes, files, and wrong usage."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import embgrad
from embgrad.results import PortReport
from tests.unit.cli.commands import refused
from tests.unit.cli.test_before_loading import LOADED
from tests.unit.results.ported import report

Command = Callable[..., SimpleNamespace]

IDS = ("--ids", "ids.json")


def test_a_port_that_agrees_has_the_exit_code_0(command: Command) -> None:
    done = command("check-port", "models.py:build", "models.py:model", *IDS)
    assert (done.code, done.err) == (0, "")
    assert "the port agrees: at all 2 points, up to rounding in float32\n" in done.out


def test_the_floor_is_passed_on(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    floors = []
    check = embgrad.check_port
    monkeypatch.setattr(embgrad, "check_port", lambda *a, **b: floors.append(b["floor"]) or check(*a, **b))
    for words in ((), ("--floor", "float16")):
        assert command("check-port", "models.py:build", "models.py:model", *IDS, *words).code == 0
    assert floors == [None, "float16"]


def test_a_port_that_differs_has_the_exit_code_1_and_files(command: Command, directory: Path) -> None:
    files = ("--html", "port.html", "-o", "port.safetensors")
    done = command("check-port", "models.py:build", "models.py:doubled", *IDS, *files, "--objective", "Sum()")
    assert done.code == 1
    assert "the port differs" in done.out
    assert "weights: 1 equal, 1 different (W: times 2)" in done.out
    assert done.out.endswith("written to port.html\nwritten to port.safetensors\n")
    saved = embgrad.load(directory / "port.safetensors")
    assert isinstance(saved, PortReport)
    assert saved.verdict in (directory / "port.html").read_text(encoding="utf-8")
    assert saved.labels == ("reference ReferenceModel", "reference ReferenceModel")


def test_json_is_the_whole_report(command: Command) -> None:
    done = command("check-port", "models.py:build", "models.py:doubled", *IDS, "--json")
    answer = json.loads(done.out)
    assert (done.code, answer["agrees"], answer["models"]) == (1, False, ["models.py:build", "models.py:doubled"])
    assert [point["name"] for point in answer["points"]] == ["E", "output"]
    assert answer["points"][1]["values"] == pytest.approx(1.0)


def test_a_dump_stands_for_a_model_and_has_its_own_batch(command: Command, directory: Path) -> None:
    done = command("dump", "models.py:build", "reference", *IDS, "--objective", "Sum()")
    assert (done.code, done.out) == (0, "written to reference\n")
    assert sorted(path.name for path in (directory / "reference").iterdir()) == [
        "manifest.json",
        "sites.safetensors",
        "weights.safetensors",
    ]
    assert json.loads((directory / "reference" / "manifest.json").read_text())["ids"] == [[4, 5, 6], [7, 8, 0]]
    assert command("check-port", "reference", "models.py:build").code == 0
    assert command("check-port", "reference", "models.py:doubled", "--objective", "Sum()").code == 1
    assert command("check-port", "models.py:doubled", "reference", *IDS).code == 1
    assert command("check-port", "reference", "reference").code == 0
    (directory / "other.json").write_text("[[4, 5]]")
    done = command("check-port", "reference", "models.py:build", "--ids", "other.json")
    assert "reference is a dump of another batch: its ids, of shape (2, 3), begin with [4, 5, 6]" in refused(done)


def test_a_dump_without_weights_has_fingerprints(command: Command, directory: Path) -> None:
    done = command("dump", "models.py:build", "reference", *IDS, "--no-weights", "--json")
    assert (done.code, json.loads(done.out)) == (0, {"folder": "reference", "examples": 2})
    assert not (directory / "reference" / "weights.safetensors").exists()
    done = command("check-port", "reference", "models.py:build")
    assert done.code == 0
    assert "note: a is a dump with fingerprints of its weights alone, of which 2 of 2 have an equal" in " ".join(
        done.out.split()
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["check-port"], "0 models were named: expected two, embgrad check-port REFERENCE PORT"),
        (["check-port", "my.py:build"], "1 models were named"),
        (["check-port", "my.py:build", "nowhere", *IDS], "--model 'nowhere' does not exist"),
        (
            ["check-port", "my.py:build", "my.py:build", *IDS, "--floor", "int8"],
            "--floor is 'int8': expected one of 'float64'",
        ),
        (["check-port", "my.py:build", "my.py:build", *IDS, "--objective", "Sun()"], "there is no objective 'Sun'"),
        (
            ["check-port", "my.py:build", "my.py:build", *IDS, "--html", "-"],
            "--html is '-', but the report is printed on stdout",
        ),
        (["check-port", "my.py:build", "my.py:build", *IDS, "-o", "no/p"], "--output 'no/p': there is no folder 'no'"),
        (["check-port", "my.py:build", "my.py:build", *IDS, "--frameworks", "a,b,c"], "--against compares two models"),
        (["check-port", "my.py:build", "my.py:build"], "there is no text"),
        (["dump", "my.py:build"], "1 names were given: expected a model and a folder, embgrad dump MODEL FOLDER"),
        (["dump", "my.py:build", "ids.json", *IDS], "folder ids.json is a file"),
        (["dump", "nowhere", "new", *IDS], "--model 'nowhere' does not exist"),
    ],
)
def test_wrong_usage_has_the_exit_code_2_before_a_model_is_loaded(
    arguments: list[str], said: str, command: Command, directory: Path
) -> None:
    (directory / "my.py").write_text(LOADED)
    assert said in refused(command(*arguments))
    assert not (directory / "loaded").exists()


def test_what_cannot_be_compared_has_the_exit_code_2(command: Command, directory: Path) -> None:
    (directory / "half").mkdir()
    (directory / "half" / "sites.safetensors").write_bytes(b"")
    assert "half is half written" in refused(command("check-port", "half", "models.py:build"))
    assert "holds neither config.json nor saved_model.pb" in refused(
        command("check-port", ".", "models.py:build", *IDS)
    )


def test_saved_reports_are_shown_and_have_a_page(command: Command, directory: Path) -> None:
    report().save(directory / "port.safetensors")
    done = command("show", "port.safetensors")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0] == "port, jax Llama against torch Llama"
    assert report().verdict in " ".join(lines)
    assert json.loads(command("show", "port.safetensors", "--json").out)["results"]["port"]["first"] == "layers.0.norm"
    assert command("report", "port.safetensors", "-o", "page.html").code == 0
    assert (directory / "page.html").read_text(encoding="utf-8") == report().to_html()
    assert "--words is for gradients and attributions" in refused(command("show", "port.safetensors", "--words"))
    embgrad.save({"one": report(), "two": report()}, directory / "two.safetensors")
    said = refused(command("report", "two.safetensors", "-o", "page.html"))
    assert "one of embgrad.check_port among them, which has a page by itself" in said

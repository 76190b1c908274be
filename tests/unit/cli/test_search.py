"""The command `search`: the texts of `embgrad.search`, marks in the terminal, files and pages, messages; and saved searches."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.cli import main
from embgrad.results.search import Search
from tests.unit.cli.commands import ASK, TEXTS, built, refused

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "grip", "##ping", "film", ".", "dull", "fine", "1984"]
ONE = ("-t", "a gripping film .", "--objective", "Logit(1)", "--set", "steps=2")


@pytest.fixture
def words(directory: Path) -> Path:
    """Write a vocabulary of words, parts of words, a number and a sign."""
    (directory / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    return directory


def expect_equal(first: Search, second: Search) -> None:
    np.testing.assert_array_equal(first.batch.ids, second.batch.ids)
    np.testing.assert_array_equal(first.objective, second.objective)
    np.testing.assert_array_equal(first.history.evaluations, second.history.evaluations)


def test_the_file_and_the_page_hold_the_search(command: Any, directory: Path) -> None:
    asked = (
        "--objective", "Logit(1)", "--method", "gcg", "--set", "steps=2", "--set", "candidates=9", "--set", "seed=3",
    )  # fmt: skip
    more = ("--goal", "minimize", "--until", "-1.5", "--positions", "0,-1", "--batch-size", "4")
    done = command("search", *ASK, *asked, *more, "-o", "s.safetensors", "--html", "page.html")
    assert done.code == 0, done.err
    saved = embgrad.load("s.safetensors")
    batch = embgrad.TokenBatch([[4, 5, 6], [7, 8, 0]], [[1, 1, 1], [1, 1, 0]])
    alone = embgrad.search(
        built(directory),
        batch,
        embgrad.Logit(1),
        embgrad.methods.GCG(steps=2, candidates=9, seed=3),
        goal="minimize",
        until=-1.5,
        positions=[0, -1],
        batch_size=4,
    )
    expect_equal(alone, saved)
    assert Path("page.html").read_text(encoding="utf-8") == saved.to_html()
    lines = done.out.splitlines()
    assert lines[0] == "GCG, minimize Logit(index=1) until -1.5"
    assert lines[1].startswith("example 0: L = ")
    assert lines[2].startswith("before  4 5 [-6-]")
    assert lines[3].startswith("after   4 5 {+")
    assert lines[7] == "[-…-]: replaced or deleted, {+…+}: put in"
    assert lines[9:-2] == saved.figures().table().splitlines()
    assert lines[-2:] == ["written to s.safetensors", "written to page.html"]


def test_only_words_are_put_in_at_the_positions_of_a_slice(command: Any, words: Path) -> None:
    done = command("search", *TEXTS, *ONE, "--allowed", "words", "--positions", "1:-2", "--json")
    assert done.code == 0, done.err
    result = json.loads(done.out)["result"]
    assert result["objective"] > result["objective_before"]
    changes = result["tables"]["changes"]
    assert changes["kind"]
    assert set(changes["kind"]) == {"substituted"}
    assert set(changes["after"]) <= {"a", "grip", "film", "dull", "fine"}
    assert set(changes["position"]) <= {1, 2, 3, 4}
    assert result["tables"]["examples"]["text_before"] == ["a gripping film."]
    assert result["success"] is result["success_before"] is None
    assert len(result["history"]["objective"]) == 3


def test_texts_that_come_back_as_other_tokens_are_found_only_where_asked_for(command: Any, words: Path) -> None:
    # ". ##ping" is the text ".ping", which is a full stop and an unknown word.
    asked = ("-t", ". film", "--objective", "Logit(1)", "--set", "steps=1", "--positions", "2", "--json")
    stable, unstable = (
        json.loads(command("search", *TEXTS, *asked, *options).out)["result"] for options in ((), ("--unstable",))
    )
    assert (stable["provenance"]["stable"], unstable["provenance"]["stable"]) == (True, False)
    assert unstable["history"]["evaluations"][-1] > stable["history"]["evaluations"][-1]


def test_an_interrupted_command_goes_on(command: Any, directory: Path) -> None:
    asked = ("search", *ASK, "--objective", "Logit(1)", "--to", "run.safetensors", "-o", "s.safetensors")
    assert command(*asked, "--set", "steps=1").code == 0
    assert command(*asked, "--set", "steps=3").code == 0
    saved = embgrad.load("s.safetensors")
    batch = embgrad.TokenBatch([[4, 5, 6], [7, 8, 0]], [[1, 1, 1], [1, 1, 0]])
    expect_equal(embgrad.search(built(directory), batch, embgrad.Logit(1), embgrad.methods.HotFlip(steps=3)), saved)
    assert "goal was 'maximize' and is 'minimize'" in refused(command(*asked, "--goal", "minimize"))
    assert "holds the state of a search: repeat its call" in refused(command("show", "run.safetensors"))


def test_a_saved_search_is_shown_and_reported(command: Any, words: Path) -> None:
    assert command("search", *TEXTS, *ONE, "-o", "s.safetensors").code == 0
    done = command("show", "s.safetensors")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0] == "search, ReferenceModel (reference)"
    assert lines[1] == "HotFlip, maximize Logit(index=1)"
    assert lines[3].startswith("before  [CLS] ")
    assert "{+" in lines[4]
    assert list(json.loads(command("show", "s.safetensors", "--json").out)["results"]) == ["search"]
    assert command("report", "s.safetensors", "-o", "page.html").code == 0
    assert Path("page.html").read_text(encoding="utf-8") == embgrad.load("s.safetensors").to_html()
    message = "results holds 2 results, and one of embgrad.search among them, which has a page by itself"
    assert message in refused(command("report", "s.safetensors", "s.safetensors", "-o", "page.html"))
    assert "a is of type Search: expected" in refused(command("compare", "s.safetensors", "s.safetensors"))
    assert "--words is for gradients and attributions, and 'search' is of the class Search" in refused(
        command("show", "s.safetensors", "--words")
    )
    assert "--kind is for gradients and attributions" in refused(command("show", "s.safetensors", "--kind", "dot"))


def test_saved_substitutions_are_shown(command: Any, directory: Path) -> None:
    batch = embgrad.TokenBatch([[4, 5, 6]], tokens=[["a", "grip", "##ping"]])
    saved = embgrad.substitutions(built(directory), batch, embgrad.Logit(1), top=2, positions=[0, 2])
    saved.save("s.safetensors")
    done = command("show", "s.safetensors")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].endswith(", ReferenceModel (reference)")
    assert lines[1].startswith("example 0: Logit = ")
    assert lines[2].startswith(f"  0  a       →  id {saved.ids[0, 0, 0]} +")
    assert len(lines) == 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--method", "hotflop"], "--method is 'hotflop': expected one of 'hotflip'.*Did you mean 'hotflip'"),
        (["--set", "step=5"], "--set step: there is no such argument; hotflip has 'steps'.*Did you mean 'steps'"),
        (["--set", "steps=0"], "steps is 0: expected a whole number of at least 1"),
        (["--set", "insert=3"], "insert is 3: expected True or False"),
        (["--goal", "maximise"], "goal is 'maximise': expected 'maximize' or 'minimize'.*Did you mean 'maximize'"),
        (["--allowed", "word"], "--allowed is 'word': expected 'words', 'ascii'.*Did you mean 'words'"),
        (["--allowed", "words"], "allowed is a function of tokens, .*no tokenizer is known"),
        (["--positions", "1;2"], "--positions is '1;2': expected whole numbers such as 1,2,-2, or a slice such as 1:5"),
        (["--positions", "7"], "the position 7 of example 0 is outside its 3 positions"),
        (["--batch-size", "0"], "batch_size is 0: expected a whole number of at least 1"),
        (["-o", "-"], "--output is '-', but the texts are printed on stdout: expected the name of a file"),
        (["--to", "no/run.safetensors"], "--to 'no/run.safetensors': there is no folder 'no'"),
        (["--html", "no/page.html"], "--html 'no/page.html': there is no folder 'no'"),
    ],
)
def test_wrong_usage_is_explained(command: Any, arguments: list[str], said: str) -> None:
    message = refused(command("search", *ASK, "--objective", "Logit(1)", *arguments))
    assert re.search(said, message), message


def test_changed_tokens_are_coloured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in {"FORCE_COLOR": "1", "COLORTERM": "truecolor", "TERM": "xterm-256color"}.items():
        monkeypatch.setenv(name, value)
    assert main(["search", *ASK, "--objective", "Logit(1)", "--set", "steps=1"]) == 0
    out = capsys.readouterr().out
    assert "48;2;0;114;178m" in out
    assert "48;2;213;94;0m" in out

"""`embgrad show` of pairs of texts and of influences, and the tables that it writes of saved results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import embgrad
from embgrad.results import Influence, PairAttribution
from tests.unit.attribution.models import CLASSES, Tokenizer, curved
from tests.unit.cli.commands import refused

A, B = embgrad.TokenBatch([[2, 7, 9]]), embgrad.TokenBatch([[3, 8]])


@pytest.fixture
def pairs(directory: Path) -> PairAttribution:
    """Save the attribution of a pair, and return it."""
    made = embgrad.attribute_pairs(curved(), (A, B), "input_x_gradient", tokenizer=Tokenizer())
    made.save(directory / "p.safetensors")
    return made


@pytest.fixture
def influence(directory: Path) -> Influence:
    """Save an influence with tokens, and return it."""
    objective = embgrad.Projection(np.ones(CLASSES))
    made = embgrad.tables.influence(curved(), [A], [A, A], objective, tokens=2)
    made.save(directory / "i.safetensors")
    return made


def test_pairs_are_printed_by_the_tokens_of_the_first_text(command: Any, pairs: PairAttribution) -> None:
    lines = command("show", "p.safetensors").out.splitlines()
    assert lines[0] == "pairs, ReferenceModel (reference)"
    assert [line.split()[0] for line in lines[1:4]] == ["t2", "t7", "t9"]
    assert all("t3(" in line and "t8(" in line for line in lines[1:4])
    answer = json.loads(command("show", "p.safetensors", "--json").out)["results"]["pairs"]
    assert answer["scores"] == pairs.scores.tolist()
    assert answer["provenance"]["method"]["class"] == "InputXGradient"
    assert "--words is for gradients and attributions" in refused(command("show", "p.safetensors", "--words"))


def test_the_training_examples_of_an_influence_are_printed_with_tokens(command: Any, influence: Influence) -> None:
    out = command("show", "i.safetensors").out
    assert out.splitlines()[0] == "influence, ReferenceModel (reference)"
    assert [*influence.lines(0), *influence.lines(1)] == out.splitlines()[1:-1]
    answer = json.loads(command("show", "i.safetensors", "--json").out)["results"]["influence"]
    assert answer["proponent_terms"] == influence.proponent_terms.tolist()  # type: ignore[union-attr]


def test_tables_of_saved_results_are_written(command: Any, pairs: PairAttribution, influence: Influence) -> None:
    for name, result in (("p", pairs), ("i", influence)):
        done = command("show", f"{name}.safetensors", "--to", "t.csv")
        assert done.code == 0, done.err
        assert "written to t.csv" in done.out
        pd.testing.assert_frame_equal(pd.read_csv("t.csv")[["score"]], result.to_pandas()[["score"]])


def test_a_table_of_several_results_has_their_names(command: Any, influence: Influence) -> None:
    methods = ["saliency", "occlusion"]
    results = embgrad.attribute(curved(), A, embgrad.Logit(1), methods, tokenizer=Tokenizer())
    embgrad.save(results, "a.safetensors")
    assert command("show", "a.safetensors", "--to", "t.parquet").code == 0
    assert command("show", "a.safetensors", "--at", "occlusion", "--to", "t.csv").code == 0
    alone = pd.read_csv("t.csv")
    assert "result" not in alone
    np.testing.assert_allclose(alone["score"], results["occlusion"].scores[0])
    frame = pd.read_parquet("t.parquet")
    assert frame["result"].tolist() == [name for name in methods for _ in range(3)]
    np.testing.assert_array_equal(frame["score"], np.concatenate([results[name].scores[0] for name in methods]))
    embgrad.save({"x": embgrad.gradients(curved(), A, embgrad.Logit(1)), "y": influence}, "b.safetensors")
    message = "--to: the results have different tables; choose one of them with --at"
    assert message in refused(command("show", "b.safetensors", "--to", "t.csv"))
    assert command("show", "b.safetensors", "--to", "t.csv", "--at", "y").code == 0
    assert "training_example" in pd.read_csv("t.csv")


def test_a_table_that_cannot_be_written_is_refused(command: Any, pairs: PairAttribution) -> None:
    assert "expected a name that ends in .parquet or .csv" in refused(command("show", "p.safetensors", "--to", "t.txt"))
    assert "--to is '-': expected the name of a file" in refused(command("show", "p.safetensors", "--to", "-"))
    embgrad.check_port(curved(), curved(), A).save("r.safetensors")
    message = "--to: 'port' is a PortReport, which has no table; remove --to"
    assert message in refused(command("show", "r.safetensors", "--to", "t.csv"))

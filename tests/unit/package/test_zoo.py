"""The zoo of architectures: its verdicts, its processes and its page, without any framework."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from tests.zoo import running
from tests.zoo.comparing import judged
from tests.zoo.hand import place_of
from tests.zoo.page import PAGE, count, page, recorded, write
from tests.zoo.running import Limits, chosen, run

IDS = np.array([[3, 4, 5], [6, 7, 0]])


def test_a_difference_is_a_share_of_what_was_summed() -> None:
    expected = np.array([1.0, -2.0])
    assert judged("word", expected, expected, expected) == {"status": "equal", "difference": 0.0}
    assert judged("word", expected * 1.01, expected, expected) == {"status": "wrong", "difference": 0.01}
    assert judged("attribute", expected * 1.01, expected, 200 * expected) == {"status": "equal", "difference": 5e-5}
    assert judged("word", expected[None], expected, expected)["status"] == "wrong"


def test_what_cannot_be_compared_is_not_equal() -> None:
    zeros = np.zeros(2)
    assert judged("word", zeros, zeros, zeros)["status"] == "unchecked"
    assert judged("word", np.ones(2), zeros, zeros)["status"] == "wrong"
    assert judged("word", zeros, np.array([0.0, np.nan]), zeros)["status"] == "unchecked"


def test_ids_that_a_model_padded() -> None:
    padding = np.ones((2, 2), int)
    assert place_of(IDS, IDS) == slice(0, 3)
    assert place_of(np.concatenate([IDS, padding], 1), IDS) == slice(0, 3)
    assert place_of(np.concatenate([padding, IDS], 1), IDS) == slice(2, 5)
    assert place_of(IDS[:, ::-1], IDS) is None
    assert place_of(IDS[:1], IDS) is None


SCRIPT = """
import json, sys, time
print("{}", flush=True)
for line in sys.stdin:
    name = line.partition(" ")[0]
    if name == "slow":
        time.sleep(60)
    if name == "dead":
        sys.exit("no memory is left")
    if name == "large":
        kept = bytearray(400_000_000)
        kept[::4096] = bytes([1]) * len(kept[::4096])
        time.sleep(60)
    print(json.dumps({"name": name, "family": name, "checks": {}}), flush=True)
"""


def test_a_model_that_hangs_or_dies_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "COMMAND", (sys.executable, "-c", SCRIPT))
    names = {name: name for name in ("a", "slow", "b", "dead", "large", "c")}
    begun: list[str] = []
    rows = {row["name"]: row for row in run("torch", names, Limits(3.0, 0.3), 1, begun.append)}
    assert begun == list(names)
    assert set(rows) == set(names)
    assert rows["slow"]["ended"] == "it took more than 3 seconds"
    assert rows["large"]["ended"] == "it took more than 0.3 GB of memory"
    assert rows["dead"]["ended"] == "the process ended with status 1: no memory is left"
    assert all(not count(rows[name]).bad for name in "abc")
    assert count(rows["slow"]).lines == ("ended: it took more than 3 seconds",)


def test_models_are_chosen_by_class_or_architecture() -> None:
    names = {"BertModel": "bert", "BertForMaskedLM": "bert", "GPT2Model": "gpt2"}
    assert chosen(names, []) == names
    assert list(chosen(names, ["bert"])) == ["BertModel", "BertForMaskedLM"]
    assert list(chosen(names, ["GPT2Model"])) == ["GPT2Model"]


def _row(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "family": "a", "framework": "torch", **fields}


def test_what_counts_against_a_model() -> None:
    assert not count(_row("A", checks={"word": {"status": "refused", "message": "no lookup"}})).bad
    assert not count(_row("A", unchecked="it cannot be built")).bad
    assert count(_row("A", checks={"word": {"status": "wrong", "difference": 0.1}})).lines == ("word wrong: 0.1",)
    assert count(_row("A", checks={"word": {"status": "raw", "message": "KeyError"}})).lines == ("word raw: KeyError",)
    assert count(_row("A", changed=["mode: is new"])).lines == ("changed: mode: is new",)
    assert count(_row("A", layer="h.1, not h.0")).lines == ("the last layer by hand is h.1, not h.0",)


def test_rows_are_recorded_in_the_order_of_the_package(tmp_path: Any) -> None:
    rows = {name: _row(name, checks={}, roles={"word": f"{name}#0"}) for name in ("C", "A", "B")}
    record = {"torch": {"versions": {"torch": "2"}, "rows": rows}}
    write(record, ["A", "B", "C"], "torch", tmp_path / "rows.json")
    read = recorded(tmp_path / "rows.json")
    assert list(read["torch"]["rows"]) == ["A", "B", "C"]
    assert [name for name, row in read["torch"]["rows"].items() if "roles" in row] == ["A"]
    assert recorded(tmp_path / "none.json") == {}


def test_the_page_groups_what_is_refused() -> None:
    check = {
        "status": "refused",
        "message": "PointError: 'word' fits 2 lookups: a.b#0 (96 rows × 32). Name one of them.",
    }
    other = {"status": "refused", "message": "PointError: 'word' fits 3 lookups: c#1 (8 rows × 32). Name one of them."}
    rows = {"A": _row("A", checks={"word": check}), "B": _row("B", checks={"word": other})}
    text = page({"torch": {"versions": {"torch": "2"}, "rows": rows}})
    assert "- 2 at `word`: `PointError: 'word' fits N lookups: ….` (A, B)" in text
    assert "| transformers in PyTorch | `word` | 2 | 0 | 0 | 2 | 0 | 0 | 0 |" in text
    assert "What is wrong" not in text


def test_the_page_is_made_of_the_rows() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(recorded()), "run python -m tests.zoo --write docs/architectures.md"


def test_no_recorded_number_is_wrong_and_no_model_changed() -> None:
    rows = [row for framework in recorded().values() for row in framework["rows"].values()]
    assert len(rows) > 1000
    wrong = [row["name"] for row in rows if "wrong" in count(row).statuses.values()]
    changed = [row["name"] for row in rows if row.keys() & {"changed", "ended", "layer"}]
    assert wrong == changed == []

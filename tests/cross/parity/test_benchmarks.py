"""Each mode that the benchmarks compare gives, small, what code by hand gives; so compiled and plain agree."""

from __future__ import annotations

import warnings
from dataclasses import asdict

import pytest

from tests.benchmarks import measuring, shares, worker
from tests.benchmarks.cases import MODES, PLAIN, Case, drawn_bert
from tests.benchmarks.jobs import LANGUAGE
from tests.sampling import slow

#: torch.compile takes minutes to compile the ways by hand; what it computes is tested in tests/frameworks/torch.
SLOW = "PyTorch, compile=True"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return drawn_bert(tmp_path_factory.mktemp("models") / "small", layers=2, dim=32, vocab=3000)


ASKED = [*((name, "pooled") for name in MODES if name != SLOW), *((name, "position") for name in PLAIN)]
#: The plain modes run with the ordinary tests.
ORDINARY = [(name, "pooled") for name in PLAIN]


@pytest.mark.parametrize(("mode", "objective"), [*ORDINARY, *(slow(one) for one in ASKED if one not in ORDINARY)])
def test_gradients_are_those_by_hand(mode: str, objective: str, checkpoint: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        built = worker._maker(mode)(Case(checkpoint, 2, 7, objective))
        found, functions = measuring.checked(built)
        for name in ("forward", "backward"):
            functions[name]()
    assert "refused" not in found, found
    assert found["distance"] < 2e-5


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", PLAIN)
def test_a_small_call_takes_all_steps(mode: str, checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "CALLS", 8)
    found = worker.own_share(mode, asdict(Case(checkpoint, 1, 8)))[0]["shares"]
    assert found.keys() == {*shares.STEPS[MODES[mode]], shares.ELSE}
    assert sum(found.values()) == pytest.approx(1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", LANGUAGE)
def test_language_models(mode: str, checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.benchmarks import language

    monkeypatch.setattr(language, "SIZES", {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 3000})
    found, _ = measuring.checked(language.MODES[mode](Case(checkpoint, 2, 7)))
    assert "refused" not in found, found
    assert found["distance"] < 2e-5

"""A classifier that was trained, NanoGuard: gradients beside `torch.autograd`, and its tokenizer, which is not loaded."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.support.nanoguard import load_model, load_tokenizer, read_fields


class Plain:
    """A class whose objects have a dict of fields."""


class Running:
    """A class whose pickle calls a function when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_the_fields_of_a_pickle_are_read_without_loading_it() -> None:
    fields = {"name": "a", "ranks": {b"a": 0, b"bc": 300, b"d": 70_000}, "empty": {}}
    held = Plain()
    held.__dict__.update(fields)
    assert read_fields(pickle.dumps(held, protocol=4)) == fields


def test_a_pickle_of_anything_else_is_refused_and_not_run(tmp_path: Path) -> None:
    held = Plain()
    held.__dict__["inner"] = Running(tmp_path / "it ran")
    for pickled in (pickle.dumps(held, protocol=4), pickle.dumps({"a": 1}, protocol=4), pickle.dumps([held])):
        with pytest.raises(
            ValueError, match="the pickle does not hold one object with a dict of texts, numbers and bytes"
        ):
            read_fields(pickled)
    assert not (tmp_path / "it ran").exists()
    pickle.loads(pickle.dumps(held))
    assert (tmp_path / "it ran").exists()


@pytest.fixture(scope="module")
def loaded() -> Any:
    """The classifier and its tokenizer."""
    return load_model(), load_tokenizer()

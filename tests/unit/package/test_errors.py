"""Every error names its page, also a subclass, and an error that was pickled."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest

import embgrad
from embgrad import errors
from embgrad.errors import BatchError, EmbgradError, UnknownPointError
from embgrad.testing.checks_errors import MISTAKES
from tests.messages.sites import CLASSES

ROOT = Path(__file__).parents[3]


def missing_package_error() -> type[EmbgradError]:
    try:
        from embgrad.ray import MissingPackageError
    except EmbgradError as error:
        return type(error)
    return MissingPackageError


@pytest.mark.parametrize("kind", CLASSES.values())
def test_a_message_names_its_page(kind: type[EmbgradError]) -> None:
    error = kind("what was wrong: what was expected")
    assert str(error) == (
        "what was wrong: what was expected\n"
        f"see docs/errors/{kind.__name__.lower()}.md, or run: embgrad explain {kind.__name__}"
    )
    assert error.message == "what was wrong: what was expected"
    assert (ROOT / error.page()).read_text(encoding="utf-8").find(f"\n# {kind.__name__}\n") > 0
    assert str(pickle.loads(pickle.dumps(error))) == str(copy.copy(error)) == str(error)


def test_a_class_without_a_page_names_that_of_its_base() -> None:
    class OwnError(UnknownPointError):
        """A backend's own."""

    assert OwnError.page() == "docs/errors/unknownpointerror.md"
    missing = missing_package_error()
    assert missing.page() == "docs/errors/embgraderror.md"
    assert str(missing("no Ray")) == f"no Ray\n{errors.EmbgradError.see()}"


def test_an_error_that_quotes_another_names_one_page() -> None:
    def batches() -> object:
        yield [[1, 2]]
        yield [[1, -2]]

    weights = {"E": [[0.0, 1.0]] * 4}
    from embgrad.testing.reference import ReferenceModel, lookup

    model = ReferenceModel(lambda model, input_ids: lookup(model["E"], input_ids).mean(1), weights)
    with pytest.raises(BatchError, match="batch 1 of the source: ids holds -2") as raised:
        list(embgrad.stream(model, batches(), embgrad.Sum()))
    assert str(raised.value).count("see docs/errors/") == 1


def test_every_class_is_provoked_in_every_framework() -> None:
    assert {*MISTAKES} == {*CLASSES.values()}

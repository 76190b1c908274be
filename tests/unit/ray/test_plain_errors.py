"""Errors of embgrad inside those of Ray, which has their text alone."""

from __future__ import annotations

import pytest

import embgrad
from embgrad.errors import BatchError, EmbgradError
from embgrad.loading.errors import UsageError
from embgrad.ray import plain_errors


def test_errors_of_embgrad_are_extracted_from_those_of_ray() -> None:
    text = (
        "ray::MapWorker()\n  File 'x.py', line 3\nembgrad.errors.ObjectiveError: inner\n\nThe above exception was the direct "
        "cause\n\nray::MapWorker()\nembgrad.errors.BatchError: the row with key=7: id 99\nis wrong\n"
        f"{embgrad.errors.BatchError.see()}\n\nThe above exception was"
    )
    with pytest.raises(BatchError, match=r"^the row with key=7: id 99\nis wrong\nsee docs/errors"), plain_errors():
        raise RuntimeError(text)
    blank = f"embgrad.errors.BatchError: it said:\n\nno \n\n\nat all\n{embgrad.errors.BatchError.see()}"
    added = "\nFailed to apply UDF transform after 1/1 attempts (total backoff 0.0s).\nTo change retry attempts, see"
    for whole in (
        blank,
        text + "\n\n" + blank,
        blank + added,
        f"{blank}\n\nThe above exception was the cause of:\n\nX: x",
    ):
        with pytest.raises(BatchError, match=r"^it said:\n\nno \n\n\nat all\nsee docs/errors"), plain_errors():
            raise RuntimeError(whole)
    with pytest.raises(UsageError, match=r"^first$"), plain_errors():
        raise RuntimeError(
            "embgrad.loading.errors.UsageError: first\n\nThe above exception was\n\nembgrad is\n" + blank[-30:]
        )
    with pytest.raises(UsageError, match=r"^of ours$"), plain_errors():
        raise RuntimeError("embgrad.loading.errors.UsageError: of ours")
    with pytest.raises(EmbgradError, match=r"^of ours\nsee docs/errors/embgraderror"), plain_errors():
        raise RuntimeError("embgrad.not_here.UnknownError: of ours")
    caused, chained = RuntimeError("the first"), RuntimeError("the second")
    caused.__cause__, chained.__context__ = RuntimeError(blank), RuntimeError(blank)
    for error in (caused, chained):
        with pytest.raises(BatchError, match=r"^it said:\n\nno"), plain_errors():
            raise error
    for error in (RuntimeError("embgrad is no class"), KeyboardInterrupt(), BatchError("plain")):
        with pytest.raises(type(error), match=str(error) or None) as caught, plain_errors():
            raise error
        assert caught.value is error

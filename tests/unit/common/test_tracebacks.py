"""Tracebacks of errors: the user's frames and the model's, and of embgrad's only the one that raised."""

from __future__ import annotations

import gc
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.common.tracebacks import errors_of_model
from embgrad.testing.reference import ReferenceModel, Tensor, lookup

IDS = np.array([[3, 1, 2]])
TABLES = {"E": np.eye(5, 4), "P": np.eye(2, 4)}


def forward_of_the_model(model: Any, input_ids: Any) -> Tensor:
    return (lookup(model["E"], input_ids) + lookup(model["P"], np.arange(input_ids.shape[1])[None])).mean(1)


def forward_that_raises(model: Any, input_ids: Any) -> Tensor:
    rows = lookup(model["E"], input_ids)
    if input_ids.shape[1] > 2:
        raise ValueError("the model takes two positions")
    return rows.mean(1)


def model(forward: Callable[..., Any] = forward_of_the_model) -> ReferenceModel:
    return ReferenceModel(forward, TABLES)


CALLS: dict[str, Callable[[ReferenceModel], Any]] = {
    "gradients": lambda model: embgrad.gradients(model, IDS, embgrad.Logit(1)),
    "hidden state": lambda model: embgrad.gradients(model, IDS, embgrad.Logit(1), at="layer.3"),
    "points": lambda model: embgrad.points(model, IDS),
    "attribute": lambda model: embgrad.attribute(model, IDS, embgrad.Logit(1), "integrated_gradients"),
    "attribute_tokens": lambda model: embgrad.attribute_tokens(model, IDS),
    "search": lambda model: embgrad.search(model, IDS, embgrad.Logit(1), embgrad.methods.HotFlip(steps=2)),
}


def frames(error: BaseException) -> list[list[str]]:
    """Return the files of the frames of an error and of its causes, as they are shown."""
    shown: list[list[str]] = []
    current: BaseException | None = error
    while current is not None:
        shown.append([frame.filename for frame in traceback.extract_tb(current.__traceback__)])
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return shown


def own(files: list[str]) -> list[str]:
    return [file for file in files if "/tests/" not in file and ("/embgrad/" in file or "/backends/" in file)]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("forward", [forward_of_the_model, forward_that_raises])
def test_an_error_shows_few_frames_of_embgrads(name: str, forward: Callable[..., Any]) -> None:
    with pytest.raises((embgrad.EmbgradError, ValueError)) as caught:
        CALLS[name](model(forward))
    if not isinstance(caught.value, embgrad.EmbgradError):
        return  # the model's own, unchanged
    shown = frames(caught.value)
    assert sum(len(own(files)) for files in shown) <= 12
    assert any(file == __file__ for file in shown[0])
    assert len(shown) <= 2


def test_the_models_own_frames_and_exception_stay() -> None:
    with pytest.raises(
        embgrad.errors.BatchError, match="example 0 has 3 tokens, and the model takes 2 positions"
    ) as caught:
        CALLS["gradients"](model(forward_that_raises))
    cause = caught.value.__cause__
    assert isinstance(cause, ValueError)
    assert str(cause) == "the model takes two positions"
    names = [frame.name for frame in traceback.extract_tb(cause.__traceback__)]
    assert names == ["forward_that_raises"]
    with pytest.raises(embgrad.errors.BatchError, match="example 0 has 3 tokens") as caught:
        CALLS["attribute"](model())
    cause = caught.value.__cause__
    assert isinstance(cause, embgrad.errors.BatchError)
    assert "the model looks up index 2" in str(cause)
    assert traceback.extract_tb(cause.__traceback__)[0].name == "forward_of_the_model"


def test_an_exception_of_the_users_goes_on_with_all_its_frames() -> None:
    raised = KeyError("the user's")

    def objective(outputs: Any) -> Any:
        raise raised

    with pytest.raises(KeyError) as caught:
        embgrad.gradients(model(), IDS[:, :2], objective)
    assert caught.value is raised
    names = [frame.name for frame in traceback.extract_tb(raised.__traceback__)]
    assert names[-1] == "objective"
    assert len(own([frame.filename for frame in traceback.extract_tb(raised.__traceback__)])) > 3


def test_an_error_keeps_nothing_alive_once_it_is_gone() -> None:
    built = model()
    alive = weakref.ref(built)
    gc.disable()
    try:
        with pytest.raises(embgrad.errors.UnknownPointError, match=r"there is no point 'nowhere'"):
            embgrad.gradients(built, IDS[:, :2], embgrad.Logit(1), at="nowhere")
        del built
    finally:
        gc.enable()
    gc.collect()
    assert alive() is None


def failing(code: str, module: str = "embgrad.engine.planted") -> Callable[..., Any]:
    """Return a function that runs a line of code as a module of this name does."""
    namespace: dict[str, Any] = {"__name__": module, "embgrad": embgrad}
    exec(f"def fail(*args, **options):\n    {code}", namespace)
    return namespace["fail"]


def is_of_model(function: Callable[..., Any]) -> bool:
    """Return whether an `except` clause behind a probe catches what the function raises."""
    try:
        function()
    except errors_of_model():
        return True
    except Exception:
        return False
    raise AssertionError("the function raised nothing")


@pytest.mark.parametrize("module", ["embgrad.engine.planted", "embgrad_torch.planted", "embgrad_jax.planted"])
@pytest.mark.parametrize(
    "mistake",
    ["assert not True, 'planted'", "raise AssertionError", "None + 1", "{}['key']", "().shape", "[][0]", "unknown",
        "unbound = unbound + 1", "first, second = None"],
)  # fmt: skip
def test_a_mistake_in_own_code_is_no_error_of_a_model(mistake: str, module: str) -> None:
    assert not is_of_model(failing(mistake, module))


@pytest.mark.parametrize(
    ("code", "module"),
    [
        ("assert not True", "user.model"),
        ("None + 1", "torch.nn.functional"),
        ("{}['key']", "embgrad.testing.reference"),  # a model that comes with the tests
        ("{}['key']", "embgradient.model"),
        ("raise embgrad.BatchError('an id is outside of the table')", "embgrad.engine.planted"),
        ("raise embgrad.GoldenError('an AssertionError as well')", "embgrad.engine.planted"),
        ("raise ValueError('shapes do not fit')", "embgrad.engine.planted"),
        ("len(3)", "embgrad_torch.planted"),  # a function without frames, called for the model
        ("(lambda ids: ids)()", "embgrad.engine.planted"),  # the user's function has another signature
        ("max(*args, **options)", "embgrad_torch.planted"),
        ("{}.__getitem__(0)", "embgrad_torch.planted"),
    ],
)
def test_what_a_model_or_a_check_of_the_batch_raises_is_an_error_of_the_model(code: str, module: str) -> None:
    assert is_of_model(failing(code, module))


def test_an_error_of_a_model_below_own_code_is_the_models() -> None:
    def wrapped() -> None:
        namespace: dict[str, Any] = {"__name__": "embgrad.engine.planted", "call": failing("assert not True", "user")}
        exec("def call_model():\n    return call()", namespace)
        namespace["call_model"]()

    assert is_of_model(wrapped)

"""Arguments that a function does not have, or lacks: what is said of them."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.common.keywords import INSTEAD, explain_arguments
from embgrad.testing.reference import ReferenceModel, lookup

IDS = np.array([[3, 5], [2, 1]])
MODEL = ReferenceModel(lambda model, input_ids: lookup(model["E"], input_ids).sum(1), {"E": np.ones((8, 2))})
FUNCTIONS = [
    *(embgrad.gradients, embgrad.points, embgrad.tables.table_gradients, embgrad.tables.parameter_gradients,
        embgrad.metrics.padding_report),
    *(embgrad.capture, embgrad.bisect),
]  # fmt: skip


@pytest.mark.parametrize("name", ["create_graph", "retain_graph"])
def test_options_of_autograd(name: str) -> None:
    with pytest.raises(embgrad.EmbgradError) as caught:
        embgrad.gradients(MODEL, IDS, embgrad.Sum(), **{name: True})
    assert caught.value.message == (
        f"gradients takes no {name!r}: the gradients are NumPy arrays without a graph, and the model is left unchanged; omit it, "
        "and differentiate your own forward pass for second-order gradients"
    )
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("labels", "gradients takes no 'labels': labels go into the objective, embgrad.CrossEntropy(labels)"),
        ("attention_mask", "the model's inputs go into the batch, {'input_ids': ids, 'attention_mask': mask}"),
        ("inputs_embeds", "pass the ids, and replace their embeddings with override={'word': array}"),
        ("device", "the inputs go to the model's own device; move the model"),
        ("batchsize", "Did you mean 'batch_size'?"),
        ("maxlength", "Did you mean 'max_length'?"),
        ("nonsense", "gradients takes no 'nonsense': expected one of 'model', 'batch', 'objective', 'at', "),
    ],
)
def test_other_options(name: str, message: str) -> None:
    with pytest.raises(embgrad.EmbgradError) as caught:
        embgrad.gradients(MODEL, IDS, embgrad.Sum(), **{name: 1})
    assert message in caught.value.message


def test_missing_arguments_are_named() -> None:
    with pytest.raises(embgrad.EmbgradError) as caught:
        embgrad.gradients(MODEL, IDS)
    assert caught.value.message == (
        "gradients was called without its 'objective': expected gradients(model, batch, objective), such as embgrad.Sum() or "
        "embgrad.CrossEntropy(labels)"
    )
    with pytest.raises(embgrad.EmbgradError, match=r"without its 'batch': expected points\(model, batch\)"):
        embgrad.points(model=MODEL)
    assert embgrad.gradients(MODEL, objective=embgrad.Sum(), batch=IDS).shape == (2, 2, 2)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_functions_say_what_they_take(function: Any) -> None:
    parameters = inspect.signature(function).parameters
    assert not any(item.kind in (item.VAR_KEYWORD, item.VAR_POSITIONAL) for item in parameters.values())
    assert not set(INSTEAD) & set(parameters)
    with pytest.raises(embgrad.EmbgradError, match=f"{function.__name__} takes no 'nonsense': expected one of 'model"):
        function(nonsense=1)


def test_errors_of_the_function_itself_propagate() -> None:
    @explain_arguments
    def double(number: int) -> int:
        return number * 2

    assert double(2) == 4
    with pytest.raises(TypeError, match="takes 1 positional argument but 2 were given"):
        double(1, 2)


@pytest.mark.parametrize(
    ("function", "name", "method"),
    [
        (embgrad.attribute, "n_steps", "IntegratedGradients(steps=50)"),
        (embgrad.attribute_tokens, "steps", "IntegratedGradients(steps=50)"),
        (embgrad.attribute_pairs, "baseline", "IntegratedJacobians(steps=50)"),
        (embgrad.search, "seed", "GCG(steps=250)"),
    ],
)
def test_an_argument_of_a_method_goes_into_it(function: Any, name: str, method: str) -> None:
    with pytest.raises(embgrad.EmbgradError) as raised:
        function(None, [[1]], **{name: 1})
    assert raised.value.message.startswith(f"{function.__name__} takes no {name!r}: expected one of 'model', ")
    assert raised.value.message.endswith(f" A method's own arguments go into it, method=embgrad.methods.{method}.")


def test_captums_batch_size_is_explained() -> None:
    with pytest.raises(embgrad.EmbgradError, match=r"takes no 'internal_batch_size': batch_size=\.\.\. is the"):
        embgrad.attribute(None, [[1]], embgrad.Sum(), "saliency", internal_batch_size=1)

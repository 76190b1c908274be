"""Mistakes in a first call are errors that say what to do."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.errors import BackendError, BatchError, EmbgradError, ObjectiveError
from embgrad.testing.reference import ReferenceModel, lookup

IDS = np.array([[3, 5], [2, 1]])
SUM = embgrad.Sum()


def model() -> ReferenceModel:
    return ReferenceModel(lambda model, input_ids: lookup(model["E"], input_ids).sum(1), {"E": np.ones((8, 2))})


def test_the_model_and_the_batch_in_the_wrong_order() -> None:
    message = (
        "the batch is a ReferenceModel: expected token ids there, the model first and the objective last, as in embgrad"
    )
    for first in (IDS, {"input_ids": IDS}):
        with pytest.raises(BatchError, match=message):
            embgrad.gradients(first, model(), SUM)
    with pytest.raises(BatchError, match="the batch is a Sum: expected token ids there, the model first"):
        embgrad.gradients(model(), SUM, IDS)
    with pytest.raises(BackendError, match="a dict of inputs is the second argument"):
        embgrad.gradients({"input_ids": IDS}, {"input_ids": IDS}, SUM)


@pytest.mark.parametrize("more", [{}, {"input_ids": IDS}])
def test_embeddings_in_the_batch_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(BatchError) as caught:
        embgrad.gradients(model(), {**more, "inputs_embeds": np.zeros((2, 2, 2))}, SUM)
    assert caught.value.message == (
        "the batch holds 'inputs_embeds', and the gradient is taken where the model looks up ids: expected the ids in its place, "
        "and the embeddings as override={'word': array}"
    )
    assert embgrad.gradients(model(), {"input_ids": IDS, "inputs_embeds": None}, SUM).shape == (2, 2, 2)


def test_names_instead_of_models_and_tokenizers_are_refused() -> None:
    with pytest.raises(
        BackendError, match=r"in place of a name, pass the model that from_pretrained\(...\) or embgrad.zoo.load_bert"
    ):
        embgrad.gradients("bert-base-uncased", IDS, SUM)
    with pytest.raises(BatchError, match=r"in place of a name, what AutoTokenizer.from_pretrained\(...\) gives"):
        embgrad.gradients(model(), ["a text"], SUM, tokenizer="bert-base-uncased")


class Loader:
    def __iter__(self) -> Any:
        return iter([{"input_ids": IDS}])


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            [{"input_ids": IDS}] * 3,
            r"the batch is a list of 3 dicts: expected one dict of arrays, \(example, position\)",
        ),
        ((IDS, np.array([0, 1])), "the batch is a pair of arrays with two axes and one axis: expected the ids alone"),
        (
            Loader(),
            r"the batch is a Loader: expected one batch, as next\(iter\(...\)\) gives it, or embgrad.stream for all",
        ),
        ((item for item in [IDS]), "the batch is a generator: expected one batch"),
    ],
)
def test_several_batches_are_refused(batch: Any, message: str) -> None:
    with pytest.raises(BatchError, match=message):
        embgrad.gradients(model(), batch, SUM)


def test_an_empty_list_of_texts_is_refused() -> None:
    with pytest.raises(BatchError, match="the batch is an empty list: expected at least one text or pair of texts"):
        embgrad.gradients(model(), [], SUM, tokenizer=lambda text: [1])


def loss(output: Any, target: Any) -> Any:
    return (output - target).sum(1)


class Loss:
    def __call__(self, prediction: Any, target: Any) -> Any:
        return loss(prediction, target)

    def of(self, prediction: Any, target: Any) -> Any:
        return loss(prediction, target)


class Module:
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def forward(self, prediction: Any, target: Any) -> Any:
        return loss(prediction, target)


@pytest.mark.parametrize(
    "function", [loss, Loss(), Loss().of, Module()], ids=["function", "object", "method", "module"]
)
@pytest.mark.parametrize("wrap", [lambda function: function, embgrad.Scalar], ids=["itself", "Scalar"])
def test_functions_that_take_a_target_are_refused(function: Any, wrap: Any) -> None:
    message = (
        r"takes 2 arguments, '(output|prediction)', 'target': expected a function of what the model returned alone"
    )
    with pytest.raises(ObjectiveError, match=message):
        embgrad.gradients(model(), IDS, wrap(function))


def test_a_class_as_objective_is_refused() -> None:
    with pytest.raises(ObjectiveError, match="the objective is the class Loss: expected an instance, or a function"):
        embgrad.gradients(model(), IDS, Loss)


def test_functions_may_have_optional_arguments() -> None:
    def scaled(output: Any, by: float = 2.0, *more: Any, **options: Any) -> Any:
        return output.column(0)

    def with_target(output: Any, target: Any) -> Any:
        return output.column(0)

    for function in (scaled, functools.partial(with_target, target=1), lambda *args: args[0].column(0)):
        assert embgrad.gradients(model(), IDS, function).shape == (2, 2, 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.array([0, 1]), r"; pass labels to an objective, embgrad.CrossEntropy\(labels\)"),
        ([0, 1], r"; pass labels to an objective, embgrad.CrossEntropy\(labels\)"),
        ({"labels": [0, 1]}, r"; pass labels to an objective, embgrad.CrossEntropy\(labels\)"),
        ("loss", "the objective is 'loss': expected CrossEntropy, .* gives one number for each example\n"),
    ],
)
def test_other_objectives_are_refused(given: Any, message: str) -> None:
    with pytest.raises(ObjectiveError, match=message):
        embgrad.gradients(model(), IDS, given)


@pytest.mark.parametrize(
    "several", [[SUM, SUM], (SUM, len), [embgrad.Scalar(len)]], ids=["objectives", "a function", "a Scalar"]
)
@pytest.mark.parametrize(
    "call",
    [
        embgrad.tables.table_gradients,
        embgrad.tables.parameter_gradients,
        lambda *arguments: embgrad.attribute(*arguments, embgrad.methods.Saliency()),
        lambda *arguments: embgrad.metrics.infidelity(*arguments, embgrad.methods.Saliency()),
        lambda *arguments: embgrad.metrics.sensitivity(*arguments, embgrad.methods.Saliency()),
        lambda model, ids, objective: embgrad.metrics.padding_report(
            model, embgrad.TokenBatch(ids, np.array([[1, 1], [1, 0]])), objective
        ),
        lambda model, ids, objective: list(embgrad.stream(model, list(ids), objective)),
    ],
    ids=[
        "table_gradients",
        "parameter_gradients",
        "attribute",
        "infidelity",
        "sensitivity",
        "padding_report",
        "stream",
    ],
)
def test_a_list_of_objectives_is_refused_where_one_is_taken(call: Any, several: Any) -> None:
    with pytest.raises(ObjectiveError, match="; make one call for each objective\n"):
        call(model(), IDS, several)


def test_results_of_a_list_of_objectives_are_compared_and_saved_one_by_one(tmp_path: Any) -> None:
    results = embgrad.gradients(model(), IDS, [SUM, embgrad.Logit(0)])
    assert embgrad.compare(results[0], results[0]).agrees
    with pytest.raises(EmbgradError, match=r"a is of type list: expected a result of embgrad\.gradients"):
        embgrad.compare(results, results)
    with pytest.raises(EmbgradError, match=r"results is of type list: expected a result of embgrad\.gradients"):
        embgrad.save(results, tmp_path / "results.safetensors")


@pytest.mark.parametrize("call", [lambda model: model, lambda: None, lambda model, inputs, more: None])
def test_a_call_with_other_arguments_is_refused(call: Any) -> None:
    message = r"call takes \(.*\), and is called with the model and its inputs \(.*\): expected a function, call\(model, inputs\)"
    with pytest.raises(BatchError, match=message):
        embgrad.gradients(model(), IDS, SUM, call=call)
    assert embgrad.gradients(
        model(), IDS, SUM, call=lambda m, i, more=None: m(i["input_ids"] if isinstance(i, dict) else i)
    )


def test_a_capture_that_was_not_entered_is_refused() -> None:
    captured = embgrad.capture(model())
    for name in ("mean", "sum", "steps"):
        message = (
            f"was not opened, so that it has no '{name}': expected `with embgrad.capture\\(model\\) as tap:` around"
        )
        with pytest.raises(EmbgradError, match=message):
            getattr(captured, name)
    assert not hasattr(captured, "nonsense")
    assert not hasattr(captured, "mean")

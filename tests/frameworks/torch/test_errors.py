"""Bad input to a PyTorch model: each a specific error that says what was wrong, what was expected, what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import embgrad
from embgrad.errors import BatchError, ObjectiveError, OutputError, PointNotReachedError, UnsupportedError
from tests.frameworks.torch.checks import IDS, VOCAB


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.table(x).mean(1))


class Integers(Net):
    def forward(self, x: Any) -> Any:
        logits = super().forward(x)
        return {"logits": logits, "labels": logits.argmax(1)}


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (lambda logits: logits, r"shape \(2, 3\) and dtype float32: expected .* shape \(2,\), one number per example"),
        (
            lambda logits: logits.sum(),
            r"shape \(\).*expected .* shape \(2,\).*For a scalar pass embgrad.Scalar\(function\)",
        ),
        (lambda logits: logits.argmax(1), r"dtype int64: expected a torch.Tensor of floating point and shape \(2,\)"),
        (lambda logits: 1.0, r"returned float: expected a torch.Tensor of floating point"),
        (
            embgrad.Scalar(lambda logits: logits[:, 0]),
            r"shape \(2,\) .*: expected .* shape \(\), .*\. Remove embgrad.Scalar",
        ),
    ],
)
def test_a_native_objective_of_another_shape_or_type_is_refused(objective: Any, message: str) -> None:
    with pytest.raises(ObjectiveError, match=message):
        embgrad.gradients(Net(), IDS, objective)


class Bagged(Net):
    def forward(self, x: Any) -> Any:
        rows = torch.embedding_bag(self.table.weight, x.flatten(), torch.arange(0, x.numel(), x.shape[1]))[0]
        return self.head(rows)


class Mapped(Net):
    def forward(self, x: Any) -> Any:
        return torch.vmap(lambda row: super(Mapped, self).forward(row[None])[0])(x)


class Nesting(Net):
    def forward(self, x: Any) -> Any:
        rows = self.table(torch.nested.nested_tensor([x[0], x[1, :3]], layout=torch.jagged))
        return self.head(torch.stack([one.mean(0) for one in rows.unbind()]))


class Moved(Net):
    def forward(self, x: Any) -> Any:
        return super().forward(x).to("meta")


class Numbers(nn.Module):
    def __init__(self, dtype: Any) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(VOCAB, 4, dtype=dtype))

    def forward(self, x: Any) -> Any:
        return torch.embedding(self.rows, x).abs().float().mean(1)


class Lazy(Net):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.LazyLinear(3)


def on_meta() -> nn.Module:
    model = Net()
    model.register_buffer("positions", torch.arange(3))
    return model.to("meta")


UNSUPPORTED: dict[str, tuple[Any, str]] = {
    "a bag that cannot be split": (Bagged, r"no output at each position\. Use nn.EmbeddingBag"),
    "a lookup inside a transform": (Mapped, r"looks up rows inside torch\.vmap .*\. Move the lookup out"),
    "nested ids": (Nesting, r"indices that are a NestedTensor, which NumPy cannot read .*\. Use"),
    "a quantised table": (lambda: Numbers(torch.int8), r"'rows' holds torch.int8, and gradients exist only for real"),
    "a complex table": (lambda: Numbers(torch.complex64), r"'rows' holds torch.complex64, .* quantised nor complex"),
    "a table without values": (on_meta, r"'table' is on the device 'meta', .* \(to_empty, then load_state_dict\)"),
    "weights that do not exist yet": (Lazy, r"LazyLinear creates its weights in its first call"),
    "parts without call": (
        lambda: [nn.Embedding(VOCAB, 4), nn.Linear(4, 3)],
        r"2 parts.*Pass call=lambda parts, inputs",
    ),
}


@pytest.mark.filterwarnings("ignore::UserWarning")  # of nested tensors
@pytest.mark.parametrize("case", UNSUPPORTED)
def test_what_pytorch_cannot_differentiate_is_refused(case: str) -> None:
    build, message = UNSUPPORTED[case]
    model = build()
    with pytest.raises(UnsupportedError, match=message):
        embgrad.gradients(model, IDS, embgrad.Logit(0))
    assert case != "weights that do not exist yet" or model.head.has_uninitialized_params()


def test_an_output_without_values_is_refused() -> None:
    with pytest.raises(OutputError, match=r"the output of shape \(2, 3\) is on the device 'meta', which holds no"):
        embgrad.gradients(Moved(), IDS, embgrad.Sum())


def test_a_loader_of_batches_is_refused() -> None:
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.tensor(IDS)))
    with pytest.raises(BatchError, match=r"the batch is a DataLoader: expected one batch, as next\(iter\(...\)\)"):
        embgrad.gradients(Net(), loader, embgrad.Sum())


def test_an_output_of_integers_is_refused() -> None:
    with pytest.raises(OutputError, match=r"'labels' is of dtype int64: expected floating point"):
        embgrad.gradients(Integers(), IDS, embgrad.Sum(output="labels"))


@pytest.mark.parametrize(
    "call", [embgrad.gradients, embgrad.tables.parameter_gradients, embgrad.tables.table_gradients]
)
def test_a_call_inside_a_transform_is_refused(call: Any) -> None:
    model = Net()

    def inside(given: Any) -> Any:
        call(model, IDS, embgrad.Logit(1))
        return given.sum()

    for transform in (torch.vmap, torch.func.grad):
        with pytest.raises(UnsupportedError, match=r"embgrad is called inside torch\.vmap.*\. Call it outside"):
            transform(inside)(torch.ones(2))


# The first call


@pytest.mark.parametrize(
    "loss",
    [nn.CrossEntropyLoss(), nn.CrossEntropyLoss, nn.functional.cross_entropy, nn.MSELoss(),
        embgrad.Scalar(nn.NLLLoss())],
)  # fmt: skip
def test_a_loss_of_pytorch_is_refused(loss: Any) -> None:
    message = (
        r"a loss of the framework's own, which needs a target beside the output: expected embgrad\.CrossEntropy\(labels\) for a "
        "cross-entropy, or a function of the model's output alone"
    )
    with pytest.raises(ObjectiveError, match=message):
        embgrad.gradients(Net(), IDS, loss)


def test_a_function_of_pytorch_that_is_no_loss_is_an_objective() -> None:
    class Scores(Net):
        def forward(self, x: Any) -> Any:
            return super().forward(x)[:, 0]

    assert embgrad.gradients(Scores(), IDS, torch.nn.functional.softplus).shape == (*IDS.shape, 4)
    by_hand = embgrad.gradients(
        Net(), IDS, lambda x: nn.CrossEntropyLoss(reduction="none")(x, torch.zeros(len(x)).long())
    )
    assert by_hand.shape == (*IDS.shape, 4)


def test_a_model_without_embeddings_is_refused() -> None:
    model = nn.Sequential(nn.Linear(IDS.shape[1], 4), nn.Linear(4, 3))
    message = (
        "before any lookup, and none of its modules, 'Sequential', 'Linear', is an embedding: expected a text model"
    )
    with pytest.raises(PointNotReachedError, match=message):
        embgrad.gradients(model, IDS, embgrad.Sum())
    with pytest.raises(PointNotReachedError, match=message):
        embgrad.points(model, IDS)


def test_a_module_without_a_forward_is_refused() -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.head = Net(), nn.Linear(3, 2)

    message = r"Wrapper defines no forward, so .*\. Give one of its children \(model, head\), or pass call=lambda"
    with pytest.raises(UnsupportedError, match=message):
        embgrad.gradients(Wrapper(), IDS, embgrad.Sum())
    result = embgrad.gradients(Wrapper(), IDS, embgrad.Sum(), call=lambda w, inputs: w.head(w.model(inputs)))
    assert result.provenance["path"] == "model.table#0"


def test_an_evaluation_mode_without_a_backward_pass_is_explained() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(9, 4)

        def forward(self, ids: Any) -> Any:
            rows = self.table(ids).exp()
            out = rows.sum(1)
            if not self.training:
                rows.mul_(0)  # exp's backward pass reads its result, which is reused as memory here
            return out

    ids = np.array([[1, 2], [3, 4]])
    with pytest.raises(
        UnsupportedError, match="Net runs in evaluation mode without gradients, and raised RuntimeError"
    ):
        embgrad.gradients(Net().eval(), ids, embgrad.Logit(1))
    model = Net().eval()
    g = embgrad.gradients(model, ids, embgrad.Logit(1), training=True)
    np.testing.assert_allclose(g.values[..., 1], np.exp(g.activations)[..., 1], rtol=1e-6)
    found = embgrad.attribute(
        model, ids, embgrad.Logit(1), "input_x_gradient", call=lambda model, ids: model.train()(ids)
    )
    np.testing.assert_allclose(found.values, g.values * g.activations, rtol=1e-6)
    assert not model.training

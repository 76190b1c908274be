"""The conformance suite's models in PyTorch: `torch.nn` modules with the suite's weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from embgrad.testing.faults import obtain
from embgrad.testing.harness import ARCHITECTURES
from tests.contract.conformance.state_torch import state


class _Model(nn.Module):
    """The layers that the suite's weights fill; each architecture is a way through them."""

    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        super().__init__()
        values = {name: torch.tensor(value) for name, value in weights.items()}
        self.table = nn.Embedding.from_pretrained(values["E"], freeze=False)
        if "E2" in values:
            self.second = nn.Embedding.from_pretrained(values["E2"], freeze=False)
        if "W1" in values:
            self.inner = _linear(values["W1"], values["b1"])
        self.outer = _linear(values["W"], values["b"])
        self.eval()


class _Mean(_Model):
    def forward(self, input_ids: Any) -> Any:
        return self.outer(self.table(input_ids).mean(1))


class _Hidden(_Model):
    def forward(self, input_ids: Any) -> Any:
        return self.outer(self.inner(self.table(input_ids).mean(1)).tanh())


class _Probabilities(_Model):
    def forward(self, input_ids: Any) -> Any:
        return self.outer(self.table(input_ids).mean(1)).softmax(-1)


class _Masked(_Model):
    def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
        rows = self.table(input_ids)
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        mask = mask.unsqueeze(-1).to(rows.dtype)
        return self.outer((mask * rows).sum(1) / mask.sum(1))


class _Positions(_Model):
    def forward(self, input_ids: Any) -> Any:
        return self.outer(self.inner(self.table(input_ids)).tanh())


class _Named(_Model):
    def forward(self, input_ids: Any) -> Any:
        hidden = self.inner(self.table(input_ids)).tanh()
        return {"last_hidden_state": hidden, "pooler_output": hidden.mean(1)}


class _Twice(_Model):
    def forward(self, input_ids: Any) -> Any:
        plain = self.table(input_ids).mean(1)
        bent = self.table(input_ids).tanh().mean(1)
        return self.outer(plain) + bent @ self.outer.weight.T


class _TwoTables(_Model):
    def forward(self, input_ids: Any) -> Any:
        plain = self.table(input_ids).mean(1)
        bent = self.second(input_ids).tanh().mean(1)
        return self.outer(plain) + bent @ self.outer.weight.T


class _Flat(_Model):
    def forward(self, input_ids: Any) -> Any:
        rows = self.table(input_ids.flatten())
        return self.outer(rows.reshape(*input_ids.shape, -1).mean(1))


class _TimeMajor(_Model):
    def forward(self, input_ids: Any) -> Any:
        return self.outer(self.table(input_ids.T).mean(0))


class _Scaled(_Model):
    def forward(self, input_ids: Any) -> Any:
        return self.outer((3 * self.table(input_ids)).mean(1))


class _Positional(_Model):
    def forward(self, input_ids: Any) -> Any:
        places = self.second(torch.arange(input_ids.shape[1], device=input_ids.device))
        return self.outer((self.table(input_ids) + places).tanh().mean(1))


class _Dropout(_Model):
    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        super().__init__(weights)
        self.dropout = nn.Dropout(0.5).eval()

    def forward(self, input_ids: Any) -> Any:
        return self.outer(self.dropout(self.inner(self.table(input_ids).mean(1)).tanh()))


class _Detached(_Model):
    def forward(self, input_ids: Any) -> Any:
        return self.outer(self.table(input_ids).mean(1).detach())


class _NoLookup(_Model):
    def forward(self, input_ids: Any) -> Any:
        mean = input_ids.to(self.outer.weight.dtype).mean(1, keepdim=True)
        return mean @ self.outer.weight.T[:1] + self.outer.bias


class _Embed(nn.Module):
    def __init__(self, words: nn.Embedding, places: nn.Embedding) -> None:
        super().__init__()
        self.words, self.places = words, places

    def forward(self, input_ids: Any) -> Any:
        return self.words(input_ids) + self.places(torch.arange(input_ids.shape[1], device=input_ids.device)[None])


class _Layer(nn.Module):
    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        super().__init__()
        self.inner = _linear(torch.tensor(weights["W1"]), torch.tensor(weights["b1"]))

    def forward(self, hidden: Any) -> Any:
        bent = self.inner(hidden).tanh()
        return hidden + bent, bent


class _Layers(nn.Module):
    count, calls = 3, (0, 1, 2)

    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        super().__init__()
        tables = (nn.Embedding.from_pretrained(torch.tensor(weights[name]), freeze=False) for name in ("E", "E2"))
        self.embed = _Embed(*tables)
        self.layers = nn.ModuleList([_Layer(weights) for _ in range(self.count)])
        self.outer = _linear(torch.tensor(weights["W"]), torch.tensor(weights["b"]))
        self.eval()

    @property
    def table(self) -> nn.Embedding:
        return self.embed.words

    def behind_the_first(self, hidden: Any) -> Any:
        return hidden

    def forward(self, input_ids: Any) -> Any:
        first, *others = self.calls
        hidden = self.behind_the_first(self.layers[first](self.embed(input_ids))[0])
        for number in others:
            hidden = self.layers[number](hidden)[0]
        return self.outer(hidden.mean(1))


class _Repeated(_Layers):
    count, calls = 1, (0, 0, 0)


class _Tied(_Model):
    def forward(self, input_ids: Any) -> Any:
        return self.inner(self.table(input_ids)).tanh() @ self.table.weight.T


class _Mixing(_Model):
    def forward(self, input_ids: Any) -> Any:
        means = self.table(input_ids).mean(1)
        return self.outer(means - means.mean(0))


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return 2 * grad


class _Broken(_Model):
    def forward(self, input_ids: Any) -> Any:
        return self.outer(_Doubled.apply(self.table(input_ids).mean(1)))


class Telling(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        obtain("forward")
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        obtain("backward")
        return grad


class _Interrupted(_Layers):
    def behind_the_first(self, hidden: Any) -> Any:
        return Telling.apply(hidden)


class _Raises(_Model):
    def forward(self, input_ids: Any) -> Any:
        self.table(input_ids)
        raise RuntimeError("the model broke")


_MODELS: Mapping[str, type[_Model] | type[_Layers]] = {
    name: globals()["_" + name.title().replace("_", "")] for name in ARCHITECTURES
}


#: Where each weight lies.
_PLACES: Mapping[str, tuple[str, str]] = {
    "E": ("table", "weight"),
    "E2": ("second", "weight"),
    "W": ("outer", "weight"),
    "b": ("outer", "bias"),
    "W1": ("inner", "weight"),
    "b1": ("inner", "bias"),
}


class Harness:
    backend = "torch"
    precisions = ("float32", "float64", "float16", "bfloat16")

    def build(
        self, architecture: str, weights: Mapping[str, np.ndarray], *, dtype: str | None = None, frozen: bool = False
    ) -> nn.Module:
        model = _MODELS[architecture](weights).requires_grad_(not frozen)
        return model if dtype is None else model.to(getattr(torch, dtype))

    def train(self, model: nn.Module) -> None:
        model.train()

    def table_gradient(self, model: nn.Module, ids: np.ndarray, labels: np.ndarray) -> np.ndarray:
        before = [parameter.grad for parameter in model.parameters()]
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(torch.tensor(ids)), torch.tensor(labels), reduction="sum")
        loss.backward()
        gradient = model.table.weight.grad.to(torch.float64).numpy()
        for parameter, grad in zip(model.parameters(), before, strict=True):
            parameter.grad = grad
        return gradient

    def state(self, model: nn.Module) -> Mapping[str, Any]:
        return state(model)

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def draw_states(self) -> bytes:
        return torch.get_rng_state().numpy().tobytes()

    def disturb(self, model: nn.Module) -> None:
        for number, parameter in enumerate(model.parameters()):
            if parameter.requires_grad and number % 2 == 0:
                parameter.grad = torch.full_like(parameter, 0.5)
        model.outer.register_forward_hook(lambda module, inputs, output: None)
        model.table.train()

    def parameter(self, model: nn.Module, weight: str) -> tuple[str, bool]:
        path, kind = _PLACES[weight]
        return f"{path}.{kind}", kind == "weight" and path in ("inner", "outer")

    def step(self, model: nn.Module, ids: np.ndarray, labels: np.ndarray, rate: float = 0.1) -> None:
        optimiser = torch.optim.SGD(model.parameters(), rate)
        loss = nn.functional.cross_entropy(model(torch.tensor(ids.copy())), torch.tensor(labels.copy()))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    def logit(self, index: int) -> Callable[[Any], Any]:
        return lambda logits: logits[:, index]

    def summed_logit(self, index: int) -> Callable[[Any], Any]:
        return lambda logits: logits[:, index].sum()


def _linear(weight: torch.Tensor, bias: torch.Tensor) -> nn.Linear:
    layer = nn.Linear(*weight.shape, dtype=weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(weight.T)
        layer.bias.copy_(bias)
    return layer

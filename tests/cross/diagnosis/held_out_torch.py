"""PyTorch: nets of several kinds, and faults that no rule of the diagnosis was written for, by the framework's own means."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch
import transformers
from torch import nn

from tests.cross.diagnosis.held_out_list import WEIGHT, Broken, Injection, Net

VOCAB: Final = 57


class Plain(nn.Module):
    """Embedding, two linear layers with tanh behind each, the sum over real tokens, a head."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, wide)
        self.a, self.b, self.head = nn.Linear(wide, wide), nn.Linear(wide, wide), nn.Linear(wide, 3)
        self.act1, self.act2 = nn.Tanh(), nn.Tanh()

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        x = self.act2(self.b(self.act1(self.a(self.embedding(input_ids)))))
        return self.head((x * attention_mask[..., None]).sum(1))


class Residual(nn.Module):
    """Feed-forward blocks behind norms, with residuals, and the mean over all positions."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, wide)
        self.places = nn.Embedding(16, wide)
        self.layers = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(wide), "up": nn.Linear(wide, 2 * wide), "act": nn.SiLU(),
                           "down": nn.Linear(2 * wide, wide)})
            for _ in range(3)
        )  # fmt: skip
        self.norm, self.head, self.residual = nn.LayerNorm(wide), nn.Linear(wide, 3), [1.0, 1.0, 1.0]

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        x = self.embedding(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        for kept, layer in zip(self.residual, self.layers, strict=True):
            x = kept * x + layer["down"](layer["act"](layer["up"](layer["norm"](x))))
        return self.head(self.norm(x).mean(1))


class Recurrent(nn.Module):
    def __init__(self, wide: int, kind: type) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, wide)
        self.recurrent = kind(wide, wide // 2, batch_first=True, bidirectional=True)
        self.dense, self.act, self.head = nn.Linear(wide, wide), nn.Tanh(), nn.Linear(wide, 3)

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        x = self.act(self.dense(self.recurrent(self.embedding(input_ids))[0])) * attention_mask[..., None]
        return self.head(x.sum(1) / attention_mask.sum(1, keepdim=True))


class Convolution(nn.Module):
    def __init__(self, wide: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, wide)
        self.first, self.second = (nn.Conv1d(wide, wide, 3, padding=1) for _ in range(2))
        self.act1, self.act2, self.norm = nn.ReLU(), nn.ReLU(), nn.BatchNorm1d(wide)
        self.dense, self.head = nn.Linear(wide, wide), nn.Linear(wide, 3)

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        x = self.norm(self.act1(self.first((self.embedding(input_ids) * attention_mask[..., None]).transpose(1, 2))))
        return self.head(torch.tanh(self.dense(self.act2(self.second(x)).amax(2))))


class Attention(nn.Module):
    """Attention written by hand, with its own scale, over two layers."""

    def __init__(self, wide: int, heads: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, wide)
        self.layers = nn.ModuleList(
            nn.ModuleDict({name: nn.Linear(wide, wide) for name in ("q_proj", "k_proj", "v_proj", "o_proj")}
                          | {"norm": nn.LayerNorm(wide)})
            for _ in range(2)
        )  # fmt: skip
        self.head, self.heads, self.scale = nn.Linear(wide, 3), heads, [math.sqrt(heads / wide)] * 2

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        x, real = self.embedding(input_ids), attention_mask.bool()
        for scale, layer in zip(self.scale, self.layers, strict=True):
            query, key, value = (
                layer[name](x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for name in ("q_proj", "k_proj", "v_proj")
            )
            scores = (query @ key.transpose(2, 3) * scale).masked_fill(~real[:, None, None], -1e9)
            x = layer["norm"](x + layer["o_proj"]((scores.softmax(-1) @ value).transpose(1, 2).flatten(2)))
        return self.head((x * attention_mask[..., None]).sum(1))


class Encoder(nn.Module):
    """PyTorch's own encoder, whose attention holds query, key and value in one weight."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, wide)
        layer = nn.TransformerEncoderLayer(wide, 4, 2 * wide, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(wide, 3)

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        x = self.encoder(self.embedding(input_ids), src_key_padding_mask=attention_mask == 0)
        return self.head(x[:, 0])


def _hugging(kind: str, wide: int) -> Any:
    common = {"vocab_size": VOCAB, "hidden_size": wide, "num_hidden_layers": 2, "num_attention_heads": 4, "num_labels": 3,
              "intermediate_size": wide + 16, "max_position_embeddings": 20, "pad_token_id": 0}  # fmt: skip
    if kind == "bert":
        return transformers.BertForSequenceClassification(transformers.BertConfig(**common))
    if kind == "electra":
        return transformers.ElectraForSequenceClassification(transformers.ElectraConfig(embedding_size=wide, **common))
    if kind == "llama":
        return transformers.LlamaForSequenceClassification(transformers.LlamaConfig(num_key_value_heads=2, **common))
    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_embd=wide, n_layer=2, n_head=4, n_positions=20, num_labels=3, pad_token_id=0
    )
    return transformers.GPT2ForSequenceClassification(config)


def build(kind: str, seed: int) -> Any:
    """A healthy net; every second one with biases of zero and gains of one, as the frameworks begin."""
    torch.manual_seed(seed)
    wide = (24, 32, 40)[seed % 3]
    own = {"plain": Plain, "residual": Residual, "convolution": Convolution, "attention": Attention, "encoder": Encoder}
    if kind in own:
        model = own[kind](wide)
    elif kind in ("lstm", "gru"):
        model = Recurrent(wide, getattr(nn, kind.upper()))
    else:
        model = _hugging(kind, wide)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn_like(parameter) * (0.4 if "emb" in name or "wte" in name else 0.25))
            elif seed % 2 == 0:
                parameter.add_(0.2 * torch.randn_like(parameter))
            elif name.endswith("bias") or "bias_" in name:
                parameter.zero_()
    return model.eval()


NETS: Final = tuple(
    Net("torch", kind, build)
    for kind in (
        "plain", "residual", "lstm", "gru", "convolution", "attention", "encoder", "bert", "electra", "gpt2", "llama",
    )
)  # fmt: skip


def dense(model: Any) -> list[tuple[str, Any]]:
    kinds = (nn.Linear, transformers.pytorch_utils.Conv1D)
    return [(path, one) for path, one in model.named_modules() if isinstance(one, kinds) and path not in HEADS]


HEADS: Final = ("head", "classifier", "score", "classifier.out_proj")


def norms(model: Any) -> list[tuple[str, Any]]:
    return [
        (path, one)
        for path, one in model.named_modules()
        if "Norm" in type(one).__name__ and "Batch" not in type(one).__name__
    ]


def activations(model: Any) -> list[tuple[str, Any, str]]:
    """Where a module for an activation hangs: its path, what holds it, and under which name."""
    found = []
    for path, one in model.named_modules():
        for name, child in one.named_children():
            if type(child).__name__ in (
                "Tanh",
                "ReLU",
                "SiLU",
                "SiLUActivation",
                "GELUActivation",
                "NewGELUActivation",
            ):
                found.append((f"{path}.{name}".strip("."), one, name))
    return found


def chosen(found: list[Any], random: np.random.Generator) -> Any:
    return found[int(random.integers(len(found)))] if found else None


def _set(parameter: Any, value: Any) -> None:
    with torch.no_grad():
        parameter.copy_(value)


def _biased(model: Any) -> list[tuple[str, Any]]:
    return [
        (path, one)
        for path, one in dense(model)
        if one.bias is not None and one.bias.any() and not path.endswith(("key", "k_proj"))
    ]


def _on_one(
    candidates: Callable[[Any], list[tuple[str, Any]]],
    change: Callable[[Any, np.random.Generator], None],
    *causes: str,
    named: bool = True,
) -> Injection:
    """Change one of the candidates, drawn at random; `named` says whether the text must name it."""

    def inject(model: Any, random: np.random.Generator) -> Broken | None:
        one = chosen(candidates(model), random)
        if one is None:
            return None
        change(one[1], random)
        return Broken(model, causes, one[0] if named else "")

    return inject


def _on_all(
    candidates: Callable[[Any], list[Any]], change: Callable[[Any], None], *causes: str, fewest: int = 1
) -> Injection:
    """Change all candidates, where there are enough of them."""

    def inject(model: Any, random: np.random.Generator) -> Broken | None:
        found = candidates(model)
        for one in found:
            change(one)
        return Broken(model, causes) if len(found) >= fewest else None

    return inject


def _on_pair(change: Callable[[Any, Any], None], *causes: str) -> Injection:
    """Change two layers of one shape, drawn at random."""

    def inject(model: Any, random: np.random.Generator) -> Broken | None:
        pair = chosen(_alike(model), random)
        if pair is None:
            return None
        (path, one), (_, other) = pair
        change(one, other)
        return Broken(model, (*causes, WEIGHT), path)

    return inject


def _weight(change: Callable[[Any, np.random.Generator], Any], *causes: str) -> Injection:
    return _on_one(dense, lambda one, random: _set(one.weight, change(one.weight, random)), *causes, WEIGHT)


def _output(
    candidates: Callable[[Any], list[tuple[str, Any]]], change: Callable[[Any], Any], *causes: str
) -> Injection:
    return _on_one(
        candidates,
        lambda one, _: one.register_forward_hook(lambda _m, _i, output: change(output)),
        *causes,
        named=False,
    )


def _behind(change: Callable[[Any], Any], *causes: str) -> Injection:
    return _output(dense, change, *causes)


def _first(candidates: Callable[[Any], list[Any]], number: int = 0) -> Callable[[Any], list[Any]]:
    return lambda model: candidates(model)[number : number + 1]


def _tables(model: Any) -> list[tuple[str, Any]]:
    return [(path, one) for path, one in model.named_modules() if isinstance(one, nn.Embedding)]


def _heads(model: Any) -> list[tuple[str, Any]]:
    return [(path, one) for path, one in model.named_modules() if path in HEADS and isinstance(one, nn.Linear)]


def _unbiased(model: Any) -> list[tuple[str, Any]]:
    return [
        (path, one)
        for path, one in dense(model)
        if one.bias is not None and not one.bias.any() and not path.endswith(("key", "k_proj"))
    ]


def _biased_linear(model: Any) -> list[tuple[str, Any]]:
    return [(path, one) for path, one in _biased(model) if isinstance(one, nn.Linear)]


def _square(model: Any) -> list[tuple[str, Any]]:
    return [(path, one) for path, one in dense(model) if one.weight.shape[0] == one.weight.shape[1]]


def _zero_bias(one: Any, _: Any) -> None:
    one.bias.data.zero_()


def _remove_bias(one: Any, _: Any) -> None:
    one.bias = None


def _set_epsilon(one: Any, value: float) -> None:
    setattr(one, "variance_epsilon" if hasattr(one, "variance_epsilon") else "eps", value)


def two_biases_zeroed(model: Any, random: np.random.Generator) -> Broken | None:
    found = _biased(model)[:2]
    for _, one in found:
        one.bias.data.zero_()
    return Broken(model, ("missing-bias", WEIGHT), found[0][0]) if len(found) > 1 else None


def _swap(one: Any, other: Any) -> None:
    one.weight.data, other.weight.data = other.weight.data, one.weight.data


def _swap_with_biases(one: Any, other: Any) -> None:
    _swap(one, other)
    if one.bias is not None:
        one.bias.data, other.bias.data = other.bias.data, one.bias.data


def _pruned(weight: Any, _: Any) -> Any:
    return torch.where(weight.abs() < weight.abs().median(), torch.zeros_like(weight), weight)


def _update_rank(one: tuple[str, Any]) -> None:
    rows, columns = one[1].weight.shape
    one[1].weight.data += 0.05 * torch.randn(rows, 2) @ torch.randn(2, columns)


def _decay(one: tuple[str, Any]) -> None:
    one[1].weight.data *= 0.97


def _change_rows(one: Any, _: Any) -> None:
    one.weight.data[5:9] += 0.3


def _residual(factor: float) -> Injection:
    def inject(model: Any, random: np.random.Generator) -> Broken | None:
        if not hasattr(model, "residual"):
            return None
        model.residual[int(random.integers(3))] = factor
        return Broken(model, ())

    return inject


def _clip(output: Any) -> Any:
    if output.requires_grad:
        output.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    return output


def _soften(one: tuple[Any, Any, str]) -> None:
    setattr(one[1], one[2], nn.Softplus())


def _alike(model: Any) -> list[tuple[Any, Any]]:
    found = dense(model) + [(p, m) for p, m in model.named_modules() if isinstance(m, nn.Conv1d)]
    return [(x, y) for i, y in enumerate(found) for x in found[:i] if x[1].weight.shape == y[1].weight.shape]


def three_rotated(model: Any, random: np.random.Generator) -> Broken | None:
    found = dense(model)
    alike = [m for _, m in found if m.weight.shape == found[0][1].weight.shape][:3]
    if len(alike) < 3:
        return None
    values = [one.weight.data.clone() for one in alike]
    for one, value in zip(alike, values[1:] + values[:1], strict=True):
        _set(one.weight, value)
    return Broken(model, (WEIGHT,))


def directions_swapped(model: Any, random: np.random.Generator) -> Broken | None:
    if not hasattr(model, "recurrent"):
        return None
    one, other = model.recurrent.weight_ih_l0, model.recurrent.weight_ih_l0_reverse
    one.data, other.data = other.data.clone(), one.data.clone()
    return Broken(model, ("swapped-weights", WEIGHT), "recurrent")


def gates_permuted(model: Any, random: np.random.Generator) -> Broken | None:
    if not hasattr(model, "recurrent"):
        return None
    for parameter in model.recurrent.parameters():
        parameter.data = parameter.data.roll(model.recurrent.hidden_size, 0)
    return Broken(model, (WEIGHT,), "recurrent")


def kernel_flipped(model: Any, random: np.random.Generator) -> Broken | None:
    if not hasattr(model, "second"):
        return None
    _set(model.second.weight, model.second.weight.flip(2))
    return Broken(model, (WEIGHT,), "second")


def _each(change: Callable[[Any], Any]) -> Callable[[Any, np.random.Generator], Broken | None]:
    def inject(model: Any, random: np.random.Generator) -> Broken | None:
        for parameter in model.parameters():
            _set(parameter, change(parameter))
        return Broken(model, ("half-weights", WEIGHT, "different-table"))

    return inject


def _quantised(parameter: Any) -> Any:
    step = parameter.abs().max() / 127
    return (parameter / step).round() * step if step else parameter


def one_activation(function: Callable[[], Any], *kinds: str) -> Callable[[Any, np.random.Generator], Broken | None]:
    def inject(model: Any, random: np.random.Generator) -> Broken | None:
        found = [one for one in activations(model) if type(getattr(one[1], one[2])).__name__ in kinds]
        one = chosen(found, random)
        if one:
            setattr(one[1], one[2], function())
        # Where all are one, its layer need not be said.
        return Broken(model, ("activation", "gelu"), one[0] if len(found) > 1 else "") if one else None

    return inject


def scale_of_attention(
    scale: Callable[[int, int], float], layers: slice
) -> Callable[[Any, np.random.Generator], Broken | None]:
    def inject(model: Any, random: np.random.Generator) -> Broken | None:
        found = [one for _, one in model.named_modules() if hasattr(one, "attention_head_size")]
        if isinstance(model, Attention):
            wide = model.head.in_features
            model.scale[layers] = [scale(wide // model.heads, wide)] * len(model.scale[layers])
        elif found:
            for one in found[layers]:
                wide, own = one.all_head_size, one.attention_head_size
                factor = scale(own, wide) * math.sqrt(own)
                one.query.register_forward_hook(lambda _m, _i, output, factor=factor: output * factor)
        else:
            return None
        return Broken(model, ("attention-scale",))

    return inject


def layer_skipped(model: Any, random: np.random.Generator) -> Broken | None:
    lists = [one for _, one in model.named_modules() if isinstance(one, nn.ModuleList) and len(one) > 1]
    if not lists or isinstance(model, (Residual, Attention)):
        return None
    del lists[0][1]
    return Broken(model, ())


def layer_twice(model: Any, random: np.random.Generator) -> Broken | None:
    if not isinstance(model, Encoder):
        return None
    model.encoder.layers.append(model.encoder.layers[1])
    model.encoder.num_layers += 1
    return Broken(model, ())


def wrong_mask(model: Any, random: np.random.Generator) -> Broken | None:
    inner = model.forward

    def forward(input_ids: Any, attention_mask: Any, **options: Any) -> Any:
        return inner(input_ids, attention_mask=attention_mask.roll(1, 0), **options)

    model.forward = forward
    return Broken(model, ())


def causal_mask(model: Any, random: np.random.Generator) -> Broken | None:
    if not isinstance(model, Encoder):
        return None
    inner = model.encoder.forward

    def forward(x: Any, **options: Any) -> Any:
        ahead = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return inner(x, mask=ahead, **options)

    model.encoder.forward = forward
    return Broken(model, ())


INJECTIONS: Final[Mapping[str, Injection]] = {
    "one bias zeroed": _on_one(_biased, _zero_bias, "missing-bias", WEIGHT),
    "one bias that is zero on the other side": _on_one(
        _unbiased, lambda one, _: _set(one.bias, torch.randn_like(one.bias)), "missing-bias", WEIGHT
    ),
    "every bias zeroed": _on_all(
        lambda model: [p for name, p in model.named_parameters() if name.endswith("bias") and p.any()],
        lambda parameter: parameter.data.zero_(),
        "missing-bias",
        WEIGHT,
    ),
    "one layer without a bias": _on_one(_biased_linear, _remove_bias, "missing-bias", WEIGHT),
    "every linear layer without a bias": _on_all(
        _biased_linear, lambda one: _remove_bias(one[1], None), "missing-bias", WEIGHT, fewest=2
    ),
    "two biases zeroed": two_biases_zeroed,
    "one weight times 1.5": _weight(lambda weight, _: weight * 1.5),
    "one weight negated": _weight(lambda weight, _: -weight),
    "one weight zeroed": _weight(lambda weight, _: weight * 0),
    "one layer drawn anew": _weight(lambda weight, random: torch.tensor(random.normal(0, 0.25, tuple(weight.shape)))),
    "one layer pruned": _weight(_pruned),
    "a low-rank update in all layers": _on_all(dense, _update_rank, WEIGHT),
    "all layers decayed by 3 %": _on_all(dense, _decay, WEIGHT),
    "another head": _on_one(
        _first(_heads), lambda one, _: _set(one.weight, torch.randn_like(one.weight) * 0.3), WEIGHT
    ),
    "two layers swapped": _on_pair(_swap_with_biases, "swapped-weights"),
    "two layers' weights swapped, not their biases": _on_pair(_swap, "swapped-weights"),
    "one layer with another's weights": _on_pair(lambda one, other: _set(one.weight, other.weight)),
    "three layers' weights rotated": three_rotated,
    "the two directions' weights swapped": directions_swapped,
    "the gates in another order": gates_permuted,
    "a kernel flipped": kernel_flipped,
    "one weight transposed": _on_one(
        _square, lambda one, _: _set(one.weight, one.weight.T.clone()), "transposed-weight", WEIGHT
    ),
    "one weight's rows permuted": _weight(lambda weight, random: weight[torch.tensor(random.permutation(len(weight)))]),
    "weights rounded to float16": _each(lambda parameter: parameter.half().float()),
    "weights rounded to bfloat16": _each(lambda parameter: parameter.bfloat16().float()),
    "weights quantised to 8 bits": _each(_quantised),
    "one weight rounded to float16": _weight(lambda weight, _: weight.half().float(), "half-weights"),
    "one epsilon 1e-2": _on_one(norms, lambda one, _: _set_epsilon(one, 1e-2), "layer-norm-epsilon"),
    "one epsilon 0.3": _on_one(norms, lambda one, _: _set_epsilon(one, 0.3), "layer-norm-epsilon"),
    "all epsilons 3e-3": _on_all(norms, lambda one: _set_epsilon(one[1], 3e-3), "layer-norm-epsilon", fewest=2),
    "one norm's gain not loaded": _on_one(
        lambda model: [(path, one) for path, one in norms(model) if (one.weight != 1).any()],
        lambda one, _: one.weight.data.fill_(1),
        WEIGHT,
    ),
    "one norm's bias not loaded": _on_one(
        lambda model: [
            (path, one) for path, one in norms(model) if getattr(one, "bias", None) is not None and one.bias.any()
        ],
        _zero_bias,
        "missing-bias",
        WEIGHT,
    ),
    "one norm skipped": _on_one(
        norms, lambda one, _: one.register_forward_hook(lambda _m, given, _o: given[0]), named=False
    ),
    "one ReLU for GELU or SiLU": one_activation(
        nn.ReLU, "SiLU", "SiLUActivation", "GELUActivation", "NewGELUActivation"
    ),
    "one tanh GELU for another": one_activation(lambda: nn.GELU(approximate="tanh"), "SiLU", "GELUActivation", "ReLU"),
    "one tanh left out": one_activation(nn.Identity, "Tanh"),
    "one sigmoid for tanh": one_activation(nn.Sigmoid, "Tanh"),
    "softplus for every activation": _on_all(activations, _soften, "activation"),
    "attention without its scale": scale_of_attention(lambda own, wide: 1.0, slice(None)),
    "attention scaled by the whole width": scale_of_attention(lambda own, wide: wide**-0.5, slice(None)),
    "attention scaled by 1/d": scale_of_attention(lambda own, wide: 1 / own, slice(None)),
    "one layer's attention without its scale": scale_of_attention(lambda own, wide: 1.0, slice(1, 2)),
    "one residual missing": _residual(0.0),
    "one residual doubled": _residual(2.0),
    "dropout in one layer": _behind(lambda x: nn.functional.dropout(x, 0.1, training=True), "dropout"),
    "one layer's output times 1.1": _behind(lambda x: x * 1.1),
    "one layer's output clipped": _behind(lambda x: x.clamp(-0.5, 0.5)),
    "one layer's output half detached": _behind(lambda x: 0.5 * x + 0.5 * x.detach(), "constant-factor"),
    "one layer's output in bfloat16": _behind(lambda x: x.bfloat16().float(), "half-precision"),
    "one layer's output rolled": _behind(lambda x: x.roll(1, -1)),
    "a gradient clipped inside": _behind(_clip),
    "a temperature of 2": _output(_first(_heads), lambda output: output / 2),
    "a softmax too many": _output(_first(_heads), lambda output: output.log_softmax(-1) * 1.3),
    "one layer skipped": layer_skipped,
    "one layer called twice": layer_twice,
    "a few rows of the table": _on_one(_first(_tables), _change_rows, "different-table", WEIGHT, named=False),
    "the table doubled": _on_one(
        _first(_tables), lambda one, _: _set(one.weight, one.weight * 2), "different-table", WEIGHT, named=False
    ),
    "the lookup doubled": _output(_first(_tables), lambda output: output * 2, "different-table"),
    "positions reversed": _on_one(
        _first(_tables, 1),
        lambda one, _: one.register_forward_pre_hook(lambda _m, given: (given[0].flip(-1),)),
        named=False,
    ),
    "the second table zeroed": _on_one(_first(_tables, 1), lambda one, _: one.weight.data.zero_(), WEIGHT),
    "another example's mask": wrong_mask,
    "a causal mask": causal_mask,
    "the lookup's dimensions weighted": _output(
        _first(_tables), lambda output: output * torch.linspace(0.5, 1.5, output.shape[-1]), "different-table"
    ),
}

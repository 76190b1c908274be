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
    """A recurrent layer in both directions, and the mean over real tokens."""

    def __init__(self, wide: int, kind: type) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, wide)
        self.recurrent = kind(wide, wide // 2, batch_first=True, bidirectional=True)
        self.dense, self.act, self.head = nn.Linear(wide, wide), nn.Tanh(), nn.Linear(wide, 3)

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        x = self.act(self.dense(self.recurrent(self.embedding(input_ids))[0])) * attention_mask[..., None]
        return self.head(x.sum(1) / attention_mask.sum(1, keepdim=True))


class Convolution(nn.Module):
    """Two convolutions and the largest over the positions."""

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
    """The linear layers by path, those of GPT-2 too, less the head."""
    kinds = (nn.Linear, transformers.pytorch_utils.Conv1D)
    return [(path, one) for path, one in model.named_modules() if isinstance(one, kinds) and path not in HEADS]


HEADS: Final = ("head", "classifier", "score", "classifier.out_proj")


def norms(model: Any) -> list[tuple[str, Any]]:
    """The layer norms and root-mean-square norms by path."""
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
    """One of them, or none where there are none."""
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


def bias_zeroed(model: Any, random: np.random.Generator) -> Broken | None:
    one = chosen(_biased(model), random)
    if one:
        one[1].bias.data.zero_()
    return Broken(model, ("missing-bias", WEIGHT), one[0]) if one else None


def bias_set(model: Any, random: np.random.Generator) -> Broken | None:
    """A bias that the other side has as zeros, which stands for the healthy net without one."""
    one = chosen(
        [
            (p, m)
            for p, m in dense(model)
            if m.bias is not None and not m.bias.any() and not p.endswith(("key", "k_proj"))
        ],
        random,
    )
    if one:
        _set(one[1].bias, torch.randn_like(one[1].bias))
    return Broken(model, ("missing-bias", WEIGHT), one[0]) if one else None


def biases_zeroed(model: Any, random: np.random.Generator) -> Broken | None:
    found = [p for name, p in model.named_parameters() if name.endswith("bias") and p.any()]
    for parameter in found:
        parameter.data.zero_()
    return Broken(model, ("missing-bias", WEIGHT)) if found else None


def bias_missing(model: Any, random: np.random.Generator) -> Broken | None:
    one = chosen([(p, m) for p, m in _biased(model) if isinstance(m, nn.Linear)], random)
    if one:
        one[1].bias = None
    return Broken(model, ("missing-bias", WEIGHT), one[0]) if one else None


def biases_missing(model: Any, random: np.random.Generator) -> Broken | None:
    found = [one for _, one in _biased(model) if isinstance(one, nn.Linear)]
    for one in found:
        one.bias = None
    return Broken(model, ("missing-bias", WEIGHT)) if len(found) > 1 else None


def two_biases_zeroed(model: Any, random: np.random.Generator) -> Broken | None:
    found = _biased(model)[:2]
    for _, one in found:
        one.bias.data.zero_()
    return Broken(model, ("missing-bias", WEIGHT), found[0][0]) if len(found) > 1 else None


def weight_scaled(model: Any, random: np.random.Generator) -> Broken | None:
    path, one = chosen(dense(model), random)
    one.weight.data *= 1.5
    return Broken(model, (WEIGHT,), path)


def weight_negated(model: Any, random: np.random.Generator) -> Broken | None:
    path, one = chosen(dense(model), random)
    one.weight.data.neg_()
    return Broken(model, (WEIGHT,), path)


def weight_zeroed(model: Any, random: np.random.Generator) -> Broken | None:
    path, one = chosen(dense(model), random)
    one.weight.data.zero_()
    return Broken(model, (WEIGHT,), path)


def reinitialised(model: Any, random: np.random.Generator) -> Broken | None:
    path, one = chosen(dense(model), random)
    _set(one.weight, torch.tensor(random.normal(0, 0.25, tuple(one.weight.shape))))
    return Broken(model, (WEIGHT,), path)


def pruned(model: Any, random: np.random.Generator) -> Broken | None:
    path, one = chosen(dense(model), random)
    one.weight.data[one.weight.abs() < one.weight.abs().median()] = 0
    return Broken(model, (WEIGHT,), path)


def low_rank(model: Any, random: np.random.Generator) -> Broken | None:
    for _, one in dense(model):
        rows, columns = one.weight.shape
        one.weight.data += 0.05 * torch.randn(rows, 2) @ torch.randn(2, columns)
    return Broken(model, (WEIGHT,))


def decayed(model: Any, random: np.random.Generator) -> Broken | None:
    for _, one in dense(model):
        one.weight.data *= 0.97
    return Broken(model, (WEIGHT,))


def head_other(model: Any, random: np.random.Generator) -> Broken | None:
    path, one = next((p, m) for p, m in model.named_modules() if p in HEADS and isinstance(m, nn.Linear))
    _set(one.weight, torch.randn_like(one.weight) * 0.3)
    return Broken(model, (WEIGHT,), path)


def _alike(model: Any) -> list[tuple[Any, Any]]:
    found = dense(model) + [(p, m) for p, m in model.named_modules() if isinstance(m, nn.Conv1d)]
    return [(x, y) for i, y in enumerate(found) for x in found[:i] if x[1].weight.shape == y[1].weight.shape]


def two_swapped(model: Any, random: np.random.Generator) -> Broken | None:
    pair = chosen(_alike(model), random)
    if pair is None:
        return None
    (path, one), (_, other) = pair
    one.weight.data, other.weight.data = other.weight.data, one.weight.data
    if one.bias is not None:
        one.bias.data, other.bias.data = other.bias.data, one.bias.data
    return Broken(model, ("swapped-weights", WEIGHT), path)


def weights_swapped(model: Any, random: np.random.Generator) -> Broken | None:
    pair = chosen(_alike(model), random)
    if pair is None:
        return None
    (path, one), (_, other) = pair
    one.weight.data, other.weight.data = other.weight.data, one.weight.data
    return Broken(model, ("swapped-weights", WEIGHT), path)


def one_copied(model: Any, random: np.random.Generator) -> Broken | None:
    """One layer holds another's weights, and that one still its own."""
    pair = chosen(_alike(model), random)
    if pair is None:
        return None
    (path, one), (_, other) = pair
    _set(one.weight, other.weight)
    return Broken(model, (WEIGHT,), path)


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


def transposed(model: Any, random: np.random.Generator) -> Broken | None:
    one = chosen([(p, m) for p, m in dense(model) if m.weight.shape[0] == m.weight.shape[1]], random)
    if one:
        _set(one[1].weight, one[1].weight.T.clone())
    return Broken(model, ("transposed-weight", WEIGHT), one[0]) if one else None


def rows_permuted(model: Any, random: np.random.Generator) -> Broken | None:
    path, one = chosen(dense(model), random)
    _set(one.weight, one.weight[torch.tensor(random.permutation(len(one.weight)))])
    return Broken(model, (WEIGHT,), path)


def _each(change: Callable[[Any], Any]) -> Callable[[Any, np.random.Generator], Broken | None]:
    def inject(model: Any, random: np.random.Generator) -> Broken | None:
        for parameter in model.parameters():
            _set(parameter, change(parameter))
        return Broken(model, ("half-weights", WEIGHT, "different-table"))

    return inject


def _quantised(parameter: Any) -> Any:
    step = parameter.abs().max() / 127
    return (parameter / step).round() * step if step else parameter


def float16_in_one(model: Any, random: np.random.Generator) -> Broken | None:
    path, one = chosen(dense(model), random)
    _set(one.weight, one.weight.half().float())
    return Broken(model, ("half-weights", WEIGHT), path)


def one_epsilon(value: float) -> Callable[[Any, np.random.Generator], Broken | None]:
    def inject(model: Any, random: np.random.Generator) -> Broken | None:
        one = chosen(norms(model), random)
        if one is None:
            return None
        setattr(one[1], "variance_epsilon" if hasattr(one[1], "variance_epsilon") else "eps", value)
        return Broken(model, ("layer-norm-epsilon",), one[0])

    return inject


def all_epsilons(model: Any, random: np.random.Generator) -> Broken | None:
    found = norms(model)
    for _, one in found:
        setattr(one, "variance_epsilon" if hasattr(one, "variance_epsilon") else "eps", 3e-3)
    return Broken(model, ("layer-norm-epsilon",)) if len(found) > 1 else None


def norm_gain_missing(model: Any, random: np.random.Generator) -> Broken | None:
    one = chosen([(p, m) for p, m in norms(model) if (m.weight != 1).any()], random)
    if one:
        one[1].weight.data.fill_(1)
    return Broken(model, (WEIGHT,), one[0]) if one else None


def norm_bias_missing(model: Any, random: np.random.Generator) -> Broken | None:
    one = chosen([(p, m) for p, m in norms(model) if getattr(m, "bias", None) is not None and m.bias.any()], random)
    if one:
        one[1].bias.data.zero_()
    return Broken(model, ("missing-bias", WEIGHT), one[0]) if one else None


def norm_skipped(model: Any, random: np.random.Generator) -> Broken | None:
    one = chosen(norms(model), random)
    if one:
        one[1].register_forward_hook(lambda _m, given, _o: given[0])
    return Broken(model, ()) if one else None


def one_activation(function: Callable[[], Any], *kinds: str) -> Callable[[Any, np.random.Generator], Broken | None]:
    def inject(model: Any, random: np.random.Generator) -> Broken | None:
        found = [one for one in activations(model) if type(getattr(one[1], one[2])).__name__ in kinds]
        one = chosen(found, random)
        if one:
            setattr(one[1], one[2], function())
        # Where all are one, its layer need not be said.
        return Broken(model, ("activation", "gelu"), one[0] if len(found) > 1 else "") if one else None

    return inject


def all_activations(model: Any, random: np.random.Generator) -> Broken | None:
    found = activations(model)
    for _, parent, name in found:
        setattr(parent, name, nn.Softplus())
    return Broken(model, ("activation",)) if found else None


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


def residual_missing(model: Any, random: np.random.Generator) -> Broken | None:
    if not hasattr(model, "residual"):
        return None
    model.residual[int(random.integers(3))] = 0.0
    return Broken(model, ())


def residual_doubled(model: Any, random: np.random.Generator) -> Broken | None:
    if not hasattr(model, "residual"):
        return None
    model.residual[int(random.integers(3))] = 2.0
    return Broken(model, ())


def _behind(change: Callable[[Any], Any], *causes: str) -> Callable[[Any, np.random.Generator], Broken | None]:
    def inject(model: Any, random: np.random.Generator) -> Broken | None:
        _, one = chosen(dense(model), random)
        one.register_forward_hook(lambda _m, _i, output: change(output))
        return Broken(model, causes)

    return inject


def clipped_backward(model: Any, random: np.random.Generator) -> Broken | None:
    _, one = chosen(dense(model), random)

    def clip(_module: Any, _given: Any, output: Any) -> Any:
        if output.requires_grad:
            output.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
        return output

    one.register_forward_hook(clip)
    return Broken(model, ())


def temperature(model: Any, random: np.random.Generator) -> Broken | None:
    head = next(m for p, m in model.named_modules() if p in HEADS and isinstance(m, nn.Linear))
    head.register_forward_hook(lambda _m, _i, output: output / 2)
    return Broken(model, ())


def softmax_twice(model: Any, random: np.random.Generator) -> Broken | None:
    head = next(m for p, m in model.named_modules() if p in HEADS and isinstance(m, nn.Linear))
    head.register_forward_hook(lambda _m, _i, output: output.log_softmax(-1) * 1.3)
    return Broken(model, ())


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


def table_row(model: Any, random: np.random.Generator) -> Broken | None:
    table = next(m for _, m in model.named_modules() if isinstance(m, nn.Embedding))
    table.weight.data[5:9] += 0.3
    return Broken(model, ("different-table", WEIGHT))


def table_doubled(model: Any, random: np.random.Generator) -> Broken | None:
    table = next(m for _, m in model.named_modules() if isinstance(m, nn.Embedding))
    table.weight.data *= 2
    return Broken(model, ("different-table", WEIGHT))


def lookup_doubled(model: Any, random: np.random.Generator) -> Broken | None:
    table = next(m for _, m in model.named_modules() if isinstance(m, nn.Embedding))
    table.register_forward_hook(lambda _m, _i, output: output * 2)
    return Broken(model, ("different-table",))


def places_off(model: Any, random: np.random.Generator) -> Broken | None:
    found = [m for _, m in model.named_modules() if isinstance(m, nn.Embedding)][1:]
    if not found:
        return None
    found[0].register_forward_pre_hook(lambda _m, given: (given[0].flip(-1),))
    return Broken(model, ())


def places_zeroed(model: Any, random: np.random.Generator) -> Broken | None:
    found = [(p, m) for p, m in model.named_modules() if isinstance(m, nn.Embedding)][1:]
    if not found:
        return None
    found[0][1].weight.data.zero_()
    return Broken(model, (WEIGHT,), found[0][0])


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


def lookup_weighted(model: Any, random: np.random.Generator) -> Broken | None:
    table = next(m for _, m in model.named_modules() if isinstance(m, nn.Embedding))
    table.register_forward_hook(lambda _m, _i, output: output * torch.linspace(0.5, 1.5, output.shape[-1]))
    return Broken(model, ("different-table",))


INJECTIONS: Final[Mapping[str, Injection]] = {
    "one bias zeroed": bias_zeroed,
    "one bias that is zero on the other side": bias_set,
    "every bias zeroed": biases_zeroed,
    "one layer without a bias": bias_missing,
    "every linear layer without a bias": biases_missing,
    "two biases zeroed": two_biases_zeroed,
    "one weight times 1.5": weight_scaled,
    "one weight negated": weight_negated,
    "one weight zeroed": weight_zeroed,
    "one layer drawn anew": reinitialised,
    "one layer pruned": pruned,
    "a low-rank update in all layers": low_rank,
    "all layers decayed by 3 %": decayed,
    "another head": head_other,
    "two layers swapped": two_swapped,
    "two layers' weights swapped, not their biases": weights_swapped,
    "one layer with another's weights": one_copied,
    "three layers' weights rotated": three_rotated,
    "the two directions' weights swapped": directions_swapped,
    "the gates in another order": gates_permuted,
    "a kernel flipped": kernel_flipped,
    "one weight transposed": transposed,
    "one weight's rows permuted": rows_permuted,
    "weights rounded to float16": _each(lambda parameter: parameter.half().float()),
    "weights rounded to bfloat16": _each(lambda parameter: parameter.bfloat16().float()),
    "weights quantised to 8 bits": _each(_quantised),
    "one weight rounded to float16": float16_in_one,
    "one epsilon 1e-2": one_epsilon(1e-2),
    "one epsilon 0.3": one_epsilon(0.3),
    "all epsilons 3e-3": all_epsilons,
    "one norm's gain not loaded": norm_gain_missing,
    "one norm's bias not loaded": norm_bias_missing,
    "one norm skipped": norm_skipped,
    "one ReLU for GELU or SiLU": one_activation(
        nn.ReLU, "SiLU", "SiLUActivation", "GELUActivation", "NewGELUActivation"
    ),
    "one tanh GELU for another": one_activation(lambda: nn.GELU(approximate="tanh"), "SiLU", "GELUActivation", "ReLU"),
    "one tanh left out": one_activation(nn.Identity, "Tanh"),
    "one sigmoid for tanh": one_activation(nn.Sigmoid, "Tanh"),
    "softplus for every activation": all_activations,
    "attention without its scale": scale_of_attention(lambda own, wide: 1.0, slice(None)),
    "attention scaled by the whole width": scale_of_attention(lambda own, wide: wide**-0.5, slice(None)),
    "attention scaled by 1/d": scale_of_attention(lambda own, wide: 1 / own, slice(None)),
    "one layer's attention without its scale": scale_of_attention(lambda own, wide: 1.0, slice(1, 2)),
    "one residual missing": residual_missing,
    "one residual doubled": residual_doubled,
    "dropout in one layer": _behind(lambda x: nn.functional.dropout(x, 0.1, training=True), "dropout"),
    "one layer's output times 1.1": _behind(lambda x: x * 1.1),
    "one layer's output clipped": _behind(lambda x: x.clamp(-0.5, 0.5)),
    "one layer's output half detached": _behind(lambda x: 0.5 * x + 0.5 * x.detach(), "constant-factor"),
    "one layer's output in bfloat16": _behind(lambda x: x.bfloat16().float(), "half-precision"),
    "one layer's output rolled": _behind(lambda x: x.roll(1, -1)),
    "a gradient clipped inside": clipped_backward,
    "a temperature of 2": temperature,
    "a softmax too many": softmax_twice,
    "one layer skipped": layer_skipped,
    "one layer called twice": layer_twice,
    "a few rows of the table": table_row,
    "the table doubled": table_doubled,
    "the lookup doubled": lookup_doubled,
    "positions reversed": places_off,
    "the second table zeroed": places_zeroed,
    "another example's mask": wrong_mask,
    "a causal mask": causal_mask,
    "the lookup's dimensions weighted": lookup_weighted,
}  # fmt: skip

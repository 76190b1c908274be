"""Ports that are ONNX graphs: MiniLM exported from a module of one's own, and GPT-Neo written step by step with `onnx.helper`."""

from __future__ import annotations

import shutil
import tempfile
import warnings
import weakref
from pathlib import Path
from typing import Any

import embgrad_onnx
import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from torch.nn import functional as F

from tests.cross.ports.by_hand import KINDS, PARTS, TABLES, State, bare
from tests.cross.ports.by_hand_torch import linear, named_linear, norm
from tests.cross.ports.own_settings import Settings

# MiniLM, exported with its pooling


class ExportedLayer(nn.Module):
    def __init__(self, state: State, name: str, heads: int, s: Any) -> None:
        super().__init__()
        self.s, self.heads = s, heads
        parts = [f"{name}.attention.self.{part}" for part in s.order]
        self.wqkv = linear(*(np.concatenate([state[f"{part}.{kind}"] for part in parts]) for kind in KINDS))
        dense = ("attention.output", "intermediate", "output")
        self.out, self.fc1, self.fc2 = (named_linear(state, f"{name}.{part}.dense") for part in dense)
        self.ln1, self.ln2 = (norm(state, f"{name}.{part}.LayerNorm", 1e-12) for part in ("attention.output", "output"))

    def forward(self, x: Any, mask: Any) -> Any:
        s, fused = self.s, self.wqkv(x)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in fused.chunk(3, -1))
        if s.kernel == "fused":
            y = F.scaled_dot_product_attention(q, k, v, mask)
        else:
            y = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + mask).softmax(-1) @ v
        x = self.ln1(x + self.out(y.transpose(1, 2).flatten(2)))
        h = self.fc1(x)
        h = h * 0.5 * (1 + torch.erf(h * 2**-0.5)) if s.gelu == "erf" else F.gelu(h, approximate=s.gelu)
        return self.ln2(x + self.fc2(h))


class Exported(nn.Module):
    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        self.s, heads = settings.at(), config.num_attention_heads
        tables = (torch.tensor(state[f"embeddings.{name}_embeddings.weight"]) for name in TABLES)
        self.word, self.position, self.kind = (nn.Embedding.from_pretrained(table) for table in tables)
        self.norm = norm(state, "embeddings.LayerNorm", 1e-12)
        numbers = range(config.num_hidden_layers)
        self.layers = nn.ModuleList(ExportedLayer(state, f"encoder.layer.{n}", heads, settings.at(n)) for n in numbers)

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        s, real = self.s, attention_mask.float()
        places = torch.arange(input_ids.shape[1])
        x = self.word(input_ids) + self.position(places) + self.kind(torch.full_like(input_ids, s.type))
        x = self.norm(x) if s.embedding_norm else x
        mask = (1 - real)[:, None, None] * s.least
        for layer in self.layers:
            x = layer(x, mask)
        share = real[..., None] if s.pooled == "mean" else torch.ones_like(real)[..., None]
        return F.normalize((x * share).sum(1) / share.sum(1), dim=-1)


def exported_minilm(state: State, config: Any, settings: Settings) -> Any:
    """Return the graph in a file that PyTorch has written, or a session of it."""
    s, model = settings.at(), Exported(bare(state), config, settings).eval()
    folder = tempfile.mkdtemp()
    path, names = Path(folder) / "model.onnx", ["input_ids", "attention_mask"]
    example = (torch.tensor([[101, 2003, 102], [101, 102, 0]]), torch.tensor([[1, 1, 1], [1, 1, 0]]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            *(model, example, str(path)),
            input_names=names,
            output_names=["sentence_embedding"],
            dynamic_axes={name: {0: "example", 1: "position"} for name in names},
            opset_version=s.opset,
            do_constant_folding=True,
            dynamo=False,
        )
    if s.form == "session":
        graph: Any = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    else:
        graph = embgrad_onnx.load(path)
    weakref.finalize(graph, shutil.rmtree, folder, ignore_errors=True)
    return graph


exported_minilm.usual = {  # type: ignore[attr-defined]
    **{"order": PARTS, "kernel": "plain", "gelu": "none", "type": 0, "embedding_norm": True},
    **{"least": -1e9, "pooled": "mean", "opset": 17, "form": "file"},
}


# GPT-Neo with `onnx.helper`


class Graph:
    """The steps of a graph and its weights."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def put(self, value: Any, name: str = "", dtype: Any = np.float32) -> str:
        name = name or f"const_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(value, dtype), name))
        return name

    def op(self, kind: str, *given: str, **attributes: Any) -> str:
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, given, [name], name=name, **attributes))
        return name

    def ints(self, *values: int) -> str:
        return self.put(values, dtype=np.int64)

    def linear(self, x: str, state: State, name: str, s: Any, mine: str) -> str:
        weight, bias = state[f"{name}.weight"], state.get(f"{name}.bias")
        weight = weight if name.rsplit(".", 1)[-1] in s.as_stored else weight.T
        matrix = self.put(weight, f"{mine}.weight")
        if s.product == "gemm" and bias is not None:
            flat = self.op("Reshape", x, self.ints(-1, weight.shape[0]))
            shape = self.op("Shape", x)
            shape = self.op("Concat", self.op("Slice", shape, self.ints(0), self.ints(2)), self.ints(-1), axis=0)
            return self.op("Reshape", self.op("Gemm", flat, matrix, self.put(bias, f"{mine}.bias")), shape)
        y = self.op("MatMul", x, matrix)
        return y if bias is None else self.op("Add", y, self.put(bias, f"{mine}.bias"))

    def norm(self, x: str, state: State, name: str, s: Any, mine: str) -> str:
        gain, shift = (self.put(state[f"{name}.{kind}"], f"{mine}.{kind}") for kind in KINDS)
        if s.norm == "op":
            return self.op("LayerNormalization", x, gain, shift, epsilon=1e-5)
        centred = self.op("Sub", x, self.op("ReduceMean", x, self.ints(-1)))
        square = self.op("ReduceMean", self.op("Mul", centred, centred), self.ints(-1))
        root = self.op("Sqrt", self.op("Add", square, self.put(1e-5)))
        return self.op("Add", self.op("Mul", self.op("Div", centred, root), gain), shift)

    def gelu(self, x: str, s: Any) -> str:
        if s.gelu in ("op", "exact"):
            return self.op("Gelu", x, approximate="tanh" if s.gelu == "op" else "none")
        cube = self.op("Mul", self.op("Mul", x, self.op("Mul", x, x)), self.put(0.044715))
        inner = self.op("Tanh", self.op("Mul", self.op("Add", x, cube), self.put(0.7978845608)))
        return self.op("Mul", self.op("Mul", x, self.put(0.5)), self.op("Add", inner, self.put(1.0)))


def attended(g: Graph, x: str, state: State, name: str, heads: int, seen: str, s: Any, mine: str) -> str:
    size = state[f"{name}.q_proj.weight"].shape[0] // heads

    def split(part: str) -> str:
        y = g.linear(x, state, f"{name}.{part}_proj", s, f"{mine}.{part}")
        y = g.op("Reshape", y, g.ints(0, 0, size, heads) if s.inside else g.ints(0, 0, heads, size))
        return g.op("Transpose", y, perm=(0, 3, 1, 2) if s.inside else (0, 2, 1, 3))

    q, k, v = (split(part) for part in "qkv")
    if s.product == "einsum":
        scores = g.op("Einsum", q, k, equation="bhqd,bhkd->bhqk")
    else:
        scores = g.op("MatMul", q, g.op("Transpose", k, perm=(0, 1, 3, 2)))
    scores = g.op("Div", scores, g.put(size**0.5)) if s.scaled else scores
    weights = g.op("Softmax", g.op("Where", seen, scores, g.put(-1e9)), axis=s.axis)
    y = g.op("Reshape", g.op("Transpose", g.op("MatMul", weights, v), perm=(0, 2, 1, 3)), g.ints(0, 0, -1))
    return g.linear(y, state, f"{name}.out_proj", s, f"{mine}.out")


def helper_gptneo(state: State, config: Any, settings: Settings) -> Any:
    """Return the graph's proto."""
    g, s, ids = Graph(), settings.at(), "input_ids"
    table = g.put(state["transformer.wte.weight"], "wte.weight")
    length = g.op("Gather", g.op("Shape", ids), g.put(1, dtype=np.int64))
    zero, step = (g.put(number, dtype=np.int64) for number in (0, 1))
    at = g.op("Range", zero, length, step)
    embedded = g.op("Gather", g.put(state["transformer.wpe.weight"], "wpe.weight"), at)
    x = g.op("Add", g.op("Gather", table, ids), embedded)
    apart = g.op("Sub", g.op("Unsqueeze", at, g.ints(1)), g.op("Unsqueeze", at, g.ints(0)))
    causal = g.op("GreaterOrEqual", apart, zero)
    for n in range(config.num_layers):
        own, name, mine = settings.at(n), f"transformer.h.{n}", f"h{n}"
        near = g.op("Less", apart, g.put(5, dtype=np.int64))
        is_local = config.attention_layers[n] == "local" if own.kinds == "as listed" else n % 2 == 0
        seen = g.op("And", causal, near) if is_local else causal
        h = g.norm(x, state, f"{name}.ln_1", own, f"{mine}.ln_1")
        y = attended(g, h, state, f"{name}.attn.attention", config.num_heads, seen, own, f"{mine}.attn")
        x = g.op("Add", h if own.carried == "normed" else x, y)
        h = g.norm(x, state, f"{name}.ln_2", own, f"{mine}.ln_2")
        h = g.gelu(g.linear(h, state, f"{name}.mlp.c_fc", own, f"{mine}.fc"), own)
        x = g.op("Add", x, g.linear(h, state, f"{name}.mlp.c_proj", own, f"{mine}.proj"))
    x = g.norm(x, state, "transformer.ln_f", s, "ln_f") if s.final else x
    if s.half_head:
        head = g.put(state["lm_head.weight"].T, "head.weight", np.float16)
        g.op("MatMul", x, g.op("Cast", head, to=TensorProto.FLOAT))
    else:
        g.op("MatMul", x, g.op("Transpose", table, perm=(1, 0)))
    given = helper.make_tensor_value_info(ids, TensorProto.INT64, ("example", "position"))
    output = helper.make_tensor_value_info(
        g.nodes[-1].output[0], TensorProto.FLOAT, ("example", "position", len(state["lm_head.weight"]))
    )
    graph = helper.make_graph(g.nodes, "gpt-neo", [given], [output], g.weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.checker.check_model(made)
    return made


helper_gptneo.usual = {  # type: ignore[attr-defined]
    **{"as_stored": (), "product": "matmul", "norm": "op", "gelu": "steps", "inside": False, "scaled": False},
    **{"axis": -1, "kinds": "as listed", "carried": "sum", "final": True, "half_head": False},
}

"""Nets by way of their two files: SymbolBlocks of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from embgrad_gluon.graphs import imperatively

from tests.frameworks.gluon.helpers import DIM, ROWS, mx
from tests.frameworks.gluon.test_bert import BATCH, loaded

nn, nd = mx.gluon.nn, mx.nd
SymbolBlock = mx.gluon.SymbolBlock


def norm_and_dropout() -> Any:
    net = nn.HybridSequential()
    net.add(
        nn.Embedding(ROWS, DIM), nn.BatchNorm(axis=-1), nn.Dropout(0.5), nn.Dense(3, activation="tanh"), nn.Dense(3)
    )
    return net


def exported(net: Any, inputs: list[Any], folder: Path, names: list[str] | None = None, **options: Any) -> Any:
    net.hybridize()
    net(*inputs)
    net.export(str(folder / "net"))
    names = names or (["data"] if len(inputs) == 1 else [f"data{number}" for number in range(len(inputs))])
    return SymbolBlock.imports(str(folder / "net-symbol.json"), names, str(folder / "net-0000.params"), **options)


def opened(block: Any, *inputs: Any) -> Any:
    with imperatively():
        return block(*inputs)


BERT_OUTPUTS = {"sequence": "_transpose1_output", "pooled": "_pooler_tanh_fwd_output"}


def exported_bert(folder: Path) -> tuple[Any, Any]:
    net = loaded()
    return net, exported(net, [nd.array(array) for array in BATCH.to_gluonnlp()], folder)

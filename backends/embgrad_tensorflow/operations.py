"""The operations that look rows up, hand tables and one-hot rows on, or write: one table for eager passes and for graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

__all__ = [
    *("CALLS", "KEEPING", "LOOKUPS", "MAKING", "PRODUCTS", "PYTHON", "RANDOM", "READ", "RESOURCE_LOOKUPS", "ROWS"),
    *("SAME_TABLE", "SLICES", "SPARSE_PRODUCT", "WRITES", "properties_of", "writes_of"),
]

#: The operations that look rows up, with the names of their operands in TensorFlow's functions.
LOOKUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "GatherV2": ("params", "indices", "axis"),
    "Gather": ("params", "indices"),
    "GatherNd": ("params", "indices"),
    "ResourceGather": ("resource", "indices"),
    "ResourceGatherNd": ("resource", "indices"),
}

#: Those of them that look rows of a variable up.
RESOURCE_LOOKUPS: Final = ("ResourceGather", "ResourceGatherNd")

#: The operations that slice a tensor, as layers do that take the vectors of positions 0, 1, 2, …
SLICES: Final = ("Slice", "StridedSlice")

#: The operations that may make one-hot rows, and those that may keep them.
MAKING: Final = ("OneHot", "Equal")
KEEPING: Final = ("Cast", "Identity", "Reshape", "Select", "SelectV2", "Transpose")

#: The operations that multiply matrices, with the attributes that transpose or conjugate an operand.
PRODUCTS: Final[Mapping[str, tuple[str, ...]]] = {
    "MatMul": ("transpose_a", "transpose_b"),
    "BatchMatMul": ("adj_x", "adj_y"),
    "BatchMatMulV2": ("adj_x", "adj_y"),
    "BatchMatMulV3": ("adj_x", "adj_y"),
    "Einsum": (),
}

#: The operation that multiplies a sparse matrix by a dense one.
SPARSE_PRODUCT: Final = "SparseTensorDenseMatMul"

#: The operations whose result may be rows of a table.
ROWS: Final = frozenset((*LOOKUPS, *SLICES, *PRODUCTS))

#: The operation that reads a variable.
READ: Final = "ReadVariableOp"

#: The operations whose result is still the same table.
SAME_TABLE: Final = ("Cast", "Identity")

#: The prefixes of operations that write to a variable; `ResourceGather`s are lookups.
WRITES: Final = ("Assign", "Resource", "Rng", "Stateful")

#: The operations that draw from TensorFlow's internal generator.
RANDOM: Final = frozenset(
    {
        *("Multinomial", "ParameterizedTruncatedNormal", "RandomGamma", "RandomPoisson", "RandomPoissonV2"),
        *("RandomShuffle", "RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal"),
    }
)

#: The operations that run Python code, which may write to anything.
PYTHON: Final = frozenset({"EagerPyFunc", "PyFunc"})

#: The operations that call a function, which is written out in their place.
CALLS: Final = ("PartitionedCall", "StatefulPartitionedCall")


class _Properties(dict[Any, tuple[str, bool, bool]]):
    """The properties of operations by type: the name, whether it runs a graph, and whether it may write to a variable."""

    def __missing__(self, kind: Any) -> tuple[str, bool, bool]:
        name = kind if type(kind) is str else kind.decode()
        runs_graph = name.startswith("__") or name.endswith("PartitionedCall")
        self[kind] = (name, runs_graph, name.startswith(WRITES))
        return self[kind]


properties_of: Final = _Properties()


def writes_of(kind: Any, inputs: Sequence[Any]) -> list[Any]:
    """Return the resources of the variables that an operation may have written to; None stands for unknown ones."""
    name, runs_graph, may_write = properties_of[kind]
    if name in LOOKUPS or not (runs_graph or may_write):
        return []
    return [inputs[0] if may_write and inputs else None]

"""An exported graph cut at its lookups and points: compiled code between them, and at them what happens in every pass."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from embgrad_torch.guards import Sizes
from embgrad_torch.operators import LOOKUP, POINT, STOP
from embgrad_torch.places import Place
from embgrad_torch.standins import Happening, UntraceableError
from embgrad_torch.tracing import Exported

__all__ = ["FailedError", "Program", "Stage", "programmed"]

#: Up to how many operators a piece of the graph runs one by one: calling compiled code takes as long as a few.
FEW: Final = 12

#: The operators that compute nothing: what they expect is checked by the sizes.
_EXPECTING: Final = ("_assert", "sym_constrain_range", "_assert_tensor_metadata", "_assert_scalar")


class FailedError(Exception):
    """Compiled code failed by itself; says how."""


@dataclass
class Stage:
    """A piece of the graph between lookups and points.

    Attributes:
        function: gives the values of `gives` for those of `takes`.
        takes: the names of the values that it needs.
        gives: the names of the values that others need.
        compiled: whether it is compiled.
        static: the places, in `takes`, of weights.
        ready: whether it has been called.
    """

    function: Any
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    compiled: bool
    static: tuple[int, ...]
    ready: bool = False

    def run(self, values: dict[str, Any]) -> None:
        """Add to the values what it gives.

        Raises:
            FailedError: compiled code could not be made, or failed.
        """
        given = [values[name] for name in self.takes]
        try:
            if not self.ready and self.compiled:
                for place in self.static:
                    torch._dynamo.mark_static(given[place])
            found = self.function(*given)
        except Exception as error:  # of whatever the compiler meets
            raise FailedError(why_failed(error)) from error
        self.ready = True
        values.update(zip(self.gives, found, strict=True))


def why_failed(error: BaseException) -> str:
    """Why compiled code failed, as "compile=True: ..." goes on."""
    names: list[str] = []
    one = error
    while one is not None and len(names) < 20:
        names.append(type(one).__name__ + str(one)[:200])
        one = one.__cause__ or one.__context__  # type: ignore[assignment]
    if any("InvalidCxxCompiler" in name or "No working C++ compiler" in name for name in names):
        return "no C++ compiler (g++) is on the path, which torch.compile needs"
    if any("CppCompileError" in name for name in names):
        return "the C++ compiler that torch.compile needs gave an error"
    lines = (line.strip() for line in str(error).strip().split("\n"))
    text = next((line for line in lines if line and not line.endswith(" raised:")), "")  # behind which comes what
    return f"torch.compile failed ({type(error).__name__}: {text[:300]})"


@dataclass(frozen=True)
class Program:
    """What is run in a model's place.

    Attributes:
        places: where the weights are.
        script: what happens, in order.
        rebuild: gives what the model returned, of the outputs.
        used: which outputs the objective is pulled back from.
        sizes: tells whether it serves for a call.
        constants: by name tensors that are neither the modules' nor inputs.
        weights: the names of the values of what modules hold; those of the inputs.
        inputs: see above.
        steps: in order: pieces of the graph, and what happens between them, by number in the script.
        operands: by number the names of what a lookup or point is given.
        results: by number the name of what goes on there.
        outputs: the names of the outputs.
        shapes: the shapes and dtypes of the weights.
        dtypes: those of all that it computes.
    """

    places: tuple[Place, ...]
    script: tuple[Happening, ...]
    rebuild: Callable[[Sequence[Any]], Any]
    used: tuple[int, ...]
    sizes: Sizes
    constants: Mapping[str, Any]
    weights: tuple[str, ...]
    inputs: tuple[str, ...]
    steps: tuple[Stage | int, ...]
    operands: Mapping[int, tuple[str, ...]]
    results: Mapping[int, str]
    outputs: tuple[str, ...]
    shapes: tuple[tuple[Any, Any], ...]
    dtypes: frozenset[Any]


def programmed(exported: Exported) -> Program:
    """Cut the graph and have its pieces compiled, when they are first called.

    Raises:
        UntraceableError: the graph does what a compiled one would do otherwise.
    """
    graph = exported.program.graph
    constants, held, inputs = _inputs(exported)
    weights = [node for node, _ in held]
    _clean(graph)
    outputs = _outputs(exported)
    happening = {int(node.args[-1]): node for node in graph.nodes if node.target in (LOOKUP, POINT)}
    numbers = [one.number for one in exported.script if one.number is not None]
    if sorted(happening) != sorted(numbers):
        raise UntraceableError("the graph of it lacks some of its lookups")
    levels, of_happening = _levels(graph, [happening[number] for number in numbers], outputs)
    _expect_known(levels)
    sizes = Sizes(inputs)
    if sizes.by_values:  # which leaves nothing in the graph where Python catches the error that comes of asking for it
        raise UntraceableError("the model's Python depends on the values of tensors, which it reads as numbers")
    steps = _steps(exported.script, happening, levels, of_happening, outputs, frozenset(one.name for one in weights))
    return Program(
        tuple(place for _, place in held),
        exported.script,
        exported.rebuild,
        exported.used,
        sizes,
        {node.name: value for node, value in constants},
        tuple(node.name for node in weights),
        tuple(node.name for node in inputs),
        steps,
        {number: tuple(one.name for one in node.all_input_nodes) for number, node in happening.items()},
        {number: node.name for number, node in happening.items()},
        tuple(node.name for node in outputs),
        tuple((tuple(node.meta["val"].shape), node.meta["val"].dtype) for node in weights),
        frozenset(node.meta["val"].dtype for node in levels if isinstance(node.meta.get("val"), torch.Tensor)),
    )


def _steps(
    script: Sequence[Happening],
    happening: Mapping[int, Any],
    levels: Mapping[Any, int],
    at: Mapping[Any, int],
    outputs: Sequence[Any],
    weights: frozenset[str],
) -> tuple[Stage | int, ...]:
    """The pieces of the graph, and between them what happens once they have run."""
    steps: list[Stage | int] = []
    waiting = list(range(len(script)))
    for level in range(max(at.values(), default=-1) + 2):
        chosen = [node for node, own in levels.items() if own == level]
        if chosen:
            steps.append(_stage(chosen, levels, outputs, weights))
        while waiting and _is_due(script[waiting[0]].number, happening, at, level):
            steps.append(waiting.pop(0))
    return (*steps, *waiting)


def _is_due(number: int | None, happening: Mapping[int, Any], at: Mapping[Any, int], level: int) -> bool:
    return number is None or at[happening[number]] <= level


def _inputs(exported: Exported) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Place]], list[Any]]:
    """The graph's nodes for constants, with these, for what modules hold, with the places, and for the tensors of the call."""
    program = exported.program
    constants, attributes, given = [], [], []
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    for node, spec in zip(nodes, program.graph_signature.input_specs, strict=True):
        if spec.kind.name == "USER_INPUT":
            given.append(node)
            continue
        value = program.constants.get(spec.target, program.state_dict.get(spec.target))
        if not isinstance(value, torch.Tensor) or isinstance(value, torch.nn.Parameter):
            raise UntraceableError(f"its graph holds {spec.target}, which is no tensor of the model's")
        if spec.target in exported.attributes:
            attributes.append((node, exported.attributes[spec.target]))
        else:
            constants.append((node, value.detach()))
    count = len(exported.places)
    return constants, [*zip(given[:count], exported.places, strict=True), *attributes], given[count:]


def _outputs(exported: Exported) -> list[Any]:
    """The nodes of what the model returns."""
    program = exported.program
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    specs = program.graph_signature.output_specs
    own = [node for node, spec in zip(output.args[0], specs, strict=True) if spec.kind.name == "USER_OUTPUT"]
    return own[: exported.outputs]


def _clean(graph: Any) -> None:
    """Takes out what computes nothing, and puts PyTorch's own end of gradients in the place of ours."""
    for node in list(graph.nodes):
        if node.op == "call_function" and any(one in str(node.target) for one in _EXPECTING) and not node.users:
            if _expects_values(node):
                raise UntraceableError(f"the model's Python depends on the values of tensors ({node.target})")
            graph.erase_node(node)
        elif node.target is torch.ops.aten.clone.default and node.args[0].target in (LOOKUP, POINT):
            node.replace_all_uses_with(node.args[0])  # what goes on there is a clone already
            graph.erase_node(node)
        elif node.target is STOP:
            node.target = torch.ops.aten.detach.default
        elif node.target is torch.ops.aten.copy.default:
            _write_out(graph, node)
        elif node.op == "get_attr":
            raise UntraceableError("a part of its graph is run by an operator of higher order")


def _write_out(graph: Any, node: Any) -> None:
    """Puts in the place of what an export makes of a write in place, which PyTorch cannot differentiate, what it gives."""
    whole, source = node.args[:2]
    with graph.inserting_before(node):
        for target, *others in (
            (torch.ops.aten.expand_as.default, whole),
            (torch.ops.aten.type_as.default, whole),
            (torch.ops.aten.clone.default,),
        ):
            source = graph.call_function(target, (source, *others))
            source.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(source)
    graph.erase_node(node)


def _expects_values(node: Any) -> bool:
    """Whether an operator that computes nothing looks at numbers, and not at sizes and dtypes alone."""
    if "_assert_async" in str(node.target):
        return True
    given = [one.meta.get("val") for one in node.args if hasattr(one, "meta")]
    return "_assert_scalar" in str(node.target) and any(free_unbacked_symbols(one) for one in given if one is not None)


def _levels(graph: Any, happening: Sequence[Any], outputs: Sequence[Any]) -> tuple[dict[Any, int], dict[Any, int]]:
    """For each node that is needed after how many groups of lookups and points it can be computed, and as late as it can be.

    What happens keeps its order: each group is as large as it can be.
    """
    early: dict[Any, int] = {}
    at: dict[Any, int] = {}
    order = {node: number for number, node in enumerate(happening)}
    latest = 0
    for node in graph.nodes:
        if node.op not in ("placeholder", "call_function"):
            continue
        level = max((early[one] for one in node.all_input_nodes), default=0)
        if node in order:
            latest = at[node] = max(level, latest)
            level = latest + 1
        early[node] = level
    final = latest + 1 if happening else 0
    late: dict[Any, int] = dict.fromkeys(outputs, final)
    for node in reversed(graph.nodes):
        if node in at:
            needed = at[node]
        elif node.op == "call_function" and node in late:
            needed = late[node]
        else:
            continue
        for one in node.all_input_nodes:
            late[one] = min(late.get(one, final), needed)
    levels: dict[Any, int] = {}
    for node in graph.nodes:
        if node.op == "call_function" and node in late and node not in at:
            whole = levels.get(node.args[0]) if node.target is operator.getitem else None
            levels[node] = late[node] if whole is None else whole  # what gives several tensors gives them in one piece
    return levels, at


def _expect_known(levels: Mapping[Any, int]) -> None:
    """Refuse random numbers, which compiled code draws otherwise, and sizes that follow from values."""
    for node in levels:
        value = node.meta.get("val")
        entries = value if isinstance(value, (list, tuple)) else [value]
        if any(one is not None and free_unbacked_symbols(one) for one in entries):
            raise UntraceableError(f"the model's Python depends on the values of tensors ({node.target})")
        tags = getattr(node.target, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags and _draws(node):
            raise UntraceableError(
                f"the model draws random numbers ({node.target}), which compiled code draws otherwise"
            )


def _draws(node: Any) -> bool:
    """Whether an operator that can draw random numbers does so."""
    names = [one.name for one in node.target._schema.arguments]
    defaults = {one.name: one.default_value for one in node.target._schema.arguments if one.has_default_value()}
    given = {**defaults, **dict(zip(names, node.args, strict=False)), **node.kwargs}
    for name in ("dropout_p", "dropout", "p"):
        if name in given and given[name] in (0, 0.0):
            return False
    return given.get("train", True) is not False


def _stage(chosen: Sequence[Any], levels: Mapping[Any, int], outputs: Sequence[Any], weights: frozenset[str]) -> Stage:
    """These nodes as a function of what they take from others."""
    inside = set(chosen)
    taken = list(dict.fromkeys(one for node in chosen for one in node.all_input_nodes if one not in inside))
    ends = set(outputs)
    given = [node for node in chosen if node in ends or any(user not in inside for user in _users(node, levels))]
    given = [node for node in given if not isinstance(node.meta.get("val"), (list, tuple))]
    graph = fx.Graph()
    copies: dict[Any, Any] = {}
    for node in taken:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in chosen:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in given))
    module = fx.GraphModule(torch.nn.Module(), graph)
    compiled = sum(not _is_size(node) for node in chosen) > FEW
    function = torch.compile(module, dynamic=True, fullgraph=True) if compiled else module
    static = tuple(place for place, node in enumerate(taken) if node.name in weights)
    return Stage(function, tuple(n.name for n in taken), tuple(n.name for n in given), compiled, static)


def _users(node: Any, levels: Mapping[Any, int]) -> list[Any]:
    """Those that use what a node gives: others that are computed, lookups and points."""
    return [user for user in node.users if user in levels or user.target in (LOOKUP, POINT)]


def _is_size(node: Any) -> bool:
    return node.target is operator.getitem or isinstance(node.meta.get("val"), (torch.SymInt, int))

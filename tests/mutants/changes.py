"""The single changes that can be made to a source: each replaces a few bytes of one line."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

#: Operators and what each becomes; those of several words before those that they contain.
COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
ARITHMETIC = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}
TWINS = {"min": "max", "any": "all", "minimum": "maximum", "argmin": "argmax", "floor": "ceil", "zeros": "ones"}
TWINS |= {twin: name for name, twin in TWINS.items()}
#: Calls whose keywords only guard against mistakes in the code itself: `strict=True`, `frozen=True`.
GUARDS = {"zip", "dataclass"}


@dataclass(frozen=True)
class Change:
    """A replacement of source[start:end], which lies in one line; `loaded` if that runs as the module is imported."""

    file: Path
    line: int
    statement: int
    start: int
    end: int
    text: bytes
    loaded: bool

    def apply(self, source: bytes) -> bytes:
        """Return the changed source."""
        return source[: self.start] + self.text + source[self.end :]

    def compiles(self, source: bytes) -> bool:
        """Return whether the changed source is Python."""
        try:
            ast.parse(self.apply(source))
        except SyntaxError:
            return False
        return True

    def lines(self, source: bytes) -> tuple[str, str]:
        """Return the line before and after the change."""
        return tuple(text.split(b"\n")[self.line - 1].decode() for text in (source, self.apply(source)))  # type: ignore[return-value]


def changes_in(file: Path, source: bytes) -> list[Change]:
    """Return every change to the source, also those after which it is no longer Python."""
    visitor = _Changes(file, source)
    visitor.visit(ast.parse(source))
    return visitor.changes


class _Changes(ast.NodeVisitor):
    """The walk that collects changes, and passes by strings, annotations and what is there for type checkers."""

    def __init__(self, file: Path, source: bytes) -> None:
        self.file, self.source, self.changes = file, source, list[Change]()
        self.starts = [0, *itertools.accumulate(len(line) + 1 for line in source.split(b"\n"))]
        self.depth = self.statement = 0

    def span(self, node: ast.AST) -> tuple[int, int]:
        return (
            self.starts[node.lineno - 1] + node.col_offset,  # type: ignore[attr-defined]
            self.starts[node.end_lineno - 1] + node.end_col_offset,  # type: ignore[attr-defined]
        )

    def add(self, start: int, end: int, text: str) -> None:
        if b"\n" not in self.source[start:end]:
            line = self.source.count(b"\n", 0, start) + 1
            self.changes.append(
                Change(self.file, line, self.statement or line, start, end, text.encode(), self.depth == 0)
            )

    def turn(self, left: ast.AST, right: ast.AST, operator: tuple[str, str]) -> None:
        """Replace the operator between two operands."""
        begin, end = self.span(left)[1], self.span(right)[0]
        if found := re.search(rb"\s+".join(map(re.escape, operator[0].encode().split())), self.source[begin:end]):
            self.add(begin + found.start(), begin + found.end(), operator[1])

    def visit_all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def visit(self, node: ast.AST) -> None:
        if not isinstance(node, ast.stmt):
            super().visit(node)
            return
        outer, self.statement = self.statement, node.lineno
        super().visit(node)
        self.statement = outer

    # What is left out: docstrings and other strings, messages, annotations, what only type checkers read.

    def visit_JoinedStr(self, node: ast.JoinedStr | ast.Raise) -> None:
        pass

    visit_Raise = visit_JoinedStr

    def visit_Assert(self, node: ast.Assert) -> None:
        self.visit(node.test)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit_all([node.value])

    def visit_Function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.visit_all([*node.decorator_list, *node.args.defaults, *node.args.kw_defaults])
        self.depth += 1
        self.visit_all(node.body)
        self.depth -= 1

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Function

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit_all([*node.args.defaults, *node.args.kw_defaults])
        self.depth += 1
        self.visit(node.body)
        self.depth -= 1

    # What is changed.

    def visit_If(self, node: ast.If | ast.While | ast.IfExp) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        if isinstance(node.test, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
            start, _ = self.span(node.test)
            self.add(start, start, "not ")
        self.generic_visit(node)

    visit_While = visit_IfExp = visit_If

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for left, right, operator in zip(operands, operands[1:], node.ops, strict=False):
            self.turn(left, right, COMPARISONS[type(operator)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        word = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in itertools.pairwise(node.values):
            self.turn(left, right, word)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        inverts = isinstance(node.op, ast.Not | ast.Invert)
        if inverts or (isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant)):
            self.add(self.span(node)[0], self.span(node.operand)[0], "")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        joins_text = any(isinstance(side, ast.JoinedStr) or _is_text(side) for side in (node.left, node.right))
        joins_types = self.depth == 0 and isinstance(node.op, ast.BitOr)
        if type(node.op) in ARITHMETIC and not joins_text and not joins_types:
            self.turn(node.left, node.right, ARITHMETIC[type(node.op)])
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if type(node.op) in ARITHMETIC and not isinstance(node.value, ast.JoinedStr) and not _is_text(node.value):
            self.turn(node.target, node.value, tuple(f"{sign}=" for sign in ARITHMETIC[type(node.op)]))  # type: ignore[arg-type]
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.add(*self.span(node), str(not node.value))
        elif isinstance(node.value, int | float):
            self.add(*self.span(node), str(node.value + 1))
            self.add(*self.span(node), str(node.value - 1) if node.value >= 1 else f"({node.value - 1})")

    def visit_Slice(self, node: ast.Slice) -> None:
        for end in (node.lower, node.upper):
            if end is not None and not isinstance(end, ast.Constant | ast.UnaryOp):
                self.add(self.span(end)[1], self.span(end)[1], " + 1")
                self.add(self.span(end)[1], self.span(end)[1], " - 1")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
        if name in TWINS:
            end = self.span(node.func)[1]
            self.add(end - len(name), end, TWINS[name])
        before = max((self.span(argument)[1] for argument in node.args), default=self.span(node.func)[1])
        if name in GUARDS:
            self.visit_all([node.func, *node.args])
            return
        for keyword in node.keywords:
            begin, end = self.span(keyword)
            comma = self.source.rfind(b",", before, begin)
            if keyword.arg is not None:
                self.add(comma if comma >= 0 else begin, end, "")
            before = end
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self.add(*self.span(node), "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets):
            return
        if any(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self.add(*self.span(node), "pass")
        self.generic_visit(node)

    def visit_Break(self, node: ast.Break | ast.Continue) -> None:
        self.add(*self.span(node), "pass")

    visit_Continue = visit_Break


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def read_equivalents(text: str) -> dict[tuple[str, str, str], str]:
    """Return the reasons of a list of changes that no test can notice, by the file, the line and the changed line.

    The list has a paragraph for all with one reason in a file: the file, each line as it is (-) and changed (+), and the reason.
    """
    reasons = {}
    for paragraph in text.split("\n\n"):
        lines = [line.strip() for line in paragraph.splitlines() if line.strip() and not line.startswith("#")]
        before, after = ([line[1:].strip() for line in lines[1:] if line[0] == sign] for sign in "-+")
        for was, becomes in zip(before, after, strict=True):
            reasons[lines[0], was, becomes] = " ".join(line for line in lines[1:] if line[0] not in "-+")
    return reasons

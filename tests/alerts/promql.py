"""What an expression is made of, read from its syntax tree by a parser that is not Prometheus' own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import promql_parser
from promql_parser import (
    AggModifierType,
    AggregateExpr,
    BinaryExpr,
    Call,
    Expr,
    LabelModifierType,
    MatrixSelector,
    ParenExpr,
    VectorSelector,
)


def parse(expr: str) -> Expr:
    """Its tree; raises ValueError where it is no PromQL."""
    return promql_parser.parse(expr)


def _below(node: Expr) -> list[Expr]:
    if isinstance(node, BinaryExpr):
        return [node.lhs, node.rhs]
    if isinstance(node, AggregateExpr | ParenExpr):
        return [node.expr]
    if isinstance(node, Call):
        return list(node.args)
    if isinstance(node, MatrixSelector):
        return [node.vector_selector]
    return []


def walk(node: Expr) -> Iterator[Expr]:
    """The node and all below it."""
    yield node
    for one in _below(node):
        yield from walk(one)


def bare(node: Expr) -> Expr:
    """Without the brackets around it."""
    return bare(node.expr) if isinstance(node, ParenExpr) else node


def names(expr: str) -> set[str]:
    """Series that it selects."""
    return {str(node.name) for node in walk(parse(expr)) if isinstance(node, VectorSelector)}


def asked(expr: str) -> set[str]:
    """Labels that it matches or groups by."""
    found: set[str] = set()
    for node in walk(parse(expr)):
        if isinstance(node, VectorSelector):
            found |= {matcher.name for matcher in node.matchers.matchers}
        if isinstance(node, AggregateExpr) and node.modifier:
            found |= set(node.modifier.labels)
        if isinstance(node, BinaryExpr) and node.modifier and node.modifier.matching:
            found |= set(node.modifier.matching.labels)
    return found


def labels(node: Expr, of: Callable[[str], set[str]]) -> set[str] | None:
    """Labels that its result may carry, None for a number; ``of`` knows those of a series.

    Raises AssertionError where two sides that are to match cannot.
    """
    if isinstance(node, VectorSelector):
        return of(str(node.name))
    if isinstance(node, AggregateExpr):
        inner = labels(node.expr, of) or set()
        if node.modifier is None:
            return set()
        given = set(node.modifier.labels)
        return inner & given if node.modifier.type == AggModifierType.By else inner - given
    if isinstance(node, Call):
        if node.func.name == "absent":
            return set()
        inner = next((found for arg in node.args if (found := labels(arg, of)) is not None), set())
        return inner - {"le"} if node.func.name == "histogram_quantile" else inner
    if isinstance(node, BinaryExpr):
        return _matched(node, labels(node.lhs, of), labels(node.rhs, of))
    return next((labels(one, of) for one in _below(node)), None)


def _matched(node: BinaryExpr, left: set[str] | None, right: set[str] | None) -> set[str] | None:
    if left is None or right is None:
        return right if left is None else left
    matching = node.modifier.matching if node.modifier else None
    if matching is not None and matching.type == LabelModifierType.Include:
        assert set(matching.labels) <= left & right, f"{node}: on a label that a side lacks"
    elif str(node.op) != "or":  # which joins what need not be alike
        ignored = set(matching.labels) if matching else set()
        assert left - ignored == right - ignored, f"{node}: {left ^ right} on one side only"
    return left | right if str(node.op) == "or" else left

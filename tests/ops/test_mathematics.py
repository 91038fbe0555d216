"""Every gradient rule and every rewrite rule begins with its mathematics, in the grammar of docs/add_a_rule.md."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from mathematics import parse
from op_checks import wire

import gdlab
from gdlab.base.types import u32
from gdlab.op import REGISTRY, Op
from gdlab.rewrite.rules.pattern import Rule
from gdlab.rewrite.rules.rule_table import RULES, fused_rules
from gdlab.view.document.passes import gradient_sources

RULED = [op for op in REGISTRY.values() if op.gradient is not None and op.rule.__module__.startswith("gdlab.")]
OURS = [r for r in RULES if r.function.__module__.startswith("gdlab.")]
ANY_OPERANDS = frozenset("fabchxyt")  # of a rule without a pattern


def first_line(function: Any) -> str:
    return (inspect.getdoc(function) or "").partition("\n")[0]


@pytest.mark.parametrize("op", RULED, ids=lambda op: op.name)
def test_gradient_rules_begin_with_their_mathematics(op: Op) -> None:
    assert op.gradient is not None  # asked of these ops alone
    line = parse(first_line(op.gradient))
    known = set(inspect.signature(op.gradient).parameters) | {p.name for p in op.parameters}
    assert line.kind == "gradient" and line.free <= known, line.free - known
    assert set(line.gradients) == operands_with_a_gradient(op)


def operands_with_a_gradient(op: Op) -> set[str]:
    """The operands, as the rule names them, that receive a gradient with one sample or another."""
    assert op.gradient is not None  # asked of these ops alone
    names = list(inspect.signature(op.gradient).parameters)[2 : 2 + len(op.operands)]
    received: set[str] = set()
    for sample in op.samples:
        wired = wire(op, sample)
        if wired.out.type.dtype is u32:
            continue
        node = wired.out.node
        operands = op.spread([wired.graph.value(i) for i in node.inputs])
        with wired.graph:
            entries = op.gradient(wired.out, wired.out, *operands, **dict(node.attrs))
        received |= {names[min(i, len(names) - 1)] for i, entry in enumerate(entries) if entry is not None}
    return received


@pytest.mark.parametrize("rule", OURS, ids=lambda rule: rule.name)
def test_rewrite_rules_begin_with_their_mathematics(rule: Rule) -> None:
    line = parse(rule.doc)
    known = set(inspect.signature(rule.function).parameters) if rule.left >= 0 else ANY_OPERANDS
    assert line.kind == "rewrite" and line.free <= known, line.free - known


def test_the_rules_of_a_fused_op_state_its_body_and_its_call() -> None:
    silu = {made.name: made.doc for made in fused_rules(REGISTRY["silu"])}
    assert silu == {"fuse_silu": "x · sigmoid(x) → silu(x)", "open_silu": "silu(x) → x · sigmoid(x)"}


def test_a_document_holds_the_line_of_each_gradient_rule() -> None:
    sources = gradient_sources([*REGISTRY, "no such op"])
    assert {op.name for op in RULED} <= set(sources)
    for op in RULED:
        assert op.gradient is not None  # asked of these ops alone
        assert sources[op.name]["math"] == first_line(op.gradient), op.name
    body = sources["mse_loss"]
    assert body["math"] == "" and body["text"].startswith("def mse_loss("), "its body is differentiated"
    file = Path(gdlab.__file__).parents[1] / body["name"]
    assert file.read_text(encoding="utf-8").splitlines()[body["line"] - 1].startswith("def mse_loss(")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "g · b",
        "∂a = g ·",
        "∂a = g b",
        "x is y",
        "a + b → ",
        "∂a = (g",
        "∂a = g, b",
        "∂x = g over",
        "∂x = |g",
        "−(−x) is x.",
    ],
)
def test_the_grammar_refuses_prose_and_parts(text: str) -> None:
    with pytest.raises(SyntaxError):
        parse(text)

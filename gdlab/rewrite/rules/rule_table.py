"""The table of rules: `@rule` adds one, and those of fused ops are made from their bodies, in both directions.

A rule's id is its function's name. It must hold for every operand that fits its left side and its conditions.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, get_args, overload

from gdlab.base.errors import GdlabError, OptimizeError, UnknownRuleError
from gdlab.base.words import grid, near_hint, plural
from gdlab.graph import AttrVar, PatternGraph, Value
from gdlab.op import ALL_PHASES, REGISTRY, Op, Phase, Safety, Sample
from gdlab.rewrite.rules.conditions import Condition, rank, written
from gdlab.rewrite.rules.pattern import F32_CONSTANTS, Matrix, Rewrite, Rule, check_shape_of, is_opaque
from gdlab.rewrite.rules.soundness import check_rule

__all__ = ["RULES", "RuleTable", "fused_rules", "recognizes", "rule", "trace"]


class RuleTable:
    """All rules, in order: `for rule in rules`, `rules["neg_neg"]` by id or label, `rules.neg_neg`,
    `rules.remove("neg_neg")`; `print(rules)` is a table of them.

    The rules of fused ops are made anew when the registry changes; a rule of gdlab's that was removed stays away.
    """

    def __init__(self) -> None:
        self._ours: dict[str, Rule] = {}
        self._theirs: dict[str, Rule] = {}
        self._removed: set[str] = set()
        self._of_op: dict[Op, tuple[Rule, ...]] = {}

    def __iter__(self) -> Iterator[Rule]:
        made = {r.name: r for op in list(REGISTRY.values()) for r in self._rules_of(op)}
        kept = {n: r for n, r in (self._ours | made).items() if n not in self._removed}
        return iter((kept | self._theirs).values())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return any(name in (r.name, r.label) for r in self)

    def __getitem__(self, name: str) -> Rule:
        return self.named([name], "rules", "rule")[0]

    def __repr__(self) -> str:
        return f"<{plural(len(self), 'rule')}>"

    def __str__(self) -> str:
        rows = [(r.name, r.label, r.safety, _phases(r), "on" if r.on else "off", r.doc) for r in self]
        return "\n".join(grid(("rule", "label", "tag", "phases", "on", "meaning"), rows, indent=""))

    def __getattr__(self, name: str) -> Rule:
        if not name.startswith("_"):
            for found in self:
                if found.name == name:
                    return found
        raise AttributeError(f"no rule {name!r}; ids: print(gdlab.rules)")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(r.name for r in self)]

    def _ipython_key_completions_(self) -> list[str]:
        return [text for r in self for text in (r.name, r.label)]

    def named(self, names: Iterable[str], where: str, what: str) -> list[Rule]:
        """Return the rules of these ids or labels (a label may stand for several), or raise `UnknownRuleError`."""
        table, found = list(self), []
        for name in names:
            hits = [r for r in table if name in (r.name, r.label)]
            if not hits:
                hint = near_hint(str(name), [text for r in table for text in (r.name, r.label)])
                raise UnknownRuleError(where, what, repr(name), f"the id or label of a rule{hint}")
            found += hits
        return found

    def add(self, rule: Rule) -> None:
        """Add a rule, in place of one with the same id if there is one."""
        if _is_ours(rule):
            self._ours[rule.name] = rule
        else:
            self._theirs[rule.name] = rule

    def remove(self, name: str) -> None:
        """Take the rule of this id or label away. A rule of gdlab's that it stood in for is back then."""
        for rule in self.named([name], "rules.remove", "rule"):
            if self._theirs.pop(rule.name, None) is None:
                self._removed.add(rule.name)

    def _rules_of(self, op: Op) -> tuple[Rule, ...]:
        if op not in self._of_op:
            self._of_op[op] = tuple(fused_rules(op))
        return self._of_op[op]


def _phases(rule: Rule) -> str:
    return "all" if rule.phases == ALL_PHASES else ", ".join(rule.phases)


def _is_ours(rule: Rule) -> bool:
    return str(getattr(rule.function, "__module__", "")).startswith("gdlab.")


RULES = RuleTable()
Stated = Callable[..., Rewrite]


@overload
def rule(function: Stated, /) -> Rule: ...
@overload
def rule(
    *,
    safety: Safety = ...,
    label: str = ...,
    near: bool = ...,
    where: Condition | Sequence[Condition] = ...,
    phases: Phase | Sequence[Phase] = ...,
    on: bool = ...,
    samples: Sample | Sequence[Sample] = ...,
    tolerance: float | None = ...,
) -> Callable[[Stated], Rule]: ...
def rule(
    function: Stated | None = None,
    /,
    *,
    safety: Safety = "rounding",
    label: str = "",
    near: bool = False,
    where: Condition | Sequence[Condition] = (),
    phases: Phase | Sequence[Phase] = ALL_PHASES,
    on: bool = True,
    samples: Sample | Sequence[Sample] = (),
    tolerance: float | None = None,
) -> Rule | Callable[[Stated], Rule]:
    """Turn a function that returns `left >> right` in op notation into a rule of the table (decorator).

    Parameters are operands (`Value`, or `Matrix` for rank 2) or attributes. A rule stated outside gdlab is tried at
    once on random operands (shapes from the samples of its ops, or from `samples`): where the sides differ in type,
    value or (phase forward) gradient, it is refused. With `on=False` it takes part only when `enable` names it.
    `tolerance`: how far the sides may lie apart, relative; None: 0 for exact, 1e-12 for rounding, 1e-9 for reassoc,
    1e-2 for approx. A rule stated again under its name takes the place of the old one.
    """

    def state(stated: Stated) -> Rule:
        several = _several(where), _several(phases), _several(samples)
        made = trace(stated, safety, label, several[0], several[1], near, on, several[2], tolerance)
        if not _is_ours(made):
            check_rule(made)
        RULES.add(made)
        return made

    return state if function is None else state(function)


def recognizes(
    composite: str, *, where: Condition | Sequence[Condition] = (), samples: Sample | Sequence[Sample] = ()
) -> Callable[[Stated], Rule]:
    """Turn a function into a rule that finds a composite in ops that people write out, with constants in float32."""
    label = f"Recognize {composite}"
    return rule(safety="rounding", label=label, near=True, where=where, samples=samples, tolerance=F32_CONSTANTS)


def trace(
    stated: Stated, safety: Safety, label: str, where: tuple[Condition, ...], phases: tuple[Phase, ...], near: bool,
    on: bool, samples: tuple[Sample, ...], tolerance: float | None = None,
) -> Rule:  # fmt: skip
    """Return the record of a stated rule, after one run of its function on the variables of a pattern graph."""
    _check_function(stated)
    name = stated.__name__
    _check_words(name, safety, phases, where)
    _check_values(name, label, samples, tolerance)
    kinds = inspect.get_annotations(stated, eval_str=True)
    with PatternGraph() as g:
        arguments = [_variable(g, p, kinds.get(p, Value)) for p in inspect.signature(stated).parameters]
        result = _run(stated, arguments)
    if not isinstance(result, Rewrite):
        kind = "Value" if isinstance(result, Value) else type(result).__name__
        raise OptimizeError(f"rule {name}", "result", kind, "left >> right, both in op notation")
    code = stated.__code__
    place = code.co_filename, code.co_firstlineno
    matrices = [replace(rank(p, 2), place=place) for p, kind in kinds.items() if kind == Matrix]
    conditions = (*matrices, *where)
    made = Rule(name, label or name, safety, stated, g, result.left.id, g.own(result.right).id, conditions, phases,
                near, on, samples, tolerance)  # fmt: skip
    check_shape_of(made)
    _check_opaque(made)
    return made


def _several(given: Any) -> tuple[Any, ...]:
    """Return the argument as a tuple; one alone may be given as it is."""
    return tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)


def _run(stated: Stated, arguments: Sequence[Value | AttrVar]) -> Any:
    """Return the result of a person's function; any error in it is reported as an error of the rule."""
    try:
        return stated(*arguments)
    except GdlabError:
        raise
    except Exception as e:
        wanted = "left >> right, both in op notation; attributes as they are"
        raise OptimizeError(f"rule {stated.__name__}", "function", repr(e), wanted) from e


def _variable(g: PatternGraph, name: str, kind: Any) -> Value | AttrVar:
    operand = Value in (kind, *get_args(kind))
    return g.append("var", (), (("name", name),), g.untyped) if operand else AttrVar(name)


def _check_function(stated: Any) -> None:
    """Check that a rule is a function with a name of its own, whose parameters are its variables, one by one."""
    name = getattr(stated, "__name__", "")
    if not inspect.isfunction(stated) or not name.isidentifier():
        raise OptimizeError("rule", "function", name or repr(stated), "def name(x: Value): return left >> right")
    for p in inspect.signature(stated).parameters.values():
        if p.kind not in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            raise OptimizeError(f"rule {name}", "parameter", str(p), "operands and attributes by name, one by one")


def _check_values(name: str, label: str, samples: tuple[Sample, ...], tolerance: float | None) -> None:
    if not isinstance(label, str) or len(label.splitlines()) > 1:
        raise OptimizeError(f"rule {name}", "label", repr(label), "a text of one line")
    for sample in samples:
        if not isinstance(sample, Sample):
            raise OptimizeError(f"rule {name}", "samples", repr(sample), "Sample(shapes…, attrs=…)")
    if tolerance is not None and not (isinstance(tolerance, (int, float)) and 0 <= tolerance < math.inf):
        raise OptimizeError(f"rule {name}", "tolerance", repr(tolerance), "a finite number ≥ 0, or None")


def _check_opaque(made: Rule) -> None:
    """Check that no rule looks through an opaque op; `stop_gradient` may go once the gradients are there."""
    late = {"stop_gradient"} if made.phases == ("full",) else set()
    lost = [n.op for n in made.left_nodes if is_opaque(n.op) and n.op not in late]
    if lost:
        wanted = 'ops that rules may look through (stop_gradient: phases=("full",))'
        raise OptimizeError(f"rule {made.name}", "left side", lost[0], wanted)


def _check_words(name: str, safety: Safety, phases: tuple[Phase, ...], where: tuple[Condition, ...]) -> None:
    if safety not in get_args(Safety):
        raise OptimizeError(f"rule {name}", "safety", repr(safety), f"one of {', '.join(get_args(Safety))}")
    if not phases:
        raise OptimizeError(f"rule {name}", "phases", "none", f"some of {', '.join(ALL_PHASES)}")
    lost = [p for p in phases if p not in ALL_PHASES]
    if lost:
        raise OptimizeError(f"rule {name}", "phases", repr(lost[0]), f"some of {', '.join(ALL_PHASES)}")
    for condition in where:
        if not isinstance(condition, Condition):
            raise OptimizeError(f"rule {name}", "where", repr(condition), 'conditions such as single_use("x")')


# the rules of fused ops -----------------------------------------------------------------------------------------------
ROOT = "fused"  # the name of the op in the rule that opens it


def fused_rules(op: Op) -> Iterator[Rule]:
    """Yield body → op, one rule per value of a Literal attribute, and its reverse; none for an op without a label."""
    for i, (fixed, label) in enumerate(op.variants()):
        name = op.name.removeprefix("fused_") + "".join(f"_{v}" for v in fixed.values() if i)
        pattern = op.pattern(**fixed)
        with pattern:
            operands = [Value(pattern, n.id) for n in pattern.nodes[: len(op.operands)]]
            attrs = {p.name: AttrVar(p.name) for p in op.attributes} | fixed
            body, made = pattern.output_ids[0], op(*operands, **attrs).named(ROOT).id
        fusing, opening = _lines(op)
        yield Rule(f"fuse_{name}", label, op.safety, op.rule, pattern, body, made, (), op.phases, True, math=fusing)
        opened, conditions = "→".join(reversed(label.split("→"))), (written(ROOT),)
        yield Rule(f"open_{name}", opened, op.safety, op.rule, pattern, made, body, conditions, op.phases, math=opening)


def _lines(op: Op) -> tuple[str, str]:
    """Return the mathematics of the two rules of a fused op, whose docstring begins with its body and types."""
    body, typed, _ = (inspect.getdoc(op.rule) or "").partition("\n")[0].partition(": ")
    sides = body.removesuffix(", elementwise"), f"{op.name}({', '.join(op.operands)})"
    return (" → ".join(sides), " → ".join(reversed(sides))) if typed else ("", "")

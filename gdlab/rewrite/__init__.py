"""`optimize`: equality saturation of a graph under the rules of `RULES`, and extraction of the cheapest equal one."""

from gdlab.rewrite.engine.saturate import Budget
from gdlab.rewrite.explain.near_misses import Missed
from gdlab.rewrite.explain.report import Derivation, Iteration, OptimizeReport, RuleStat
from gdlab.rewrite.optimizer import optimize
from gdlab.rewrite.rules import RULES, RuleTable, rule
from gdlab.rewrite.rules.compositions import attr_compose
from gdlab.rewrite.rules.conditions import (
    attr_eq,
    const_eq,
    dtype,
    finite,
    is_param,
    not_output,
    rank,
    shape_eq,
    single_use,
)
from gdlab.rewrite.rules.measures import last_axis, leading_axes, mean_factor
from gdlab.rewrite.rules.pattern import Matrix, Rewrite, Rule

__all__ = [
    "Budget",
    "Derivation",
    "Iteration",
    "Matrix",
    "Missed",
    "OptimizeReport",
    "RULES",
    "Rewrite",
    "Rule",
    "RuleStat",
    "RuleTable",
    "attr_compose",
    "attr_eq",
    "const_eq",
    "dtype",
    "finite",
    "is_param",
    "last_axis",
    "leading_axes",
    "mean_factor",
    "not_output",
    "optimize",
    "rank",
    "rule",
    "shape_eq",
    "single_use",
]

"""`optimize`: equality saturation of a graph under the rules of `RULES`, and extraction of the cheapest equal one."""

from gdlab.rewrite.conditions import (
    attr_compose,
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
from gdlab.rewrite.egraph import Budget
from gdlab.rewrite.measures import last_axis, leading_axes, mean_factor
from gdlab.rewrite.pattern import Matrix, Rewrite, Rule
from gdlab.rewrite.pipeline import optimize
from gdlab.rewrite.report import Derivation, Iteration, Missed, OptimizeReport, RuleStat
from gdlab.rewrite.rules import RULES, RuleTable, rule

rules = RULES  # the table, as gdlab.rules; the module of this name is reached by `from gdlab.rewrite.rules import …`

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
    "rules",
    "shape_eq",
    "single_use",
]

"""Every rewrite rule, stated once: `RULES` is the complete table, `@rule` adds to it."""

# in the order of the table
from gdlab.rewrite.rules import (  # noqa: I001
    prepare as prepare,
    plain as plain,
    packing as packing,
    recognize as recognize,
    recognize_attention as recognize_attention,
    recognize_loss as recognize_loss,
    recognize_rotary as recognize_rotary,
)
from gdlab.rewrite.rules.rule_table import RULES, RuleTable, rule

__all__ = ["RULES", "RuleTable", "rule"]

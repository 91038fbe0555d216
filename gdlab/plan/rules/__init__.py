"""Every update rule: `RULES["adam"]`. A module of this folder that registers a rule is all that a new rule needs."""

import importlib
import pkgutil

from gdlab.plan.rules.rule_record import RULES, Number, NumberKind, UpdateBuilder, UpdateRule, rule_of, update_rule

__all__ = ["RULES", "Number", "NumberKind", "UpdateBuilder", "UpdateRule", "rule_of", "update_rule"]

for _module in sorted(module.name for module in pkgutil.iter_modules(__path__)):
    importlib.import_module(f"{__name__}.{_module}")

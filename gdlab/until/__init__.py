"""What ends or interrupts a run, in words: conditions (`--until`), breakpoints (`EVENT [if TEST]`), watched tensors."""

from gdlab.until.events import Break, parse_break
from gdlab.until.grammar import FIGURES, ConditionError, NoValue, StopTest, parse_condition, parse_test
from gdlab.until.lookout import Lookout, Moment, Watched

__all__ = [
    "FIGURES",
    "Break",
    "ConditionError",
    "Lookout",
    "Moment",
    "NoValue",
    "StopTest",
    "Watched",
    "parse_break",
    "parse_condition",
    "parse_test",
]

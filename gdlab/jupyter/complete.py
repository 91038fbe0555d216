"""Completion for `%%graph` cells and the gdlab magics, in every front end, without JavaScript."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from IPython.core.completer import CompletionContext, SimpleCompletion, SimpleMatcherResult, context_matcher

from gdlab.jupyter.cell import op_names
from gdlab.op import REGISTRY
from gdlab.rewrite import rules
from gdlab.study import Study

_WORD = re.compile(r"[\w∂]*$")
_CALL = re.compile(r"(\w+)\(([^()]*)$")
_MAGIC = re.compile(r"\s*%{1,2}(graph\w*)")
_SHOW = ("opt", "grad", "plan", "arena", "kernels", "session", "rewrites", "text")
_VALUES: Mapping[str, tuple[str, ...]] = {"--show": _SHOW, "-b": (), "--device": ("auto", "wgpu", "cpu")}


def candidates(
    text: str, cursor_line: int, before: str, variables: Mapping[str, Any], options: Mapping[str, Iterable[str]]
) -> list[str]:
    """What fits at the cursor: `text` is the whole cell, `before` its line up to the cursor, `options` per magic name.

    Empty where the cell is none of ours.
    """
    magic = _MAGIC.match(before) if cursor_line == 0 else None
    if magic is not None:
        return _option_candidates(magic[1], before, variables, options)
    if not text.lstrip().startswith("%%graph") or cursor_line == 0:
        return []
    word = _WORD.search(before)
    prefix = word[0] if word else ""
    if before[: len(before) - len(prefix)].endswith("."):
        return [n for n in REGISTRY if n.startswith(prefix) and REGISTRY[n].operands and REGISTRY[n].kind != "private"]
    names = [*_keywords(before), *_assigned(text), *op_names(), *(n for n in variables if not n.startswith("_"))]
    return [n for n in dict.fromkeys(names) if n.startswith(prefix)]


def _keywords(before: str) -> list[str]:
    call = _CALL.search(before)
    op = REGISTRY.get(call[1]) if call else None
    return [f"{p.name}=" for p in op.attributes] if op else []


def _assigned(text: str) -> list[str]:
    return re.findall(r"^\s*(\w+)\s*=[^=]", text, re.MULTILINE)


def _option_candidates(
    magic: str, before: str, variables: Mapping[str, Any], options: Mapping[str, Iterable[str]]
) -> list[str]:
    words = before.split()
    last = "" if before.endswith(" ") else words[-1]
    previous = words[-1] if before.endswith(" ") else words[-2] if len(words) > 1 else ""
    if previous in ("--no", "--only"):
        found = [r.name for r in rules]
    elif previous in _VALUES and _VALUES[previous]:
        found = list(_VALUES[previous])
    elif last.startswith("-"):
        found = list(options.get(magic, ()))
    else:
        found = [n for n, v in variables.items() if isinstance(v, Study)]
    return [n for n in found if n.startswith(last)]


def make_matcher(shell: Any, options: Mapping[str, Iterable[str]]) -> Any:
    """The matcher that `%load_ext gdlab` appends to the shell's completer."""

    @context_matcher(identifier="gdlab")
    def gdlab_matcher(context: CompletionContext) -> SimpleMatcherResult:
        lines = context.full_text.split("\n")
        before = lines[context.cursor_line][: context.cursor_position]
        found = candidates(context.full_text, context.cursor_line, before, shell.user_ns, options)
        kept = [SimpleCompletion(text, type="gdlab") for text in found]
        return {"completions": kept, "suppress": bool(kept)}

    return gdlab_matcher

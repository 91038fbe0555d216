"""Completion for `%%graph` cells and the gdlab magics, in every front end, without JavaScript."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from IPython.core.completer import CompletionContext, SimpleCompletion, SimpleMatcherResult, context_matcher

from gdlab.compiled import CompiledGraph
from gdlab.devices.choose import DEVICES
from gdlab.distributed.clusters import Cluster
from gdlab.distributed.points import COMPILE_KEYS, RULE_KEYS
from gdlab.eager import EagerSession
from gdlab.graph import Graph
from gdlab.jupyter.cell import op_names
from gdlab.op import REGISTRY
from gdlab.plan.records import ExecutionPlan
from gdlab.record.graph_session import GraphSession
from gdlab.rewrite import RULES, OptimizeReport
from gdlab.session import Session
from gdlab.session.run.breakpoints import EVENTS, known_names
from gdlab.study.study import Study
from gdlab.view.document.document import Document

_WORD = re.compile(r"[\w∂]*$")
_CALL = re.compile(r"(\w+)\(([^()]*)$")
_MAGIC = re.compile(r"\s*%{1,2}(graph\w*|eager)")
# Values that are proposed where others may be given, too: a closed set is the `choices` of its option.
_VALUES: Mapping[str, tuple[str, ...]] = {
    "--device": DEVICES,
    "--feed": ("random", "random:0"),
    "--set": tuple(f"{key}=" for key in (*RULE_KEYS, *COMPILE_KEYS)),
}
# Per magic its options, each with the values of which it takes one: none of a free value; null: a flag.
Options = Mapping[str, Mapping[str, tuple[str, ...] | None]]
# What a magic's NAME may be; others take a study.
_KINDS: Mapping[str, tuple[type, ...]] = {
    "graph": (Study, Graph, OptimizeReport, ExecutionPlan, Session, CompiledGraph, EagerSession, Document),
    "eager": (EagerSession,), "graph_compiled": (CompiledGraph, Study), "graph_record": (GraphSession,),
}  # fmt: skip


def candidates(text: str, cursor_line: int, before: str, variables: Mapping[str, Any], options: Options) -> list[str]:
    """Return the completions that fit at the cursor: `text` is the whole cell, `before` its line up to the cursor.

    Empty where the cell is none of ours.
    """
    magic = _MAGIC.match(before) if cursor_line == 0 else None
    if magic is not None:
        return _option_candidates(magic[1], before, variables, options)
    if not text.lstrip().startswith(("%%graph", "%%eager")) or cursor_line == 0:
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


def _option_candidates(magic: str, before: str, variables: Mapping[str, Any], options: Options) -> list[str]:
    words, known = before.split(), options.get(magic, {})
    last = "" if before.endswith(" ") else words[-1]
    previous = words[-1] if before.endswith(" ") else words[-2] if len(words) > 1 else ""
    if len(words) == 1 and last:  # the magic's own name
        return []
    if previous in ("--no", "--only", "--enable"):
        found = [text for r in RULES for text in (r.name, r.label)]
    elif previous == "--around":
        found = _node_names(words, variables)
    elif previous == "--feed":
        found = [*_VALUES[previous], *(n for n, v in variables.items() if _is_feed(n, v))]
    elif previous == "--on":
        found = ["local", "mpi", *(n for n, v in variables.items() if _is_cluster(n, v))]
    elif (values := known.get(previous)) is not None:
        found = list(values or _VALUES.get(previous, ()))
    elif last.startswith("-"):
        found = [name for name in known if name.startswith("--")]
    elif len(words) > 2 - before.endswith(" ") and magic in ("graph_watch", "graph_look", "graph_break"):
        found = _inside(magic, words, last, variables)
    else:
        kinds = _KINDS.get(magic, (Study,))
        found = [n for n, v in variables.items() if isinstance(v, kinds) and (not n.startswith("_") or n == "_graph")]
    return [n for n in found if n.startswith(last)]


def _node_names(words: list[str], variables: Mapping[str, Any]) -> list[str]:
    """Return the named nodes of the study on the line."""
    study = next((v for w in words if isinstance(v := variables.get(w), Study)), None)
    return list(dict.fromkeys(n.name for n in study.graph if n.name)) if study is not None else []


def _inside(magic: str, words: list[str], last: str, variables: Mapping[str, Any]) -> list[str]:
    """Complete the argument of a watch or breakpoint: an event first, then its node, kernel or tensor."""
    study = next((v for w in words if isinstance(v := variables.get(w), Study)), None)
    if magic == "graph_break" and len(words) - bool(last) == 2:
        return list(EVENTS)
    if study is not None and study.has_session:
        return known_names(study.session)
    return _node_names(words, variables)


def _is_cluster(name: str, value: Any) -> bool:
    far = isinstance(value, Cluster) or type(value).__module__.startswith("ipyparallel.")
    return far and not name.startswith("_") and not isinstance(value, type)


def _is_feed(name: str, value: Any) -> bool:
    loader = hasattr(value, "next_batch")
    plain = isinstance(value, dict) or (callable(value) and not isinstance(value, type) and hasattr(value, "__code__"))
    return not name.startswith("_") and (loader or plain)


def fragment(cursor_line: int, before: str) -> str:
    """Return the end of the line that a completion replaces: an option's whole value, or a name."""
    if cursor_line == 0 and _MAGIC.match(before):
        return "" if before.endswith(" ") else before.split()[-1]
    found = _WORD.search(before)
    return found[0] if found else ""


def make_matcher(shell: Any, options: Options) -> Any:
    """Return the matcher that `%load_ext gdlab` appends to the shell's completer."""

    @context_matcher(identifier="gdlab")
    def gdlab_matcher(context: CompletionContext) -> SimpleMatcherResult:
        lines = context.full_text.split("\n")
        before = lines[context.cursor_line][: context.cursor_position]
        found = candidates(context.full_text, context.cursor_line, before, shell.user_ns, options)
        kept = [SimpleCompletion(text, type="gdlab") for text in found]
        # IPython's own token ends at `+` and `→`, which labels of rules contain
        return {"completions": kept, "suppress": bool(kept), "matched_fragment": fragment(context.cursor_line, before)}

    return gdlab_matcher

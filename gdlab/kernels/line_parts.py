"""Return the part of a kernel's work that each of its lines does: `read 0`, `loop`, `work`, `meet`, `store`, `where`.

What the joiner writes itself it marks as it writes (`WgslText.working`). A file of `shaders/` is read by its contract
(`gdlab/kernels/custom.py`): a line that calls an operand's accessor reads that operand, one that calls a store writes,
one that calls a sum or a maximum over the unit exchanges; a function of the file does for its callers what its lines
do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gdlab.kernels.pieces import LOOP, MEET, STORE, WHERE, WORK, WgslText, read_part
from gdlab.plan.dispatch import Dispatch

# (part, the runs of lines that do it: first, last, …), 1-based
LineParts = tuple[tuple[str, tuple[int, ...]], ...]

_FUNCTION = re.compile(r"^fn (\w+)\(")
_CALL = re.compile(r"\b([A-Za-z_]\w*)\(")
_BINDING = re.compile(r"@binding\((\d+)\)")
_EXCHANGES = {"workgroupBarrier", "max_of_unit", "sum_of_unit", "sums_of_unit", "sum_of_earlier"}
_QUIET = re.compile(r"[\s{}]*(//.*)?$")  # a comment, a brace, nothing


def line_parts(text: WgslText, d: Dispatch) -> LineParts:
    """Return for every part the lines of a finished kernel that do it; a line may do several, or none."""
    reading = _Reading(text, d)
    found: dict[str, list[int]] = {}
    for n in range(1, len(text.lines) + 1):
        for part in reading.parts_of(n):
            found.setdefault(part, []).append(n)
    return tuple((part, _runs(lines)) for part, lines in sorted(found.items()))


def _runs(lines: list[int]) -> tuple[int, ...]:
    """Return first and last of every run of consecutive lines, flat."""
    ends: list[int] = []
    for line in lines:
        if ends and ends[-1] == line - 1:
            ends[-1] = line
        else:
            ends += [line, line]
    return tuple(ends)


@dataclass
class _Reading:
    """The functions of a text, and the parts that a call of each does."""

    text: WgslText
    d: Dispatch
    functions: dict[str, range] = field(default_factory=dict)  # 1-based lines
    inside: dict[int, str] = field(default_factory=dict)  # line → its function
    calls: dict[str, frozenset[str]] = field(default_factory=dict)
    exchanges: bool = False

    def __post_init__(self) -> None:
        self.exchanges = any("workgroupBarrier()" in line for line in self.text.lines)
        if self.exchanges:  # a unit of work that one invocation has alone finds sums and maxima by itself
            self.calls |= {name: frozenset((MEET,)) for name in _EXCHANGES}
        self.calls |= self._accessors()
        self._find_functions()

    def _accessors(self) -> dict[str, frozenset[str]]:
        """Map the functions that read an operand to the part that they do."""
        by_binding = {buffer: i for i, (buffer, _) in enumerate(self.d.bindings)}
        found: dict[str, frozenset[str]] = {}
        for k, operand in reversed(list(enumerate(self.d.operands))):
            read = frozenset((read_part(k),))
            name = self.d.custom.names[k] if self.d.custom and k < len(self.d.custom.names) else ""
            found |= {f"{name}_at": read, f"{name}_four": read} if name else {}
            if operand.dtype.is_storage:
                variable = f"in{by_binding[operand.buffer]}"
                found |= {f"{variable}_decoded": read, f"{variable}_four": read}
        return found

    def _find_functions(self) -> None:
        lines, at = self.text.lines, 0
        while at < len(lines):
            match = _FUNCTION.match(lines[at])
            at += 1
            if match is None:
                continue
            first = at
            while not lines[at - 1].endswith("}") or (at > first and lines[at - 1] != "}"):
                at += 1
            self.functions[match[1]] = range(first, at + 1)
            self.inside |= dict.fromkeys(self.functions[match[1]], match[1])

    def does(self, name: str) -> frozenset[str]:
        """Return the parts that a call of this function does, apart from arithmetic: WGSL knows no recursion."""
        if name not in self.calls:
            if name.startswith("store"):
                empty = len(self.functions.get(name, ())) == 2  # of a result that the dispatch lacks
                return frozenset(() if empty else (STORE,))
            self.calls[name] = frozenset()
            done = (part for n in self.functions.get(name, ()) for part in self._parts_of_calls(n))
            self.calls[name] = frozenset(p for p in done if p not in (WHERE, LOOP, WORK))
        return self.calls[name]

    def _parts_of_calls(self, n: int) -> tuple[str, ...]:
        """Return the parts that a line is marked with, or those that its calls do."""
        if n in self.text.parts:
            return self.text.parts[n]
        line = self.text.lines[n - 1].partition("//")[0]
        called = [name for name in _CALL.findall(line) if not _FUNCTION.match(line) or name != self.inside.get(n)]
        return tuple(sorted({part for name in called for part in self.does(name)}))

    def parts_of(self, n: int) -> tuple[str, ...]:
        """Return the parts that line `n` does."""
        line, own = self.text.lines[n - 1], self.inside.get(n, "")
        if _QUIET.match(line):
            return ()
        if not own:
            return self.text.parts.get(n) or self._declared(line)
        known = self._parts_of_calls(n)
        if known:
            return (LOOP, *known) if line.lstrip().startswith("for (") and LOOP not in known else known
        if line.lstrip().startswith("for ("):
            return (LOOP,)
        if own in ("unit", "main"):
            return (WORK,) if any(self._begun(before) for before in range(self.functions[own].start, n)) else (WHERE,)
        whole = self.does(own)
        return tuple(whole) if len(whole) == 1 else (WORK,)

    def _begun(self, n: int) -> bool:
        """Return whether a line loops, reads or writes: lines before it only compute where the work lies."""
        return bool(self._parts_of_calls(n)) or self.text.lines[n - 1].lstrip().startswith("for (")

    def _declared(self, line: str) -> tuple[str, ...]:
        """Return the parts of a declaration: of a binding its reads and stores, of workgroup memory the exchange."""
        match = _BINDING.search(line)
        if match and int(match[1]) < len(self.d.bindings):
            buffer, access = self.d.bindings[int(match[1])]
            reads = [read_part(k) for k, o in enumerate(self.d.operands) if o.buffer == buffer]
            return (*reads, STORE) if access == "w" else tuple(reads)
        if line.startswith("var<workgroup>"):
            return (MEET,) if self.exchanges else (WORK,)
        return (WHERE,) if line.startswith("@compute") else ()

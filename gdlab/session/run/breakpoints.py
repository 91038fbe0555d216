"""Breakpoints in words: `parse_break(1, "node h if absmax(h) > 1e3", session)`.

    breakpoint := EVENT | EVENT if TEST                                     TEST: see `stop_conditions.py`
    EVENT := node NAME | kernel LABEL | dispatch K | write NAME | step N | nonfinite | nonfinite NAME | loss rises N

Events of dispatches come when the dispatch has run, so that its result can be looked at; the others when a step is
over. NAME and LABEL may stand in quotes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from gdlab.base.errors import ArgumentError, GdlabError
from gdlab.base.words import listed, natural, near_hint, plural
from gdlab.plan.dispatch import Dispatch
from gdlab.session import Session
from gdlab.session.run.stop_conditions import ConditionError, StopTest, parse_test
from gdlab.session.tensors import SessionTensor, dispatch_of, find_tensor, tensor_names

Kind = Literal["node", "kernel", "dispatch", "write", "step", "nonfinite", "loss"]
FORMS = "node NAME, kernel LABEL, dispatch K, write NAME, step N, nonfinite [NAME], loss rises N"
_IF = re.compile(r"""(?:[^\s"']|"[^"]*"|'[^']*')+""")  # words, quoted ones whole
_QUOTES = "\"'"
_MOST_LISTED = 8


@dataclass(frozen=True, slots=True)
class When:
    """An event: `number` of `dispatch`, `step` and `loss rises`; `name` of the others; `tensor` of `write` and
    `nonfinite NAME`."""

    kind: Kind
    name: str = ""
    number: int = 0
    tensor: SessionTensor | None = None

    @property
    def inside(self) -> bool:
        """Whether the event happens at a dispatch, inside a step."""
        return self.kind not in ("step", "loss")

    def dispatches(self, made: Sequence[Dispatch]) -> list[int]:
        """Return the dispatches of a step at which the event may happen, by their place in the step."""
        match self.kind:
            case "node" | "dispatch":
                return [self.number] if self.number < len(made) else []
            case "kernel":
                return [k for k, d in enumerate(made) if self.name in names_of(d)]
            case "write":
                assert self.tensor is not None  # a write has one
                return self.tensor.writers(made)
            case "nonfinite":
                if self.tensor is None:
                    return list(range(len(made)))
                return sorted({*self.tensor.writers(made), *([0] if self.tensor.leaf else [])})
            case _:
                return []


@dataclass(slots=True)
class Break:
    """A breakpoint: its text, its event, its condition, and how often it stopped a run."""

    id: int
    text: str
    when: When
    test: StopTest | None = None
    hits: int = 0
    last_step: int = -1
    last_dispatch: int = -1

    def __str__(self) -> str:
        last = f", last in step {self.last_step}" if self.hits else ""
        return f"{self.id}  {self.text}  {plural(self.hits, 'hit')}{last}"


def names_of(dispatch: Dispatch) -> tuple[str, str, str]:
    """Return the names of a kernel: its label, the label without sizes, its family."""
    return dispatch.label, dispatch.label.split("[")[0], dispatch.entry


def parse_break(id: int, text: str, session: Session) -> Break:
    """Parse a breakpoint of a session; names are looked up now. `ConditionError` with a caret for what
    cannot be read or can never happen."""
    if not isinstance(text, str):
        raise ArgumentError("break", "text", type(text).__name__, "EVENT [if TEST], such as 'step 10'")
    words = [(m[0], m.start()) for m in _IF.finditer(text)]
    at = next((i for i, (word, _) in enumerate(words) if i > 0 and word == "if"), len(words))
    when = _event(text, words[:at], session)
    test = None
    if at < len(words):
        test = parse_test(text, session, "break", words[at][1] + len("if"))
    return Break(id, " ".join(text.split()), when, test)


def _event(text: str, words: Sequence[tuple[str, int]], session: Session) -> When:
    kind = words[0][0] if words else ""
    if kind not in EVENTS:
        wanted = f"one of {FORMS}{near_hint(kind, EVENTS)}"
        raise ConditionError("break", kind or "nothing", wanted, text, words[0][1] if words else 0, "event")
    rest, start = words[1:], words[1][1] if len(words) > 1 else len(text)
    said = text[start : rest[-1][1] + len(rest[-1][0])] if rest else ""
    if len(said) > 1 and said[0] in _QUOTES and said[-1] == said[0] and len(rest) == 1:
        said, start = said[1:-1], start + 1
    try:
        return EVENTS[kind](said, session)
    except (_Refused, GdlabError) as error:
        raise ConditionError("break", str(error.given), error.wanted, text, start, error.what) from None


class _Refused(Exception):
    """An event that cannot be parsed."""

    def __init__(self, what: str, given: str, wanted: str) -> None:
        super().__init__(given)
        self.what, self.given, self.wanted = what, given or "nothing", wanted


def _node(said: str, session: Session) -> When:
    if not said:
        raise _Refused("event", "node", "node NAME")
    return When("node", said, dispatch_of(session, "break", said))


def _kernel(said: str, session: Session) -> When:
    known = [name for d in session.step_dispatches() for name in names_of(d)]
    if said not in known:
        wanted = "kernel LABEL" if not said else _listed(said, (d.label for d in session.step_dispatches()), known)
        raise _Refused("kernel", said, wanted)
    return When("kernel", said)


def _dispatch(said: str, session: Session) -> When:
    count = len(session.step_dispatches())
    number = natural(said)
    if number is None or number >= count:
        raise _Refused("dispatch", said, f"0 … {count - 1}: a step has {count} dispatches")
    return When("dispatch", number=number)


def _write(said: str, session: Session) -> When:
    if not said:
        raise _Refused("event", "write", "write NAME")
    tensor = find_tensor(session, "break", said)
    if not tensor.writers(session.step_dispatches()):
        hint = " (no update rule is set)" if session.optimizer.rule == "none" and tensor.leaf else ""
        raise _Refused("write", f"{said}, which no dispatch writes{hint}", "a tensor that a step writes")
    return When("write", said, tensor=tensor)


def _step(said: str, session: Session) -> When:
    number = natural(said)
    if not number:
        raise _Refused("step", said, "the number of a step, an int ≥ 1")
    return When("step", number=number)


def _nonfinite(said: str, session: Session) -> When:
    return When("nonfinite", said, tensor=find_tensor(session, "break", said) if said else None)


def _loss(said: str, session: Session) -> When:
    rises, _, text = said.partition(" ")
    number = natural(text.strip())
    if rises != "rises" or not number:
        raise _Refused("loss", said, "loss rises N: N steps one after the other, an int ≥ 1")
    if session.plan().loss_buffer is None:
        raise _Refused("loss", "a session without a loss", "a training session")
    return When("loss", number=number)


EVENTS: dict[str, Callable[[str, Session], When]] = {
    "node": _node,
    "kernel": _kernel,
    "dispatch": _dispatch,
    "write": _write,
    "step": _step,
    "nonfinite": _nonfinite,
    "loss": _loss,
}


def _listed(given: str, labels: Iterable[str], known: Sequence[str]) -> str:
    return f"one of {listed(list(dict.fromkeys(labels)), _MOST_LISTED)}{near_hint(given, known)}"


def known_names(session: Session) -> list[str]:
    """Return the names that may follow an event, for completion: tensors, then labels of kernels."""
    return [*tensor_names(session), *dict.fromkeys(d.label for d in session.step_dispatches())]

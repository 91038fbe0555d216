"""Display a drawn answer: HTML for notebooks, its text for terminals; one that is under way is replaced in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from IPython.display import display

from gdlab.study.parity import Check, CheckProgress
from gdlab.study.study import Study
from gdlab.view.answer.answer_html import answer_html
from gdlab.view.answer.answer_record import Answer
from gdlab.view.answer.making import check_answer, progress_answer, stopped_answer


def answer_bundle(answer: Answer) -> dict[str, str]:
    """Return the output of an answer; an unfinished one has no text, and shows nothing in a terminal."""
    text = {"text/plain": answer.text} if answer.text is not None else {}
    return {"text/html": answer_html(answer), **text}


def show_answer(answer: Answer) -> None:
    """Display an answer."""
    display(answer_bundle(answer), raw=True)


class AnswerOutput:
    """One output of a cell, which shows the newest answer."""

    def __init__(self) -> None:
        self.handle: Any = None

    def show(self, answer: Answer) -> None:
        """Show this answer in place of the last one."""
        if self.handle is None:
            self.handle = display(answer_bundle(answer), raw=True, display_id=True)
        else:
            self.handle.update(answer_bundle(answer), raw=True)


def show_check(study: Study, check: Callable[[Callable[[CheckProgress], None]], Check]) -> None:
    """Display the progress of a check, then its result; the progress remains if it is interrupted or fails."""
    output = AnswerOutput()
    last: list[CheckProgress] = []

    def tell(progress: CheckProgress) -> None:
        last[:] = [progress]
        output.show(progress_answer(progress, study))

    try:
        found = check(tell)
    except BaseException:
        if last:
            output.show(stopped_answer(last[0], study))
        raise
    output.show(check_answer(found, study))

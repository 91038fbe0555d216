"""Watch the steps of a run for NaN and infinity, and find the cause when the run has ended."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from gdlab.base.errors import GdlabError
from gdlab.base.words import sig
from gdlab.plan.dispatch import Dispatch
from gdlab.session import Session
from gdlab.session.run.earlier_state import Batch, EarlierState, same_loss
from gdlab.session.run.log import RunLog
from gdlab.session.run.nonfinite import Culprit

NanWatch = Literal["off", "loss", "parameters", "everything"]


class NonfiniteWatch:
    """A watch for NaN and infinity over one run: its checks return why the run must pause, or an empty string; call all
    on the owner thread."""

    def __init__(self, session: Session, log: RunLog) -> None:
        self.session, self.log = session, log
        self.mode: NanWatch = "loss"
        self.culprit: Culprit | None = None
        self.bad_step = 0  # the step, from 1, with a result that is not finite: all events of it have its number
        self._batch: tuple[int, Batch] = (-1, {})  # the step, from 0, whose inputs were set last
        self.earlier = EarlierState(session, keep=2)

    def begin(self) -> None:
        """Forget the bad step and the culprit of an earlier run."""
        self.bad_step, self.culprit = 0, None

    def forget_batches(self) -> None:
        """Forget the state and the inputs of earlier steps, after a reset."""
        self.earlier.forget()

    def set_inputs(self, step: int, batch: Batch) -> None:
        """Set the inputs of a step, and keep them for the search: losses arrive late."""
        self.earlier.check()  # before: the feed may have written parameters
        self._set_inputs(batch)
        self._batch = step, batch

    def before_step(self) -> str:
        """Store the state from time to time; look at the output of every dispatch of the next step, if everything is
        watched."""
        if self.mode == "off":
            self.earlier.forget()
            return ""
        earlier = self.earlier
        step = earlier.progress.steps
        fed = self._batch[0] == step
        if not fed:
            earlier.check()
        if step >= earlier.next and (reason := self._store_state()):
            return reason
        if earlier.step >= 0:
            earlier.batches.append(self._batch[1] if fed else {})
        if self.mode != "everything" or (culprit := self.session.search.first_bad()) is None:
            return ""
        return self._hit(step + 1, f"step {step + 1} would not be finite", culprit=culprit)

    @property
    def looks_at_each(self) -> bool:
        """Whether every step is looked at before the next."""
        return self.mode not in ("off", "loss")

    def most_further_steps(self, count: int) -> int:
        """Return how many of `count` further steps may follow the next one before the state is stored again."""
        if self.mode == "off":
            return count
        return max(0, min(count, self.earlier.next - self.earlier.progress.steps - 1))

    def before_more_steps(self, batches: Sequence[Batch]) -> None:
        """Note the inputs of further steps that follow the next one at once; empty where nothing is set."""
        if self.mode != "off" and self.earlier.step >= 0:
            self.earlier.batches.extend(batches)

    def _store_state(self) -> str:
        """Store the state, when no earlier step can turn out bad any more; return why the run must pause instead."""
        step, losses = self.session.progress.steps, self.log.losses
        if self.earlier.must_store():
            if reason := self.after_losses(self.log.add_losses(self.session.take_losses(True))):
                return reason
        elif not losses or losses[-1][0] != step:
            return ""
        self.earlier.store()
        return ""

    def after_step(self) -> str:
        """Look at parameters and gradients, if they are watched."""
        self.earlier.note()
        if self.mode not in ("parameters", "everything") or not (names := self.session.search.bad_tensors()):
            return ""
        step = self.session.step_count
        return self._hit(step, f"{names[0]} is not finite after step {step}")

    def after_losses(self, pairs: list[tuple[int, float]]) -> str:
        """Look at losses that became readable."""
        if self.mode == "off" or self.bad_step:
            return ""
        bad = next(((step, loss) for step, loss in pairs if not math.isfinite(loss)), None)
        if bad is None:
            return ""
        step, loss = bad
        return self._hit(step, f"loss is {sig(loss)} at step {step}")

    def name_break(self, number: int, dispatch: Dispatch) -> None:
        """Log the dispatch that has just run as the cause, if its result is not finite and a breakpoint stops there."""
        if (culprit := self.session.search.written_bad(dispatch)) is not None:
            self.culprit = culprit
            self.log.add(self.session.step_count + 1, "nonfinite", str(culprit), number)

    def find_cause(self) -> None:
        """Log the first dispatch with a result that is not finite, searched in the state before its step and with the
        inputs of that step; the session is afterwards as before."""
        if not self.bad_step or self.session.closed:
            return
        step = self.session.step_count
        if self.session.under_way:
            self.log.add(step, "note", "the cause is looked for between two steps: finish the step under way")
            return
        why = ""
        if self.culprit is None:
            try:
                why = self._search()
            except (GdlabError, MemoryError) as error:
                why = f"the search failed ({error})"
        if self.culprit is None:
            self.log.add(step, "note", f"the cause is not known: {why}; watch everything to stop before it happens")
        else:
            self.log.add(self.bad_step, "nonfinite", str(self.culprit), self.culprit.dispatch)

    def _hit(self, step: int, reason: str, culprit: Culprit | None = None) -> str:
        self.bad_step, self.culprit = step, culprit
        self.log.add(step, "nonfinite", reason)
        return reason

    def _search(self) -> str:
        """Search the steps from the stored state on, up to the bad one; return why no cause was found, or an empty
        string."""
        earlier, bad = self.earlier, self.bad_step
        if not 0 <= earlier.first < bad or earlier.first + len(earlier.batches) < bad:
            return f"no state before step {bad} was kept"
        now = EarlierState(self.session)
        now.store()
        if now.step < 0:
            return "there is no memory to search in"
        try:
            return self._search_steps(bad)
        finally:
            now.load()
            for batch in earlier.batches:
                self._set_inputs(batch)
            earlier.forget()

    def _search_steps(self, bad: int) -> str:
        """Repeat the steps before the bad one while parameters and losses are as they were then; search the last."""
        earlier, before, losses = self.earlier, EarlierState(self.session), dict(self.log.losses)
        search = self.session.search
        earlier.load()
        while (earlier.step >= bad or search.bad_parameters()) and earlier.drop_last():
            earlier.load()
        for step in range(earlier.step, bad):
            self._set_inputs(earlier.batch(step))
            if step + 1 < bad:
                before.store()
                loss = earlier.repeat(step)
                if not same_loss(loss, losses.get(step + 1, loss)):
                    return f"step {step + 1}, repeated, has another loss (does the feed reuse its arrays?)"
                if not search.bad_parameters():
                    continue
                before.load()
            self.culprit = search.first_bad_of(step)
            break
        return "" if self.culprit is not None else f"all values are finite when step {bad} is repeated"

    def _set_inputs(self, batch: Batch) -> None:
        set_input = self.session.values.set_input
        for name, data in batch.items():
            set_input(name, data)

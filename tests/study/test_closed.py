"""A closed study: its graphs stay readable, what needs the session is refused until it is reopened."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from counting import ONE, counter, made

from gdlab.base.errors import SessionError
from gdlab.study.study import Study

CLOSED = "graph counter: session: given closed, wanted reopen() first: the new session has none of the old one's values"
USES: dict[str, Callable[[Study], object]] = {
    "session": lambda study: study.session,
    "runner": lambda study: study.runner,
    "run": lambda study: study.run(1),
    "prepare": lambda study: study.prepare(feed=ONE),
    "step": lambda study: study.step(),
    "resume": lambda study: study.resume(),
    "reset": lambda study: study.reset(),
    "replay": lambda study: study.replay(),
    "trace": lambda study: study.trace(),
    "watch": lambda study: study.watch("w"),
    "break_at": lambda study: study.break_at("step 3"),
    "look": lambda study: study.look("w"),
    "back": lambda study: study.back(),
    "run_to": lambda study: study.run_to(0),
    "check_ready": lambda study: study.check_ready(),
}
CLOSES: dict[str, Callable[[Study], object]] = {
    "study": Study.close,
    "runner": lambda study: study.runner.close(),
    "session": lambda study: study.session.close(),
    "with": lambda study: study.session.__exit__(None, None, None),
}


@pytest.mark.parametrize("use", USES)
def test_a_closed_study_opens_no_session_by_itself(use: str) -> None:
    study = counter()
    study.run(3)
    study.close()
    with pytest.raises(SessionError) as caught:
        USES[use](study)
    assert str(caught.value) == CLOSED and not study.has_session


@pytest.mark.parametrize("close", CLOSES)
def test_however_a_session_was_closed_only_reopen_opens_another(close: str, device: str) -> None:
    study = counter(device)
    study.run(3)
    old = study.session
    CLOSES[close](study)
    with pytest.raises(SessionError, match="given closed, wanted reopen"):
        study.run(1, feed=ONE, init=0)
    assert study.reopen() is study.session is study.reopen() and study.session is not old
    study.session.initialize(zeros=True)
    study.run(2, feed=ONE, sgd=1.0)
    assert made(study) == 2
    study.close()


def test_what_replaced_a_study_is_named() -> None:
    study = counter()
    study.close("the newer counter")
    study.close()
    text = "given closed: it was replaced by the newer counter, wanted the newer counter, or reopen() first"
    with pytest.raises(SessionError, match=text.replace("(", r"\(").replace(")", r"\)")):
        study.run(1)


def test_a_closed_study_stays_readable() -> None:
    study = counter()
    study.run(3)
    rev, plan = study.rev, str(study.plan)
    study.close()
    assert str(study) and repr(study) == "<Study counter: 3 nodes, training, session closed>" or len(study.graph)
    assert study.summary() and study.plan and str(study.plan) == plan and study.doc.data and study.rev == rev
    assert study.check("random").ok and np.isfinite(study.feeds()["w"]).all()
    assert not study.has_session
    study.close()

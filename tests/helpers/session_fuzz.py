"""Random calls of a session, wrong ones most of all: `python session_fuzz.py SEED CALLS DEVICE`.

Each refused call must raise one of our errors and leave the session as it was. Prints how many went which way.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from session_state import W, X, Y, fitted, line, state_of

from gdlab.base.errors import GdlabError
from gdlab.session import Session, build_inference_session, build_session

NAMES = ("x", "y", "w", "b", "", "ww", "x ", None, 3, ("w",), "adam_m.w", "ü")
NUMBERS = (0, 1, -1, 0.5, 0.1, 2, 1e-3, float("nan"), float("inf"), -float("inf"), 1e39, 10**400, True, None, "1", 1j,
           np.float32(0.25), np.int64(2), np.array([1.0]), [])  # fmt: skip
COUNTS = (0, 1, 2, 3, -1, 7, 2**31, 2**63, 2**64, 10**400, 1.0, True, None, "2", np.uint8(1), float("nan"))


def arrays(rng: random.Random) -> Any:
    """Data that fits one of the tensors, or almost."""
    shape = rng.choice(((4, 3), (4, 2), (3, 2), (2,), (12,), (6,), (8,), (3, 4), (2, 3), (1, 2), (), (0,), (5,)))
    data: Any = np.array(np.random.default_rng(rng.randrange(99)).normal(size=shape))
    kind = rng.randrange(12)
    if kind == 0:
        return data.astype(complex)
    if kind == 1:
        return data.astype(str)
    if kind == 2:
        return data.tolist()
    if kind == 3:
        return np.full(shape, rng.choice((np.nan, np.inf, -np.inf, 1e39, 1e-40)))
    if kind == 4:
        day = np.datetime64("2020")
        return rng.choice((None, "abc", object(), {}, [[1], [2, 3]], lambda: 0, b"12", range(12), day))
    if kind == 5:
        return data.astype(np.int64) * 10**9
    return data.astype(rng.choice((np.float32, np.float64, np.float16)))


def outs(rng: random.Random) -> Any:
    """Valid and invalid values of `out=`."""
    return rng.choice((None, None, np.zeros(12, np.float32), np.zeros(2, np.float32), np.zeros(12), [0.0] * 12, "out",
                       np.zeros((4, 6), np.float32)[:, ::2], np.broadcast_to(np.float32(0), (12,))))  # fmt: skip


Call = Callable[[Session, random.Random], Any]


def table(folder: Path) -> dict[str, Call]:
    """One call of every method, with arguments drawn at random."""
    name, number, count = (lambda r: r.choice(NAMES)), (lambda r: r.choice(NUMBERS)), (lambda r: r.choice(COUNTS))
    file = lambda r: r.choice((folder / "a", folder / "b", folder / "bad", folder, "", None, 7, "\0"))  # noqa: E731
    return {
        "set_input": lambda s, r: s.set_input(name(r), arrays(r)),
        "set_input_u32": lambda s, r: s.set_input_u32(name(r), arrays(r)),
        "set_parameter": lambda s, r: s.set_parameter(name(r), arrays(r)),
        "upload_param": lambda s, r: s.upload_param(name(r), arrays(r)),
        "read_param": lambda s, r: s.read_param(name(r), outs(r)),
        "read_params": lambda s, r: s.read_params([name(r) for _ in range(r.randrange(4))]),
        "read_param_grad": lambda s, r: s.read_param_grad(name(r), outs(r)),
        "read_buffer": lambda s, r: s.read_buffer(count(r)),
        "param_size": lambda s, r: s.param_size(name(r)),
        "has": lambda s, r: (s.has_parameter(r.choice(NAMES[:8])), s.has_input("x"), s.has_param_grad("w")),
        "names": lambda s, r: (s.param_names(), s.input_names(), s.num_outputs(), s.adam_step_count()),
        "initialize": lambda s, r: s.initialize(count(r), r.random() < 0.5),
        "step": lambda s, r: s.step(),
        "steps": lambda s, r: [s.step() for _ in range(3)],
        "wait": lambda s, r: s.wait(),
        "read_loss": lambda s, r: s.read_loss(),
        "read_output": lambda s, r: s.read_output_by_index(count(r), outs(r)),
        "set_learning_rate": lambda s, r: s.set_learning_rate(number(r)),
        "set_adam": lambda s, r: s.set_adam(number(r), *(number(r) for _ in range(r.randrange(4)))),
        "set_adamw": lambda s, r: s.set_adamw(number(r), weight_decay=number(r)),
        "set_laprop": lambda s, r: s.set_laprop(number(r)),
        "sgd_step": lambda s, r: s.sgd_step(number(r)),
        "sgd_step_cpu": lambda s, r: s.sgd_step_cpu(number(r)),
        "adam_step": lambda s, r: s.adam_step(number(r)),
        "set_lr_multiplier": lambda s, r: s.set_lr_multiplier(name(r), number(r)),
        "clear_lr_multipliers": lambda s, r: s.clear_lr_multipliers(),
        "set_grad_clip_norm": lambda s, r: s.set_grad_clip_norm(number(r)),
        "set_adaptive_grad_clip": lambda s, r: s.set_adaptive_grad_clip(number(r), number(r)),
        "set_grad_accumulate": lambda s, r: s.set_grad_accumulate(count(r)),
        "zero_grad": lambda s, r: s.zero_grad(),
        "clear_optimizer": lambda s, r: s.clear_optimizer(),
        "read_adam_m": lambda s, r: s.read_adam_m(name(r)),
        "read_adam_v": lambda s, r: s.read_adam_v(name(r)),
        "write_adam_m": lambda s, r: s.write_adam_m(name(r), arrays(r)),
        "write_adam_v": lambda s, r: s.write_adam_v(name(r), arrays(r)),
        "set_adam_step_count": lambda s, r: s.set_adam_step_count(count(r)),
        "read_node": lambda s, r: s.read_node(count(r), r.choice(("forward", "full", "both", None))),
        "read_node_by_name": lambda s, r: s.read_node_by_name(name(r)),
        "step_debug": lambda s, r: s.step_debug(),
        "trace_dispatches": lambda s, r: s.trace_dispatches(number(r)),
        "norms": lambda s, r: (s.read_all_param_norms(), s.read_all_param_grad_norms()),
        "set_profiling": lambda s, r: s.set_profiling(r.random() < 0.3),
        "set_profiling_window": lambda s, r: s.set_profiling_window(count(r), count(r)),
        "gpu_timings": lambda s, r: s.gpu_timings(),
        "capture_profile": lambda s, r: s.capture_profile(r.choice((0, 1, 2, None, "1", -3))),
        "memory_summary": lambda s, r: str(s.memory_summary()),
        "save_checkpoint": lambda s, r: s.save_checkpoint(file(r)),
        "load_checkpoint": lambda s, r: s.load_checkpoint(file(r)),
    }


def beside(call: Callable[[], Any]) -> Any:
    """The call on a thread of its own."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append((call(), None))
        except BaseException as error:
            found.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    result, error = found[0]
    if error is not None:
        raise error
    return result


def run(seed: int, calls: int, device: str) -> str:
    rng = random.Random(seed)
    done = refused = 0
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "bad").write_bytes(rng.randbytes(500))
        methods = table(Path(folder))
        training, fresh = fitted(build_session(line(), device)), build_session(line(), device)
        reading, closed = build_inference_session(line(), device), build_session(line(), device)
        closed.close()
        for number in range(calls):
            session = rng.choices((training, fresh, reading, closed), (8, 2, 2, 1))[0]
            name = rng.choice(tuple(methods))
            before = None if session.closed else state_of(session)
            what = f"seed {seed}, call {number}: {name} of {session!r}"
            try:
                if rng.random() < 0.1:
                    beside(lambda session=session, name=name: methods[name](session, rng))
                else:
                    methods[name](session, rng)
                done += 1
                assert not session.closed, f"{what} works although it is closed"
            except GdlabError as error:
                refused += 1
                assert str(error).count(": given ") >= 1 and ", wanted " in str(error), f"{what}: {error}"
                assert before is None or state_of(session) == before, f"{what} changed something: {error}"
            except AssertionError:
                raise
            except BaseException as error:
                raise AssertionError(f"{what} raised {type(error).__name__}: {error}") from error
            if number % 200 == 199:  # not for ever among NaN
                for n, data in (("x", X), ("y", Y)):
                    training.set_input(n, data)
                training.set_parameter("w", W)
    return f"seed {seed}: {done} done, {refused} refused"


if __name__ == "__main__":
    print(run(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))

"""The peers of the benchmark train the same networks as we do, and the race gives everybody a turn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks import peers
from benchmarks.peer_jax import Jax
from benchmarks.peer_models import CASES, ByHand, PeerCase
from gdlab import models

SMALL = {
    "mlp": PeerCase("mlp", models.MlpConfig(12, (9, 7), 5), 6),
    "xf": PeerCase("xf", models.TransformerLmConfig(11, 16, 2, 2, 2, 24), 7),
}


def losses(runner: Any, steps: int = 4) -> list[float]:
    found = []
    for _ in range(steps):
        runner.step()
        runner.wait()
        found.append(runner.read_loss())
    return found


def others(name: str) -> dict[str, Any]:
    """The peers of a network by name: NumPy by hand for the small one, and JAX."""
    return {"by hand": ByHand, "jax": Jax} if name == "mlp" else {"jax": Jax}


@pytest.mark.parametrize("rule", ["SGD", "Adam"])
@pytest.mark.parametrize("name", SMALL)
def test_the_losses_of_all_peers_agree(name: str, rule: str) -> None:
    ours = peers.Ours(SMALL[name], rule, "cpu")
    want = losses(ours)
    assert want[0] > want[3] and abs(want[0] - np.log(5 if name == "mlp" else 11)) < 0.6
    for who, make in others(name).items():
        np.testing.assert_allclose(losses(make(SMALL[name], rule)), want, rtol=2e-5, err_msg=who)
    ours.close()


def test_the_cases_are_those_of_the_notes() -> None:
    small = {name: case.weights().values() for name, case in CASES.items() if name != "xfM"}
    millions = {name: sum(a.size for a in weights) / 1e6 for name, weights in small.items()}
    assert {name: round(count, 2) for name, count in millions.items()} == {"mlp": 0.24, "xf": 4.33, "xfL": 25.31}
    big = CASES["xfM"].config
    assert isinstance(big, models.TransformerLmConfig)
    sizes = big.num_hidden_layers, big.hidden_size, big.num_attention_heads, big.intermediate_size, big.vocab_size
    assert sizes == (8, 1024, 16, 4096, 1024) and CASES["xfM"].length == 512
    assert CASES["xf"].graph(False).outputs[0].shape == (64, 256)


class Counts:
    """A contestant that only counts."""

    def __init__(self) -> None:
        self.steps = self.waits = 0

    def step(self) -> None:
        self.steps += 1

    def wait(self) -> None:
        self.waits += 1


class CountsAtOnce(Counts):
    """A contestant that also makes many steps in one call."""

    def step_many(self, count: int) -> None:
        self.steps += count


def test_everybody_makes_as_many_steps_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "WARM_SECONDS", 0.0)
    runners = {"gdlab cpu": CountsAtOnce(), "other": Counts()}
    found = peers.race(runners, rounds=2, seconds=1.0)
    for runner, ways in zip(runners.values(), (3, 2), strict=True):
        assert runner.steps == 1 + 2 * (20 + ways * 200) and runner.waits == 1 + 2 * (20 + 200 + ways - 1)
    assert [len(times) for times in found.values()] == [3, 2]
    assert all(0 < time < 1e-3 for times in found.values() for time in times)
    others = {"x": (4.0, 2.0), "y": (5.0, 1.0)}
    found = {"gdlab cpu": (2.0, 1.0), "wgpu (hardware)": (3.0, 0.5), **others}
    assert peers.ratio(found) == "0.50 / 0.50 (x / y)"
    assert peers.ratio(found | {"wgpu (hardware)": (3.0, 0.5, 0.25)}) == "0.50 / 0.25 (x / y)"
    assert peers.ratio({"gdlab cpu": (2.0, 1.0)}) == "–"


def test_a_peer_that_trains_something_else_is_found_out() -> None:
    peers.check({"a": 2.3, "b": 2.3001, "c": 2.2999})
    with pytest.raises(RuntimeError, match=r"b: the loss of step 3 is 2\.4"):
        peers.check({"a": 2.3, "b": 2.4, "c": 2.3})

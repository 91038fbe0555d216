"""A prediction of how a run scales: the formula of the specification, and the sentence that matters."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import networks
import pytest
from machine import needs
from shells import run

import gdlab as gd
from gdlab.distributed.calibration import ReductionTime, fitted
from gdlab.distributed.scaling import ENGINES, Scaling, ring_seconds, sizes_up_to
from gdlab.study.study import Study
from gdlab.view.picture.scaling_picture import scaling_picture
from gdlab.view.text.twin import twin

# a step of 17 ms, 536 MB of gradients, as measured on four H200 (spec/distributed.md §6)
XFM = Scaling("xfM", "H200", (1, 2, 4), 0.017, 536_000_000, 0.25, 0.4, 12.5e9, 5e-6, 1, "100Gb/s", "5us")


def test_the_formula() -> None:
    for n, k in ((1, 1), (2, 1), (4, 8), (64, 32)):
        row = XFM.row(n, k)
        ring = 2 * (n - 1) / n * 536e6 / 12.5e9 + 2 * (n - 1) * 5e-6
        assert row.ring == pytest.approx(ring, rel=1e-12)
        assert row.seconds == pytest.approx(k * 0.017 + ring + (0.65 if n > 1 else 0), rel=1e-12)
        assert row.speedup == pytest.approx(n * k * 0.017 / row.seconds, rel=1e-12)
        assert row.efficiency == pytest.approx(row.speedup / n)
    assert XFM.row(1).speedup == 1 and XFM.table()[2]["engines"] == 4


def test_the_sentence() -> None:
    """It names where the reduction takes longer than the step, and an accumulation that brings what it says."""
    assert XFM.sentence.startswith("already on 2 engines the reduction takes longer than the step: accumulate ")
    batches = int(re.search(r"accumulate ([\d,]+) batches", XFM.sentence)[1].replace(",", ""))  # type: ignore[index]
    assert XFM.row(4, batches).efficiency >= 0.8 > XFM.row(4, batches - 1).efficiency
    assert "the way through the host" in XFM.sentence
    small = replace(XFM, nbytes=4_000, read=0.0, write=0.0, engines=ENGINES, latency=1e-4)
    assert small.sentence.startswith("beyond 64 engines the reduction") and "the latency" in small.sentence
    assert replace(small, latency=0.0).sentence == (
        "up to 1,024 engines the step takes longer than the reduction: efficiency 100 % on 1,024 engines"
    )


def test_a_calibration_takes_the_place_of_a_link() -> None:
    """The ring formula finds the link that times were made with; measured times stand beside the prediction."""
    sizes = (64, 1 << 20, 1 << 24)
    times = [ReductionTime(n, size, ring_seconds(n, size, 2e9, 3e-5)) for n in (2, 4) for size in sizes]
    found = fitted(tuple(times))
    assert found.link == pytest.approx(2e9) and found.latency == pytest.approx(3e-5) and found.engines == (2, 4)
    for size in (64, 1 << 18, 1 << 24, 1 << 28):  # between and beyond the measured ones
        assert found.seconds(4, size) == pytest.approx(ring_seconds(4, size, 2e9, 3e-5))
    assert found.seconds(8, 64) is None
    scaling = replace(XFM, link=found.link, latency=found.latency, calibration=found)
    assert [row.engines for row in scaling.measured] == [2, 4]
    assert scaling.measured[1].seconds == pytest.approx(scaling.row(4).seconds)
    lines = str(scaling).splitlines()
    assert sum(line.startswith("measured between ") for line in lines) == 2 and lines[-1] == scaling.sentence


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({"link": "25gb/s"}, "link: given '25gb/s', wanted a number and one of kb/s"),
        ({"link": "25"}, "link: given '25'"),
        ({"link": "0Gb/s"}, "a bandwidth > 0"),
        ({"latency": "20"}, "latency: given '20', wanted a number and one of ns"),
        ({"latency": "-1us"}, "latency: given '-1us'"),
        ({"engines": (1, 0)}, "engines: given (1, 0), wanted several ints ≥ 1"),
        ({"engines": "64"}, "engines: given '64'"),
        ({"accumulate": 0}, "accumulate: given 0, wanted an int ≥ 1"),
    ],
)
def test_units_are_read_strictly(call: dict[str, Any], said: str) -> None:
    study = Study(networks.mlp(), train=True, device="cpu", name="mlp")
    with pytest.raises(gd.ArgumentError) as caught:
        study.scaling(**call)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_gradients_of_another_memory_are_read_and_written() -> None:
    needs("lavapipe")
    found = Study(networks.mlp(), train=True, device="wgpu", name="mlp").scaling(engines=(1, 2))
    assert found.read > 0 and found.write > 0 and "to the host in " in found.assumed
    assert found.rows[1].reduction > found.read + found.write


def test_step_and_gradients_are_measured_here(shell: Any) -> None:
    """Bits and bytes differ by eight; all gradients count; the study's own session is not touched."""
    study = shell.user_ns["mlp"] = Study(networks.mlp(), train=True, device="cpu", name="mlp")
    found = study.scaling(engines=(1, 2, 8), link="8Gb/s", latency="1ms", accumulate=2)
    assert found.nbytes == 4 * (64 * 128 + 128 + 128 * 10 + 10) and not study.has_session
    assert found.link == 1e9 and found.latency == 1e-3 and found.link == study.scaling((1,), link="1GB/s").link
    assert found.step > 0 and (found.read, found.write) == (0, 0) and "in memory of the host" in found.assumed
    text = str(found)
    assert text.endswith(found.sentence) and "speed-up" in text and repr(found).startswith("<Scaling of mlp: ")
    assert scaling_picture(found).count("<circle") == 6
    done, error = run(shell, "%graph_plan mlp --engines 6 --link 100Gb/s --static")
    assert error is None and "image/svg+xml" in done.outputs[-1].data
    assert done.outputs[-1].data["text/plain"].startswith("scaling of mlp, predicted: step ")
    assert "allreduce over 6 engines" in twin(study.doc, "plan")
    assert study.doc.data["allreduce"]["ring_seconds"] == pytest.approx(2 * 5 / 6 * found.nbytes / 12.5e9 + 10 * 20e-6)
    assert sizes_up_to(6) == (1, 2, 4, 6) and sizes_up_to(1) == (1,)
    done, error = run(shell, "%graph_plan mlp --engines 6 --link 100 --static")
    assert "link: given '100'" in f"{done.stderr}{error}"

"""The search of schedules: within its budget, nothing wrong chosen, everything found kept; no file is trusted."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import networks
import numpy as np
import pytest
from machine import needs
from matrix import MATRIX

from gdlab.base.errors import ArgumentError
from gdlab.base.types import DType
from gdlab.devices import tune as search
from gdlab.devices.base import DeviceInfo
from gdlab.devices.choose import device
from gdlab.devices.tune import (
    TuningProgress,
    check_seconds,
    difference,
    product_piece,
    tune,
    tuned_target,
    usual_products,
)
from gdlab.devices.tuning_file import Trial, TunedKernel, keep_kernels, kept_kernels, tuning_of, tuning_path
from gdlab.devices.wgpu.wgpu_device import WgpuDevice
from gdlab.kernels import tiles
from gdlab.plan import compile
from gdlab.plan.candidates import ProductKey, candidates, products_of
from gdlab.plan.spread import Schedule
from gdlab.plan.target import Limits, Target

SMALL = ProductKey(8, 12, 20)
OTHER = ProductKey(6, 12, 20, "km")
INFO = DeviceInfo("wgpu", "An Adapter (64 bits)", "software", "asked for")
FOUND = TunedKernel(str(SMALL), (Trial("registers 8x8", (8, 8), 2000), Trial("registers 4x4", (4, 4), 1000),
                                 Trial("registers 1x4", (1, 4), 0, "it does not compile")))  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "gdlab"


@pytest.fixture
def adapter() -> WgpuDevice:
    needs("lavapipe")
    found = device("wgpu:llvmpipe")
    assert isinstance(found, WgpuDevice)
    return WgpuDevice(found.gpu, "of this test")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[tuple[int, ...], float]]:
    """Seconds of a run by the numbers of its schedule; others take one second. Nothing is run for it."""
    times: dict[tuple[int, ...], float] = {}
    monkeypatch.setattr(search._Bench, "seconds", lambda self, s, once=False: times.get(s.params, 1.0))
    yield times


# which one is chosen --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("share, chosen", [(0.5, True), (0.95, True), (0.965, False), (1.0, False)])
def test_only_what_is_faster_than_the_noise_is_chosen(
    adapter: WgpuDevice, clock: dict[tuple[int, ...], float], share: float, chosen: bool
) -> None:
    rule, other, *_ = candidates(SMALL, adapter.target)
    clock[other.params] = share
    (found,) = tune(adapter, [SMALL], 60).values()
    assert found.chosen.params == (other.params if chosen else rule.params) and found.rule.params == rule.params
    assert {t.params for t in found.trials} == {s.params for s in candidates(SMALL, adapter.target)}
    table = tuned_target(adapter).tuning
    assert [(s.kernel, s.params, s.nanoseconds, s.rule_nanoseconds) for s in table.schedules] == (
        [(str(SMALL), other.params, round(share * 1e9), 10**9)] if chosen else []
    )


def test_a_real_search_keeps_times_of_every_schedule(adapter: WgpuDevice) -> None:
    (found,) = tune(adapter, [SMALL], 120).values()
    tried = [s.params for s in candidates(SMALL, adapter.target)]
    assert sorted(t.params for t in found.trials) == sorted(tried) and found.rule.params == tried[0]
    assert all(t.refused == "" and 1 <= t.nanoseconds < 10**10 for t in found.trials)
    assert kept_kernels(adapter.info) == {str(SMALL): found}


def broken(rows: int, columns: int, text: str | None) -> Callable[..., None]:
    """A writer of register tiles of which one size computes half of its columns, or is no WGSL."""

    def write(wgsl: Any, product: Any, params: tuple[int, ...]) -> None:
        if params == (rows, columns) and text is not None:
            wgsl.add(text)
        tiles.register_tiles(wgsl, product, (rows, 4) if params == (rows, columns) else params)

    return write


@pytest.mark.parametrize(
    "text, reason", [(None, r"element \d+ is 0, by the rule's schedule \d"), ("no wgsl", "tune: WGSL")]
)
def test_a_wrong_schedule_is_refused_and_never_chosen(
    adapter: WgpuDevice,
    clock: dict[tuple[int, ...], float],
    monkeypatch: pytest.MonkeyPatch,
    text: str | None,
    reason: str,
) -> None:
    key = ProductKey(64, 64, 23 if text is None else 27)  # kernels are remembered by what they are written from
    assert candidates(key, adapter.target)[0].params != (4, 16)
    monkeypatch.setitem(tiles.WRITERS, "registers", broken(4, 16, text))
    clock[4, 16] = 0.001
    (found,) = tune(adapter, [key], 60).values()
    (refused,) = (t for t in found.trials if t.params == (4, 16))
    assert re.match(reason, refused.refused) and refused.nanoseconds == 0 and found.chosen is not refused
    assert sum(t.refused != "" for t in found.trials) == 1
    assert kept_kernels(adapter.info)[str(key)] == found
    assert tuned_target(adapter).tuning.schedules == ()


def test_differences_beyond_the_tolerance_are_told() -> None:
    want = np.array([1, 2, 300], np.float32)
    assert difference(want * np.float32(1.0001), want) == ""
    assert difference(want * np.float32([1, 1.001, 1]), want) == "element 1 is 2.002, by the rule's schedule 2"
    assert difference(np.float32([1, 2, np.nan]), want).startswith("element 2 is NaN")
    assert difference(np.float32([1, np.inf, 300]), want).startswith("element 1 is ∞")


# the budget, and interrupts -------------------------------------------------------------------------------------------
def test_without_time_the_rules_schedule_of_the_first_product_is_timed(adapter: WgpuDevice) -> None:
    found = tune(adapter, [SMALL, OTHER], 0)
    assert [len(k.trials) for k in found.values()] == [1] and list(found) == [str(SMALL)]
    assert found[str(SMALL)].chosen.params == candidates(SMALL, adapter.target)[0].params


def test_a_slow_moment_at_the_begin_of_a_short_search_does_not_decide(
    adapter: WgpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule, other, *_ = candidates(SMALL, adapter.target)
    now, made = [0.0], list[tuple[int, ...]]()

    def seconds(bench: Any, schedule: Schedule, once: bool = False) -> float:
        made.append(schedule.params)
        if schedule != rule:
            now[0] = 10.0  # the time is over
            return 0.9
        return 1.0 if other.params not in made else 0.5

    monkeypatch.setattr(search._Bench, "seconds", seconds)
    monkeypatch.setattr(search.time, "monotonic", lambda: now[0])
    (found,) = tune(adapter, [SMALL], 5).values()
    assert {t.params: t.nanoseconds for t in found.trials} == {rule.params: 5 * 10**8, other.params: 9 * 10**8}
    assert found.chosen is found.rule


def test_a_search_goes_on_where_the_last_one_ended(
    adapter: WgpuDevice, clock: dict[tuple[int, ...], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each search has time for two candidates; the times of earlier ones are told as multiples of the rule's."""
    all_of_them = candidates(SMALL, adapter.target)
    rule, first, second, third, *_ = all_of_them
    now, checked, check = [0.0], list[Schedule](), search._Bench.check

    def counted(self: Any, schedule: Schedule) -> str | None:
        now[0] += 1
        checked.append(schedule)
        return check(self, schedule)

    monkeypatch.setattr(search._Bench, "check", counted)
    monkeypatch.setattr(search.time, "monotonic", lambda: now[0])
    clock |= {first.params: 0.5, second.params: 0.9}
    found = tune(adapter, [SMALL], 2.5)[str(SMALL)]
    assert checked == [rule, first, second] and found.chosen.params == first.params
    clock |= {rule.params: 2.0, first.params: 1.1, third.params: 0.8}
    again = tune(adapter, [SMALL], 2.5)[str(SMALL)]
    assert checked[3:] == [rule, first, third], "the best so far, and what is new"
    times = {t.params: t.nanoseconds for t in again.trials}
    assert times[second.params] == round(0.9 * 2e9) and again.chosen.params == third.params
    for _ in all_of_them:
        tune(adapter, [SMALL], 2.5)
    count = len(checked)
    assert len(kept_kernels(adapter.info)[str(SMALL)].trials) == len(all_of_them)
    tune(adapter, [SMALL], 2.5)
    assert len(checked) == count, "everything was tried"


def test_the_time_of_a_search_is_kept(adapter: WgpuDevice) -> None:
    begin, told = time.monotonic(), list[TuningProgress]()
    found = tune(adapter, [replace(SMALL, k=k) for k in range(24, 64)], 0.5, told.append)
    assert time.monotonic() - begin < 20 and 1 <= len(found) == len(told) < 40
    assert [(at.done, at.of) for at in told] == [(i, 40) for i in range(len(told))] and told[0].kernel in found


def test_an_interrupted_search_keeps_what_it_has_found(
    adapter: WgpuDevice, clock: dict[tuple[int, ...], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    check, left = search._Bench.check, [len(candidates(SMALL, adapter.target)) + 2]

    def interrupted(self: Any, schedule: Schedule) -> str | None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return check(self, schedule)

    monkeypatch.setattr(search._Bench, "check", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tune(adapter, [SMALL, OTHER], 60)
    kept = kept_kernels(adapter.info)
    assert len(kept[str(SMALL)].trials) == len(candidates(SMALL, adapter.target)) and len(kept[str(OTHER)].trials) == 2


def test_each_schedule_has_a_turn_of_its_own(adapter: WgpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others get the device between two schedules, and between two rounds of one."""
    turn, turns, worked = adapter.gpu.turn, [0], list[int]()
    call = turn.call

    def counted(function: Callable[[], Any]) -> Any:
        turns[0] += 1
        return call(function)

    def noted(method: Callable[..., Any]) -> Callable[..., Any]:
        def work(*given: Any) -> Any:
            assert turn.is_current
            worked.append(turns[0])
            return method(*given)

        return work

    monkeypatch.setattr(turn, "call", counted)
    for name in ("_check", "_seconds"):
        monkeypatch.setattr(search._Bench, name, noted(getattr(search._Bench, name)))
    tune(adapter, [SMALL], 60)
    assert len(worked) == len(set(worked)) > 2 * len(candidates(SMALL, adapter.target))


def test_a_product_that_does_not_fit_is_left_out(
    adapter: WgpuDevice, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(search, "free_bytes", lambda: 1000)
    assert tune(adapter, [SMALL], 60) == {} and kept_kernels(adapter.info) == {}
    assert f"{SMALL} is left out: tune: {SMALL}: memory: given 1.98 KB, wanted at most 1 KB" in caplog.text


def test_all_memory_is_given_back(adapter: WgpuDevice) -> None:
    tune(adapter, [replace(SMALL, k=22)], 0)
    made = adapter.gpu.tensors.created
    tune(adapter, [replace(SMALL, k=23)], 0)  # the same sizes in steps of 256 bytes
    assert adapter.gpu.tensors.created == made > 0


def test_nothing_is_searched_on_cpu() -> None:
    cpu = device("cpu")
    assert tune(cpu, [SMALL], 60) == {} and tuned_target(cpu) is cpu.target and usual_products(cpu) == []
    assert not tuning_path(cpu.info).exists()


@pytest.mark.parametrize("seconds", [-1, -0.1, float("nan"), float("inf"), 10**400, True, "1", None])
def test_a_time_is_a_number_of_seconds(seconds: Any) -> None:
    with pytest.raises(ArgumentError, match=r"build: tune: given .*, wanted a number of seconds in 0 … 10⁹"):
        check_seconds("build", seconds)


# every candidate computes the product --------------------------------------------------------------------------------
HARDWARE = [  # and which of the others are checked (`make matrix`: all)
    (ProductKey(67, 70, 130), slice(5, None, 12)), (ProductKey(66, 69, 260, "km"), slice(1, None, 12)),
    (ProductKey(67, 66, 130, "mk", "nk"), slice(8, None, 12)),
    (ProductKey(3, 70, 132, "mk", "nk", DType.f16, True, True), slice(0, None, 3)),
    (ProductKey(1, 50, 64, norm=True), slice(1, None, 3)),
    (ProductKey(2, 64, 128, "mk", "nk", DType.q4_0), slice(None)),
    (ProductKey(3, 64, 130, "mk", "kn", DType.q4), slice(2, None, 3)),
    (ProductKey(3, 64, 130, "mk", "kn", DType.q4_0), slice(2, None, 3)),
    (ProductKey(3, 64, 128, "mk", "nk", DType.q8), slice(2, None, 3)),
    (ProductKey(67, 256, 66, "mk", "kn", DType.q4_k), slice(None)),
    (ProductKey(3, 44, 256, "mk", "nk", DType.q8_0, dual=True), slice(1, None, 3)),
    (ProductKey(20, 44, 130, "mk", "nk", dual=True, dual_rows=True), slice(None)),
    (ProductKey(520, 1012, 20, dual=True), slice(1, None)),
]  # fmt: skip


@pytest.mark.parametrize("key, some", HARDWARE, ids=lambda value: str(value) if isinstance(value, ProductKey) else "")
def test_candidates_of_hardware_agree_with_the_rules(adapter: WgpuDevice, key: ProductKey, some: slice) -> None:
    """On any adapter: kernels for hardware run on a software adapter too. Every key takes others of them, and
    `test_shared_tiles_of_every_size` has every tiling in each layout of a factor."""
    adapter.target = replace(adapter.target, adapter_class="hardware", merges=True)
    rule, *others = candidates(key, adapter.target)
    picked = others if MATRIX else others[some]
    with search._bench(adapter, key) as bench:
        assert [bench.check(s) for s in (rule, *picked)] == [None] * (1 + len(picked))
        assert len(picked) > 1


@pytest.mark.parametrize("kind", ["hardware", "software"])
def test_a_product_alone_is_that_of_the_plan(kind: Literal["hardware", "software"]) -> None:
    """Equal key, one product: what is measured is what a plan runs."""
    target = Target("wgpu", kind, Limits(), merges=kind == "hardware")
    plans = [compile(make(), mode="inference", target=target) for make in (networks.mlp, networks.transformer)]
    keys = [key for plan in plans for key in products_of(plan)] + (
        [key for key, _ in HARDWARE] if target.adapter_class == "hardware" else []
    )
    for key in keys:
        for schedule in candidates(key, target)[:3]:
            made = product_piece(key, target, schedule)
            products = [d for d in made.dispatches if d.matmul is not None]
            assert len(products) == 1 and products[0].params == schedule.params, key
            p = products[0].matmul
            assert (p.norm is not None, p.dual is not None, p.dual_rows) == (key.norm, key.dual, key.dual_rows)


# the file ------------------------------------------------------------------------------------------------------------
def test_kernels_come_back_as_they_were_kept_and_others_stay(cache: Path) -> None:
    keep_kernels(INFO, [FOUND])
    other = TunedKernel(str(OTHER), FOUND.trials[:1])
    keep_kernels(INFO, [other])
    assert kept_kernels(INFO) == {str(SMALL): FOUND, str(OTHER): other}
    newer = TunedKernel(str(SMALL), FOUND.trials[:2])
    keep_kernels(INFO, [newer])
    assert kept_kernels(INFO)[str(SMALL)] == newer
    assert [path.name for path in cache.iterdir()] == ["tuning-An-Adapter-64-bits.json"], "no temporary file is left"


def test_the_name_of_an_adapter_cannot_leave_the_folder(cache: Path) -> None:
    for name in ("../../etc/x", "a/b\\c:d", "", "…", "x" * 500, "nul\0byte\n"):
        path = tuning_path(replace(INFO, name=name))
        assert path.parent == cache and path.name.startswith("tuning-") and len(path.name) < 120
        keep_kernels(replace(INFO, name=name), [FOUND])
        assert kept_kernels(replace(INFO, name=name)) == {str(SMALL): FOUND}


def test_adapters_whose_names_give_one_file_do_not_share_it() -> None:
    keep_kernels(INFO, [FOUND])
    assert tuning_path(replace(INFO, name="An-Adapter 64 bits")) == tuning_path(INFO)
    assert kept_kernels(replace(INFO, name="An-Adapter 64 bits")) == {}


def edited(change: Callable[[Any], object]) -> bytes:
    keep_kernels(INFO, [FOUND])
    data = json.loads(tuning_path(INFO).read_text("utf-8"))
    change(data)
    return json.dumps(data).encode()


HOSTILE: dict[str, Callable[[], bytes]] = {
    "no text": lambda: b"", "no JSON": lambda: b"{", "no UTF-8": lambda: b"\xff\xfe{}", "a list": lambda: b"[1]",
    "deep": lambda: b"[" * 200_000, "long number": lambda: b'{"format": ' + b"9" * 10_000 + b"}",
    "null": lambda: b"null",
    "truncated": lambda: edited(lambda d: d)[:-9], "no format": lambda: edited(lambda d: d.pop("format")),
    "kernels no list": lambda: edited(lambda d: d.update(kernels={"a": 1})),
    "a kernel of nothing": lambda: edited(lambda d: d["kernels"].append({})),
    "no trials": lambda: edited(lambda d: d["kernels"][0].update(trials=[])),
    "the rule refused": lambda: edited(lambda d: d["kernels"][0]["trials"][0].update(refused="no", nanoseconds=0)),
    "time below 0": lambda: edited(lambda d: d["kernels"][0]["trials"][1].update(nanoseconds=-5)),
    "time 0": lambda: edited(lambda d: d["kernels"][0]["trials"][1].update(nanoseconds=0)),
    "time no whole number": lambda: edited(lambda d: d["kernels"][0]["trials"][1].update(nanoseconds=1.5)),
    "time true": lambda: edited(lambda d: d["kernels"][0]["trials"][1].update(nanoseconds=True)),
    "time NaN": lambda: edited(lambda d: d["kernels"][0]["trials"][1].update(nanoseconds=float("nan"))),
    "params of text": lambda: edited(lambda d: d["kernels"][0]["trials"][1].update(params=["8"])),
    "params below 0": lambda: edited(lambda d: d["kernels"][0]["trials"][1].update(params=[-8, 8])),
    "many params": lambda: edited(lambda d: d["kernels"][0]["trials"][1].update(params=[8] * 13)),
    "many trials": lambda: edited(lambda d: d["kernels"][0].update(trials=d["kernels"][0]["trials"] * 40)),
    "many kernels": lambda: edited(lambda d: d.update(kernels=d["kernels"] * 5000)),
    "a name that steers": lambda: edited(lambda d: d["kernels"][0]["trials"][0].update(name="\x1b[2J")),
    "a long name": lambda: edited(lambda d: d["kernels"][0].update(kernel="k" * 400)),
    "large": lambda: b" " * ((16 << 20) + 1),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_damaged_file_counts_as_not_there_and_is_written_anew(name: str, cache: Path) -> None:
    data = HOSTILE[name]()
    cache.mkdir(exist_ok=True)
    tuning_path(INFO).write_bytes(data)
    with pytest.warns(RuntimeWarning, match=r"tuning: file .* is damaged \(.*: going on without it"):
        assert kept_kernels(INFO) == {}
    with pytest.warns(RuntimeWarning, match="is damaged"):
        keep_kernels(INFO, [FOUND])
    assert kept_kernels(INFO) == {str(SMALL): FOUND}


def test_a_file_of_another_version_counts_as_not_there(cache: Path) -> None:
    data = edited(lambda d: d.update(format=2))
    tuning_path(INFO).write_bytes(data)
    assert kept_kernels(INFO) == {}


def test_a_file_that_cannot_be_read_or_written_is_a_warning(cache: Path) -> None:
    cache.write_text("no folder")
    with pytest.warns(RuntimeWarning, match="cannot be (read|written)"):
        keep_kernels(INFO, [FOUND])
    cache.unlink()
    tuning_path(INFO).mkdir(parents=True)
    with pytest.warns(RuntimeWarning, match="cannot be read"):
        assert kept_kernels(INFO) == {}


def test_a_pipe_is_not_waited_for(cache: Path) -> None:
    needs("posix")
    cache.mkdir()
    os.mkfifo(tuning_path(INFO))
    with pytest.warns(RuntimeWarning, match="cannot be read .*a pipe"):
        assert kept_kernels(INFO) == {}


def test_a_write_that_fails_leaves_the_old_file(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_kernels(INFO, [FOUND])

    def full(self: Path, *_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.warns(RuntimeWarning, match=r"cannot be written \(no space left\)"):
        keep_kernels(INFO, [TunedKernel(str(OTHER), FOUND.trials)])
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parent))
    assert kept_kernels(INFO) == {str(SMALL): FOUND} and len(list(cache.iterdir())) == 1


def test_the_table_of_a_target_has_what_differs_from_the_rules() -> None:
    same = TunedKernel(str(OTHER), FOUND.trials[:1])
    (entry,) = tuning_of({str(SMALL): FOUND, str(OTHER): same}).schedules
    assert (entry.kernel, entry.params, entry.nanoseconds, entry.rule_nanoseconds) == (str(SMALL), (4, 4), 1000, 2000)

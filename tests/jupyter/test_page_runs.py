"""A saved page trains on its reader's own GPU: Chromium from disk, WebGPU on SwiftShader, nothing else answers."""

from __future__ import annotations

import importlib
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import CHROMIUM_FLAGS, Server, new_page, open_notebook, output, run_cell, shot
from kernel_texts import all_texts
from lessons import run_lesson
from machine import chromium
from matrix import MATRIX, also
from places import NOTEBOOKS
from playwright.sync_api import Browser, Error, Page, Request, expect
from runnable_networks import NETWORKS

from gdlab import ops
from gdlab.graph import Graph
from gdlab.study.study import Study

pytestmark = pytest.mark.browser
WEBGPU = ("--enable-unsafe-webgpu", "--enable-features=Vulkan,WebGPU", "--use-webgpu-adapter=swiftshader")
LONG = 60  # seconds within which a page has done what it was asked


@pytest.fixture(scope="module")
def webgpu(browser: Browser) -> Iterator[Browser]:
    """Chromium with WebGPU on the processor."""
    flags = [flag for flag in CHROMIUM_FLAGS if flag != "--disable-gpu"]
    launched = browser.browser_type.launch(executable_path=chromium(), args=[*flags, *WEBGPU])
    yield launched
    launched.close()


def reading_page(browser: Browser) -> Page:
    return new_page(browser.new_context(viewport={"width": 1440, "height": 900}))


@pytest.fixture(scope="module")
def webgpu_page(webgpu: Browser) -> Page:
    """The page in which readers open one file after the other."""
    return reading_page(webgpu)


class Reader:
    """Somebody who opened a page from disk; requests are refused and noted."""

    def __init__(self, page: Page, path: Path) -> None:
        self.page = page
        self.asked: list[str] = []
        page.on("request", self.on_request)
        page.on("pageerror", self.on_error)
        page.goto(path.as_uri())
        self.page.get_by_role("tab", name="Session").click()

    def value(self, name: str) -> float:
        text = self.page.locator(f"[data-value={name}]").first.get_attribute("data-number")
        return float(text or "nan")

    def text(self, name: str) -> str:
        return self.page.locator(f"[data-value={name}]").first.inner_text()

    def wait(self, until: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + LONG
        while not until():
            assert time.monotonic() < end, f"{what}: {self.page.locator('.gd-session').inner_text()}"
            self.page.wait_for_timeout(20)

    def press(self, name: str) -> None:
        self.page.locator(f"button[data-command={name}]").first.click()

    def run(self, steps: int) -> float:
        """Make so many more steps; the loss of the last."""
        wanted = int(self.value("step")) + steps if self.page.locator("[data-value=step]").is_visible() else steps
        self.page.locator("[data-command=steps]").fill(str(steps))
        self.press("run")
        self.wait(lambda: self.value("step") == wanted and self.text("state") == "ready", f"step {wanted}")
        return self.value("loss")

    def on_request(self, request: Request) -> None:
        self.asked.append(request.url)

    def on_error(self, error: Error) -> None:
        self.asked.append(f"error: {error}")

    def close(self) -> None:
        """No page asks for anything, and none fails."""
        self.page.remove_listener("request", self.on_request)
        self.page.remove_listener("pageerror", self.on_error)
        self.page.goto("about:blank")
        assert [url for url in self.asked if not url.startswith(("file:", "blob:"))] == []


@pytest.fixture
def opened(webgpu_page: Page) -> Iterator[Callable[[Path], Reader]]:
    readers: list[Reader] = []

    def read(path: Path) -> Reader:
        assert not readers, "one after the other"
        readers.append(Reader(webgpu_page, path))
        return readers[-1]

    yield read
    for reader in readers:
        reader.close()


def trained(name: str, tmp_path: Path, batches: int = 3, **rule: float) -> tuple[Path, list[float]]:
    """A page of a network, and the session's own losses."""
    study = Study(NETWORKS[name](), train=True, device="cpu", name=name)
    rng = np.random.default_rng(3)
    made = [
        {n.name: rng.standard_normal(n.type.shape).astype(np.float32) for n in study.graph.inputs}
        for _ in range(batches)
    ]
    for batch in made:
        if "y" in batch:
            batch["y"] = np.eye(batch["y"].shape[1], dtype=np.float32)[
                rng.integers(0, batch["y"].shape[1], len(batch["y"]))
            ]
    study.prepare(feed=lambda step: made[step % batches], init=2, **rule)
    path = study.save(tmp_path / f"{name}.html", runnable=True, batches=batches)
    study.run(20 if "adam" in rule else 100)
    losses = [loss for _, loss in study.runner.losses]
    study.close()
    return path, losses


@pytest.mark.parametrize("name", ["tour", "attention", "cnn", "own", "adapters"])
def test_twenty_adam_steps_have_the_losses_of_the_session(
    name: str, tmp_path: Path, opened: Callable[[Path], Reader]
) -> None:
    path, losses = trained(name, tmp_path, adam=1e-2)
    reader, made = opened(path), 0
    for steps in (1, 2, 7, 10):
        made += steps
        assert reader.run(steps) == pytest.approx(losses[made - 1], rel=2e-4), f"step {made}"
    shot(reader.page, f"page-runs-{name}")


def test_a_hundred_sgd_steps_have_the_losses_of_the_session(tmp_path: Path, opened: Callable[[Path], Reader]) -> None:
    path, losses = trained("own", tmp_path, batches=2, sgd=3e-2)
    assert opened(path).run(100) == pytest.approx(losses[-1], rel=2e-4)


def test_the_panel_of_a_page_steps_looks_breaks_and_begins_anew(
    tmp_path: Path, opened: Callable[[Path], Reader]
) -> None:
    path, losses = trained("own", tmp_path, adam=1e-2)
    reader = opened(path)
    page = reader.page
    assert "it runs the GPU code that the document brings along" in page.locator(".gd-session .gd-empty").inner_text()
    assert reader.run(5) == pytest.approx(losses[4], rel=2e-4)
    assert "WebGPU in this page" in page.locator(".gd-facts").inner_text()
    # a breakpoint inside of a step, then dispatch by dispatch, then the rest
    field = page.locator(".gd-watches input, input[placeholder*=absmax]").first
    field.fill("node hidden if not step < 5 and shape(hidden)[0] > 1")
    page.get_by_role("button", name="Break").click()
    page.locator("[data-command=steps]").fill("3")
    reader.press("run")
    reader.wait(lambda: "breakpoint 1: node hidden" in reader.text("state"), "the breakpoint")
    assert reader.value("step") == 5
    page.get_by_role("button", name="Step dispatch").click()
    page.get_by_role("button", name="Look").wait_for()
    field.fill("w1")
    page.get_by_role("button", name="Look").click()
    page.locator("[data-value=glass-mean]").wait_for()
    assert reader.value("glass-mean") != 0
    page.get_by_role("button", name="clear node hidden").click()
    reader.wait(lambda: not page.locator("[data-watch]").count(), "the breakpoint gone")
    reader.press("resume")
    reader.wait(lambda: reader.value("step") == 8, "the rest of the run")
    assert reader.value("loss") == pytest.approx(losses[7], rel=2e-4), "what was looked at has changed nothing"
    reader.press("reset")
    reader.press("reset")
    reader.wait(lambda: reader.value("step") == 0, "the beginning")
    assert reader.run(1) == pytest.approx(losses[0], rel=2e-4)


def test_back_crosses_the_end_of_a_step_and_changes_nothing(tmp_path: Path, opened: Callable[[Path], Reader]) -> None:
    path, losses = trained("own", tmp_path, adam=1e-2)
    reader = opened(path)
    page = reader.page
    reader.run(2)
    page.locator("[data-command=back]").click()
    reader.wait(lambda: "given no step that is kept" in page.locator(".gd-session").inner_text(), "a refusal")
    page.locator("[data-command=watchtext]").fill("node hidden if step >= 2")
    page.locator("[data-command=break-add]").click()
    page.locator("[data-watch]").wait_for()
    reader.press("step")
    reader.wait(lambda: "breakpoint 1" in reader.text("state"), "the breakpoint")
    page.get_by_role("button", name="clear node hidden").click()
    reader.press("resume")
    reader.wait(lambda: reader.value("step") == 3, "the end of the step")
    assert reader.value("loss") == pytest.approx(losses[2], rel=2e-4)
    page.locator("[data-command=back]").click()  # behind the last but one of its updates
    reader.wait(lambda: reader.value("step") == 2 and "paused: after dispatch 10" in reader.text("state"), "back")
    for at in (9, 8):
        page.locator("[data-command=back]").click()
        reader.wait(lambda at=at: f"after dispatch {at} " in reader.text("state"), f"dispatch {at}")  # type: ignore[misc]
    assert "replayed from the start of the step" in page.locator(".gd-events").inner_text()
    assert reader.run(3) == pytest.approx(losses[4], rel=2e-4), "the step under way is one of them"


def test_a_page_never_shows_the_numbers_of_a_tensor_that_lies_there_no_longer(
    tmp_path: Path, opened: Callable[[Path], Reader]
) -> None:
    """`early` lies in memory that others take over within the step: a watch reads it right behind its dispatch, and the
    microscope says where it can be seen."""
    with Graph() as g:
        h = ops.input("x", (8, 8))
        for k in range(4):
            h = ops.tanh(h @ ops.parameter(f"w{k}", (8, 8))).named(("early", "", "", "")[k])
        g.output(h)
    study = Study(g, device="cpu", name="deep")
    x = np.linspace(-1, 2, 64, dtype=np.float32).reshape(8, 8)
    study.prepare(feed={"x": x}, init=1)
    path = study.save(tmp_path / "deep.html", runnable=True)
    wanted = np.tanh(x @ study.session.read_param("w0"))
    study.close()
    reader = opened(path)
    page = reader.page
    reader.run(1)
    page.locator("[data-command=watchtext]").fill("early")
    page.locator("[data-command=watch-add]").click()
    row = page.locator("[data-watch]")
    expect(row).to_contain_text("no value yet")
    page.get_by_role("button", name="look at early").click()
    expect(page.locator(".gd-session")).to_contain_text("has taken over, wanted a run to dispatch 0")
    reader.run(1)
    expect(row).to_contain_text(f"mean {shown(float(wanted.mean()))}")
    page.get_by_role("button", name="Step dispatch").click()
    page.get_by_role("button", name="look at early").click()
    reader.wait(lambda: reader.value("glass-mean") == pytest.approx(float(wanted.mean()), rel=1e-4), "its numbers")


def shown(value: float) -> str:
    return f"{value:.3g}".replace("-", "−")


def squares(tmp_path: Path, rows: list[float]) -> Path:
    """A page of the mean of (x · w)², w ones and all of a batch one number; a large one gives infinity."""
    with Graph() as g:
        h = (ops.input("x", (4, 3)) @ ops.parameter("w", (3, 2))).named("h")
        g.output(ops.square(h).mean_all())
    study = Study(g, train=True, device="cpu", name="squares")
    study.prepare(feed=lambda step: {"x": np.full((4, 3), rows[step], np.float32)}, init=0, sgd=1e-9)
    study.session.set_parameter("w", np.ones((3, 2), np.float32))
    path = study.save(tmp_path / "squares.html", runnable=True, batches=len(rows), weights=True)
    study.close()
    return path


@pytest.mark.parametrize(
    ("watch", "shown", "said", "step", "further"),
    [
        ("loss", "loss, every step", "loss is ∞ at step 4", 4, 64),
        ("parameters", "parameters and gradients, every step", "loss is ∞ at step 4", 4, 0),
        ("everything", "every buffer, before every step", "step 4 would not be finite", 3, 0),
    ],
)
def test_a_page_pauses_at_an_infinity_and_names_the_dispatch(
    watch: str, shown: str, said: str, step: int, further: int, tmp_path: Path, opened: Callable[[Path], Reader]
) -> None:
    reader = opened(squares(tmp_path, [1, 2, 3, 1e30, 1, 1]))
    events = reader.page.locator(".gd-events")
    reader.run(1)
    reader.page.locator("[data-command=watch]").select_option(watch)
    expect(reader.page.locator("[data-value=watched]")).to_have_text(shown)
    reader.page.locator("[data-command=steps]").fill("5")
    reader.press("run")
    reader.wait(lambda: said in reader.text("state"), said)
    assert step <= reader.value("step") <= step + further, "losses of steps that were sent together come together"
    named = events.get_by_text(re.compile(r"first infinity: dispatch \d+, .*from element 0 on; it read h 3e30 … 3e30"))
    expect(named.first).to_be_visible()


def test_a_page_searches_the_step_that_spoiled_the_state_it_kept(
    tmp_path: Path, opened: Callable[[Path], Reader]
) -> None:
    """Trap: a state is kept every 128 steps; step 128 gives a finite loss and spoils w, which only step 129 shows."""
    with Graph() as g:
        g.output(ops.sqrt(ops.parameter("w", (4,)) * ops.input("x", (4,))).sum_all())
    study = Study(g, train=True, device="cpu", name="roots")
    study.prepare(feed=lambda step: {"x": np.full(4, float(step != 127), np.float32)}, init=0, sgd=1e-3)
    study.session.set_parameter("w", np.ones(4, np.float32))
    reader = opened(study.save(tmp_path / "roots.html", runnable=True, batches=129, weights=True))
    backward = [d.index for d in study.plan.dispatches if d.phase == "backward"]
    study.close()
    reader.run(128)
    reader.page.locator("[data-command=steps]").fill("1")
    reader.press("run")
    reader.wait(lambda: "loss is NaN at step 129" in reader.text("state"), "the pause")
    named = reader.page.locator(".gd-events").get_by_text(re.compile(r"first (NaN|infinity): dispatch (\d+), "))
    expect(named.first).to_be_visible()
    found = re.search(r"dispatch (\d+)", named.first.inner_text())
    assert found is not None and int(found[1]) in backward


def test_numbers_of_16_bits_are_under_the_microscope(tmp_path: Path, opened: Callable[[Path], Reader]) -> None:
    with Graph() as g:
        half, short = ops.parameter_f16("half", (3, 2)), ops.parameter("short", (5, 2), dtype="bf16")
        g.output(ops.matmul_bt(ops.input("x", (4, 3)) @ half, short))
    study = Study(g, device="cpu", name="halves")
    study.prepare(feed="random:0", init=0)
    study.session.set_parameter("half", np.array([[0.5, -2], [3, 0], [65504, 2**-24]], np.float32))
    study.session.set_parameter("short", np.arange(10, dtype=np.float32).reshape(5, 2))
    reader = opened(study.save(tmp_path / "halves.html", runnable=True))
    study.close()
    page = reader.page
    reader.run(1)
    for name, mean in (("half", (65504 + 1.5 + 2**-24) / 6), ("short", 4.5)):
        page.locator("[data-command=watchtext]").fill(name)
        page.locator("[data-command=watch-add]").click()
        page.get_by_role("button", name=f"look at {name}").click()
        reader.wait(lambda mean=mean: reader.value("glass-mean") == pytest.approx(mean), name)  # type: ignore[misc]
    expect(page.locator(".gd-glass, .gd-watches").first).to_contain_text("bf16[5, 2]")


LONG_TASKS = """window.long = [];
new PerformanceObserver(list => list.getEntries().forEach(({ duration }) => long.push(duration)))
  .observe({ entryTypes: ["longtask"] });"""


@pytest.mark.clock
def test_no_task_of_the_tours_page_takes_over_50_ms(tmp_path: Path, webgpu: Browser) -> None:
    """While it opens, compiles, runs and draws; other work on the machine lengthens a task, so the best of three."""
    path, _ = trained("tour", tmp_path, adam=1e-2)
    longest = []
    for _ in range(3):
        page = reading_page(webgpu)  # a fresh one: what a page has run before is compiled already
        reader = Reader(page, path)
        reader.page.evaluate(LONG_TASKS)
        reader.page.wait_for_timeout(300)
        reader.page.evaluate("long.splice(0)")
        reader.run(40)
        longest.append(reader.page.evaluate("Math.max(0, ...long)"))
        reader.close()
        page.context.close()
        if longest[-1] <= 50:
            break
    assert min(longest) <= 50, longest


def test_a_pause_stops_between_two_steps_and_a_speed_holds(tmp_path: Path, opened: Callable[[Path], Reader]) -> None:
    path, _ = trained("own", tmp_path, sgd=1e-3)
    reader = opened(path)
    reader.run(1)
    reader.page.locator("[data-command=speed]").select_option("10")
    reader.page.locator("[data-command=steps]").fill("100")
    began = time.monotonic()
    reader.press("run")
    reader.wait(lambda: reader.value("step") >= 4, "three steps")
    assert time.monotonic() - began > 0.2
    reader.press("pause")
    reader.wait(lambda: "paused: by you" in reader.text("state"), "the pause")
    assert reader.value("step") < 101
    reader.press("stop")
    reader.wait(lambda: reader.text("state") == "ready", "the end")


def test_without_webgpu_the_page_says_so_in_a_sentence_and_goes_on(tmp_path: Path, browser: Browser) -> None:
    path, _ = trained("own", tmp_path, sgd=1e-3)
    page = reading_page(browser)
    reader = Reader(page, path)
    reader.press("run")
    said = reader.page.locator(".gd-session [role=alert]")
    reader.wait(said.is_visible, "a sentence")
    assert re.search(r"WebGPU .*(no adapter|cannot compute)|no WebGPU", said.inner_text()), said.inner_text()
    reader.page.get_by_role("tab", name="Plan").click()
    assert reader.page.locator("[data-pane=plan]").first.is_visible()
    reader.close()
    page.context.close()


def document_in(text: str) -> str:
    found = re.search(r'<script type="application/json" id="gdlab-document">(.*?)</script>', text, re.S)
    assert found is not None
    return found[1]


def spoil_binding(run: dict[str, Any]) -> None:
    run["plan"]["dispatches"][0]["bind"][0][0] = 10**6


def spoil_batch(run: dict[str, Any]) -> None:
    run["batches"][0]["x"] = run["batches"][0]["x"][:-8]


def spoil_kernel(run: dict[str, Any]) -> None:
    run["plan"]["wgsl"][0] = "fn main( {"


def spoiled(path: Path, spoil: Callable[[dict[str, Any]], None]) -> Path:
    text = path.read_text("utf-8")
    document = document_in(text)
    data: dict[str, Any] = json.loads(document)
    spoil(data["run"])
    path.write_text(text.replace(document, json.dumps(data).replace("<", "\\u003c")), "utf-8")
    return path


@pytest.mark.parametrize(("spoil", "wanted"), [(spoil_binding, "dispatch 0 reads"), (spoil_batch, "another size")])
def test_a_changed_document_is_refused_before_a_device_sees_it(
    spoil: Callable[[dict[str, Any]], None], wanted: str, tmp_path: Path, opened: Callable[[Path], Reader]
) -> None:
    reader = opened(spoiled(trained("own", tmp_path, sgd=1e-3)[0], spoil))
    reader.wait(lambda: wanted in reader.page.locator(".gdlab").inner_text(), wanted)


def test_a_kernel_that_does_not_compile_is_named(tmp_path: Path, opened: Callable[[Path], Reader]) -> None:
    reader = opened(spoiled(trained("own", tmp_path, sgd=1e-3)[0], spoil_kernel))
    reader.press("run")
    reader.wait(lambda: "does not compile" in reader.page.locator(".gdlab").inner_text(), "the kernel's name")


def test_every_kernel_is_what_a_browser_takes_for_wgsl(webgpu: Browser, tmp_path: Path) -> None:
    """Browsers are stricter than the library of sessions: `a * b >> c` wants parentheses."""
    texts = all_texts()
    assert len(texts) > 500
    page = webgpu.new_page()
    (tmp_path / "empty.html").write_text("<!doctype html><title>empty</title>", "utf-8")
    page.goto((tmp_path / "empty.html").as_uri())  # WebGPU is not everywhere: a file may use it
    try:
        faults = page.evaluate(CHECKED, list(texts))
    finally:
        page.close()
    named = list(texts.values())
    assert [f"{named[i]}, line {line}: {said}" for i, line, said in faults] == []


LESSON_PAGES = also(["fusion", "bytes"], "tour", "chain_rule", "tape")


def test_the_networks_of_lessons_open_and_step_from_disk(
    webgpu: Browser, lesson_shell: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages that `make pages` writes, in one browser; the networks of few kernels also step."""
    monkeypatch.syspath_prepend(NOTEBOOKS)
    pages, looks = importlib.import_module("pages"), importlib.import_module("measured_pages")
    monkeypatch.chdir(NOTEBOOKS)
    assert set(LESSON_PAGES) == set(pages.NOTEBOOKS) if MATRIX else set(LESSON_PAGES) < set(pages.NOTEBOOKS)
    for name in LESSON_PAGES:
        known = set(lesson_shell.user_ns)
        run_lesson(lesson_shell, name)
        saved = lesson_shell.run_cell(pages.SAVE.format(folder=tmp_path.as_posix(), notebook=name))
        saved.raise_error()
        for left in set(lesson_shell.user_ns) - known:
            lesson_shell.user_ns.pop(left)
    paths = sorted(tmp_path.glob("*.html"))
    assert {path.name.split("-")[0] for path in paths} == set(LESSON_PAGES) and len(paths) >= (15 if MATRIX else 6)
    assert {kernels_of(path) <= FEW for path in paths} == {True, False}
    for path in paths:
        few = kernels_of(path) <= FEW
        page = looks.measured(webgpu, path, times=False, step=few)
        assert page.faults == () and bool(page.stepped) == few, path.name


FEW = 5  # kernels that SwiftShader compiles soon


def kernels_of(path: Path) -> int:
    return len(json.loads(document_in(path.read_text("utf-8")))["run"]["plan"]["wgsl"])


CHECKED = """async texts => {
  const device = await (await navigator.gpu.requestAdapter()).requestDevice(), faults = [];
  for (const [i, code] of texts.entries()) {
    device.pushErrorScope("validation");
    const { messages } = await device.createShaderModule({ code }).getCompilationInfo();
    await device.popErrorScope();
    const wrong = messages.find(({ type }) => type === "error");
    if (wrong) faults.push([i, wrong.lineNum, wrong.message]);
  }
  device.destroy();
  return faults;
}"""


def test_an_output_runs_on_when_its_kernel_is_gone(webgpu: Browser, lab: Server) -> None:
    cells = [
        "%load_ext gdlab",
        "%%graph own --train --feed random:0 --adam 1e-2 --init 0 --run 3 --show session --runnable\n"
        'x, y = input("x", (16, 12)), input("y", (16, 4))\n'
        'mse_loss(tanh(x @ parameter("w", (12, 4))), y)',
        "%%graph bare --train --feed random:0 --sgd 1e-2 --init 0 --show session\n"
        'mse_loss(input("x", (4, 3)) @ parameter("w", (3, 2)), input("y", (4, 2)))',
    ]
    page = webgpu.new_context(viewport={"width": 1440, "height": 900}).new_page()
    open_notebook(page, lab, cells)
    for index in range(3):
        run_cell(page, index)
    own, bare = output(page, 1), output(page, 2)
    assert own.locator("[data-value=step]").get_attribute("data-number") == "3"
    page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    expect(own.locator("[data-value=state]")).to_have_text("no session yet")
    assert own.locator("[data-value=step]").get_attribute("data-number") == "3", "until it runs, the kernel's figures"
    own.locator("[data-command=steps]").fill("4")
    own.locator("button[data-command=run]").click()
    expect(own.locator("[data-value=step]")).to_have_attribute("data-number", "4")
    assert "WebGPU in this page" in own.locator(".gd-facts").inner_text()
    shot(page, "output-runs-on")
    said = bare.locator("button[data-command=run]").get_attribute("title") or ""
    assert "run the cell again" in said or "save it with --runnable" in bare.inner_text()
    page.context.close()

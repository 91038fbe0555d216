"""Open saved pages in Chromium, make one step of each that runs, and measure how long its kernels take to compile.

`measure(paths)` gives a `Measured` per page. The time of a kernel is processor time of the browser's GPU process, so
that other work on the machine does not count. Playwright and Chromium are needed: `absent()` says which is not there.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FLAGS = (
    "--no-sandbox --disable-dev-shm-usage --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --enable-unsafe-webgpu --enable-features=Vulkan,WebGPU "
    "--use-webgpu-adapter=swiftshader"
).split()
SLOW = 2.0  # seconds that no kernel of a page may take to compile on SwiftShader
LONG = 60  # seconds within which a page has made its step
RUNS = '"run":{'  # in the document of a page that computes
OPEN = """async () => {
  const adapter = await navigator.gpu?.requestAdapter();
  if (!adapter) return 0;
  window.run = JSON.parse(document.getElementById("gdlab-document").textContent).run;
  window.device = await adapter.requestDevice();
  return run.plan.wgsl.length;
}"""
COMPILE = """async kernel => {
  const made = run.plan.dispatches.find(each => each.kernel === kernel), module =
    device.createShaderModule({ code: run.plan.wgsl[kernel] });
  if (made) await device.createComputePipelineAsync({ layout: "auto", compute: { module } });
  return made?.label ?? "";
}"""


@dataclass(frozen=True)
class Measured:
    """A page: its kernels with the seconds that each took to compile, and the loss or state after one step (empty: it
    has no data to run on); `faults`: requests, errors, and a step that was not made."""

    path: Path
    kernels: tuple[tuple[str, float], ...] = ()
    stepped: str = ""
    faults: tuple[str, ...] = ()

    @property
    def slow(self) -> tuple[str, ...]:
        """The kernels that take too long, in words."""
        return tuple(f"{label}: {seconds:.1f} s" for label, seconds in self.kernels if seconds > SLOW)


def absent() -> str:
    """Return what is missing to open pages, or an empty string."""
    if importlib.util.find_spec("playwright") is None:
        return "Playwright is not installed (make test installs it)"
    return "" if _chromium() else "there is no Chromium on PATH or in CHROMIUM"


def measure(paths: Iterable[Path]) -> Iterator[Measured]:
    """Open each page in a Chromium of its own, time its kernels and step it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_chromium(), args=FLAGS)
        for path in paths:
            yield measured(browser, path)
        browser.close()


def measured(browser: Any, path: Path, times: bool = True, step: bool = True) -> Measured:
    """Open a page from disk with every request blocked; time its kernels and step it where that is asked for."""
    context, faults = browser.new_context(viewport={"width": 1440, "height": 900}), list[str]()
    page = context.new_page()
    page.on("request", lambda request: None if _own(request.url) else faults.append(f"asked for {request.url}"))
    page.on("pageerror", lambda error: faults.append(f"error: {error}"))
    page.route(lambda url: not _own(url), lambda route: route.abort())
    page.goto(path.as_uri())
    stepped, kernels, runs = "", tuple[tuple[str, float], ...](), RUNS in path.read_text("utf-8")
    if runs and times:
        kernels = _kernels(browser, page)
    if runs and step:
        stepped = _step(page, faults)
    context.close()
    return Measured(path, kernels, stepped, tuple(faults))


def _chromium() -> str | None:
    names = ("chromium", "google-chrome", "chromium-browser")
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


def _own(url: str) -> bool:
    return url.startswith(("file:", "blob:", "data:"))


def _kernels(browser: Any, page: Any) -> tuple[tuple[str, float], ...]:
    """Compile the kernels one by one, on a device of their own."""
    processes = browser.new_browser_cdp_session()

    def spent() -> float:
        known = processes.send("SystemInfo.getProcessInfo")["processInfo"]
        return float(sum(each["cpuTime"] for each in known if each["type"] == "GPU"))

    found = []
    for kernel in range(page.evaluate(OPEN)):
        began = spent()
        label = page.evaluate(COMPILE, kernel)
        found.append((label, spent() - began))
    page.evaluate("() => window.device?.destroy()")
    return tuple(found)


def _step(page: Any, faults: list[str]) -> str:
    """Make one step as a reader does; the loss that it shows, or its state where there is none."""
    page.get_by_role("tab", name="Session").click()
    page.locator("button[data-command=step]").first.click()
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        step = page.locator("[data-value=step]").first
        if step.is_visible() and step.get_attribute("data-number") == "1":
            text = re.sub(r"\s+", " ", page.locator("[data-value=loss]").first.inner_text())
            return text if re.search(r"\d", text) else "one step"
        page.wait_for_timeout(20)
    faults.append(f"no step within {LONG} s: {page.locator('.gd-session').inner_text()[:200]}")
    return ""

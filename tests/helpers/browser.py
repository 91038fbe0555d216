"""Drive JupyterLab or Notebook 7 in Chromium: one server and one browser per test session. Tests share an empty page
(`page`) and a page of JupyterLab (`lab_page`); a test that leaves more behind than a page can forget has a fresh one.

    def test_it(lab: Server, lab_page: Page) -> None:
        open_notebook(lab_page, lab, ["1 + 1"])
        run_cell(lab_page, 0)
        assert output(lab_page, 0).inner_text() == "2"

A test fails on any console error, any page error and any request that leaves the host, without asking for it. The last
look of every page lies in `build/shots/`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import pytest
from machine import chromium, needs
from places import REPO
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    FloatRect,
    Locator,
    Page,
    Request,
    ViewportSize,
    WebError,
    expect,
    sync_playwright,
)

SHOTS = REPO / "build" / "shots"
App = Literal["jupyterlab", "notebook"]
JUPYTER = os.environ.get("GDLAB_JUPYTER", sys.executable)  # the Python that serves: `make lab44` names another

CHROMIUM_FLAGS = (
    "--no-sandbox --disable-dev-shm-usage --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --font-render-hinting=none"
).split()

SLOW = int(os.environ.get("GDLAB_SLOW", "1"))  # the page's processor is so many times slower: `make slow-pages`
LATENCY = int(os.environ.get("GDLAB_LATENCY", "0"))  # ms that a page's requests take longer: `make slow-pages`

# Written into the server's settings folder: no news pop-up; the page's messages come over a subshell.
SETTINGS: dict[str, dict[str, object]] = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "apputils-extension/kernels-settings": {"commsOverSubshells": "perCommTarget"},
}

# Extensions that no test uses and none of the others needs: without them and without node, which was asked at each load
# whether the build is up to date, JupyterLab is loaded in 5 s of processor time instead of 7.
UNUSED = (
    *(f"@jupyterlab/{name}-extension" for name in (
        "audio", "celltags", "csvviewer", "debugger", "extensionmanager", "help", "htmlviewer", "hub", "logconsole",
        "mermaid", "pluginmanager", "terminal", "theme-dark-high-contrast", "video",
    )),
    "ipyparallel-labextension", "@jupyter-notebook/lab-extension",
)  # fmt: skip

# A notebook without it asks for a kernel.
PYTHON = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}

# Errors that are the host's own: Notebook 7 logs this one with gdlab disabled, too.
ALLOWED = {"notebook": re.compile(r"page error: .*reading 'schema'")}
# JupyterLab says it of a kernel that is ended (by `CLOSE`) while it asks it something.
ENDED = re.compile(r"page error: (Error: )?Canceled future for \w+ message before replies were done")


@dataclass(frozen=True, slots=True)
class Server:
    app: App
    url: str
    root: Path  # the folder that it serves
    log: Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(home: Path) -> dict[str, str]:
    """Everything that Jupyter keeps goes below `home`; the kernel is the Python that serves."""
    folders = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    lab = ("JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR")
    path = os.pathsep.join((str(Path(JUPYTER).parent), os.environ["PATH"]))
    own = {name: str(home / name.lower()) for name in (*folders, *lab)}
    return {**os.environ, **own, "HOME": str(home), "PATH": path}


def write_settings(folder: Path) -> None:
    for name, values in SETTINGS.items():
        path = folder / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))


def write_page_config(home: Path, disabled: tuple[str, ...]) -> None:
    """Say which extensions the page does not load, and that nobody asks whether the application must be built."""
    folder = home / "jupyter_config_dir" / "labconfig"
    folder.mkdir(parents=True)
    config = {"buildCheck": False, "buildAvailable": False, "disabledExtensions": dict.fromkeys(disabled, True)}
    (folder / "page_config.json").write_text(json.dumps(config))


def wait_for(server: Server, process: subprocess.Popen[bytes], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            urllib.request.urlopen(f"{server.url}/api/status", timeout=2).close()
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"{server.app} did not start:\n{server.log.read_text()[-3000:]}")


@contextmanager
def serving(app: App, home: Path, *disabled: str) -> Iterator[Server]:
    """A Jupyter server without its protections, for this machine and these tests only, and without these extensions."""
    server = Server(app, f"http://127.0.0.1:{free_port()}", home / "root", home / "server.log")
    server.root.mkdir()
    env = environment(home)
    write_settings(Path(env["JUPYTERLAB_SETTINGS_DIR"]))
    write_page_config(home, (*(UNUSED if app == "jupyterlab" else ()), *disabled))
    exposed = "LabApp" if app == "jupyterlab" else "JupyterNotebookApp"
    options = (
        f"--no-browser --allow-root --port={urlsplit(server.url).port} --ServerApp.port_retries=0 --log-level=WARN "
        f"--IdentityProvider.token= --ServerApp.disable_check_xsrf=True --{exposed}.expose_app_in_browser=True"
    ).split()
    command = [JUPYTER, "-m", app, *options, f"--ServerApp.root_dir={server.root}"]
    with server.log.open("wb") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log, cwd=server.root)
    try:
        wait_for(server, process)
        yield server
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A JupyterLab server."""
    with serving("jupyterlab", tmp_path_factory.mktemp("lab")) as server:
        yield server


@pytest.fixture(scope="session")
def notebook7(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Notebook 7 server."""
    with serving("notebook", tmp_path_factory.mktemp("notebook7")) as server:
        yield server


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    needs("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(CHROMIUM_FLAGS))
        yield browser
        browser.close()


@dataclass  # without slots: Playwright hangs its wrappers on the object
class Watch:
    """Collect what no page may do: errors, requests to other hosts, long tasks."""

    faults: list[str] = field(default_factory=list)
    allowed: list[re.Pattern[str]] = field(default_factory=list)

    def allow(self, start: str) -> None:
        """Take faults that begin so for the host's own: say why at the call."""
        self.allowed.append(re.compile(re.escape(start)))

    def judged(self, pages: list[Page]) -> list[str]:
        """Return the faults that are not the host's own."""
        hosts = [pattern for app, pattern in ALLOWED.items() if any(f"/{app}s/" in page.url for page in pages)]
        return [fault for fault in self.faults if not any(each.match(fault) for each in (ENDED, *hosts, *self.allowed))]

    def on(self, context: BrowserContext) -> None:
        context.on("console", self.on_console)
        context.on("weberror", self.on_error)
        context.on("request", self.on_request)

    def off(self, context: BrowserContext) -> None:
        context.remove_listener("console", self.on_console)
        context.remove_listener("weberror", self.on_error)
        context.remove_listener("request", self.on_request)

    def on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.note("console error", f"{message.text} ({message.location.get('url', '')})")

    def on_error(self, fault: WebError) -> None:
        self.note("page error", f"{fault.error.message}\n{fault.error.stack}")

    def on_request(self, request: Request) -> None:
        url, parts = request.url, urlsplit(request.url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.hostname not in ("127.0.0.1", "localhost"):
            self.note("request outside the host", url)

    def note(self, kind: str, text: str) -> None:
        self.faults.append(f"{kind}: {text[:600]}")


@pytest.fixture
def watch() -> Watch:
    """Everything that the pages of this test did that no page may do."""
    return Watch()


SIZE: ViewportSize = {"width": 1500, "height": 950}
PATIENCE = 60_000  # ms within which a page does what it is asked, however busy the machine is
expect.set_options(timeout=PATIENCE)  # by itself it waits for 5 s


def profile(browser: Browser) -> BrowserContext:
    context = browser.new_context(viewport=SIZE)
    context.set_default_timeout(PATIENCE)
    return context


@pytest.fixture
def context(browser: Browser, watch: Watch) -> Iterator[BrowserContext]:
    """A fresh browser profile; every page opened in it is watched."""
    context = profile(browser)
    watch.on(context)
    yield context
    pages = context.pages
    context.close()
    faults = watch.judged(pages)
    assert not faults, "\n".join(faults)


@pytest.fixture
def page(blank_page: Page) -> Page:
    """The empty page that tests share; a test module's own fixture of this name may give `app_page` or `fresh_page`."""
    return blank_page


@pytest.fixture
def app_page(browser: Browser, request: pytest.FixtureRequest) -> Page:
    """The page of JupyterLab or of Notebook 7 that tests share. (`browser` marks the test.)"""
    seven = "notebook7" in request.fixturenames or re.search(r"notebook_?7|\bseven\b", request.node.name)
    page: Page = request.getfixturevalue("seven_page" if seven else "lab_page")
    return page


@pytest.fixture
def fresh_page(context: BrowserContext, request: pytest.FixtureRequest) -> Iterator[Page]:
    page = new_page(context)
    yield page
    shot(page, re.sub(r"[^\w.-]+", "-", request.node.name))


def new_page(context: BrowserContext) -> Page:
    page = context.new_page()
    if SLOW > 1:
        context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": SLOW})
    if LATENCY:
        conditions = {"offline": False, "latency": LATENCY, "downloadThroughput": -1, "uploadThroughput": -1}
        network = context.new_cdp_session(page)
        network.send("Network.enable")
        network.send("Network.emulateNetworkConditions", conditions)
    return page


@pytest.fixture(scope="session")
def shared_pages(browser: Browser) -> Iterator[dict[str, Page]]:
    """The pages that tests share, as far as a test wanted them, each with a profile of its own."""
    pages: dict[str, Page] = {}
    yield pages
    for page in pages.values():
        page.context.close()


@pytest.fixture
def lend(
    browser: Browser, shared_pages: dict[str, Page], watch: Watch, request: pytest.FixtureRequest
) -> Callable[[str, Callable[[Page], None]], AbstractContextManager[Page]]:
    """Lend a shared page to this test and clean it after; after a test that failed it is another page."""

    @contextmanager
    def lent(name: str, clean: Callable[[Page], None]) -> Iterator[Page]:
        if name not in shared_pages:
            shared_pages[name] = new_page(profile(browser))
        page, failed = shared_pages[name], request.session.testsfailed
        page.set_viewport_size(SIZE)
        watch.on(page.context)
        yield page
        shot(page, re.sub(r"[^\w.-]+", "-", request.node.name))
        watch.off(page.context)  # before it is cleaned: what a host says of kernels that end is no fault
        faults = watch.judged(page.context.pages)
        if faults or request.session.testsfailed > failed:
            del shared_pages[name]
            page.context.close()
        else:
            page.context.clear_permissions()
            clean(page)
        assert not faults, "\n".join(faults)

    return lent


@pytest.fixture
def blank_page(lend: Callable[..., AbstractContextManager[Page]]) -> Iterator[Page]:
    """An empty page whose process has drawn before: a picture takes 0.4 s of processor time there, in a fresh page 2.6.
    Scripts, media and the pointer are those of a fresh page."""
    with lend("blank", wipe) as page:
        yield page


def wipe(page: Page) -> None:
    """Another empty document with a realm of its own, and no trace of what a test asked of the page."""
    for other in page.context.pages:
        if other is not page:
            other.close()
    page.unroute_all()
    page.emulate_media(media="null", color_scheme="null", reduced_motion="null", forced_colors="null")
    page.mouse.move(-10, -10)
    page.goto("about:blank")


@pytest.fixture
def lab_page(lend: Callable[..., AbstractContextManager[Page]]) -> Iterator[Page]:
    """A page in which JupyterLab may be loaded already: `open_notebook` opens a notebook with a kernel of its own in it
    (2.5 s of processor time) instead of loading JupyterLab anew (12 s)."""
    with lend("lab", close_documents) as page:
        yield page


@pytest.fixture
def seven_page(lend: Callable[..., AbstractContextManager[Page]]) -> Iterator[Page]:
    """A page in which Notebook 7 was open before: it loads its files anew for every notebook, but from its cache."""
    with lend("seven", leave_notebook) as page:
        yield page


def leave_notebook(page: Page) -> None:
    close_documents(page)
    wipe(page)


def close_documents(page: Page) -> None:
    if loaded(page):
        page.evaluate(CLOSE)


def loaded(page: Page) -> bool:
    """Return whether an application of Jupyter is loaded in the page."""
    return bool(page.evaluate("window.jupyterapp !== undefined"))


def shot(page: Page, name: str) -> Path:
    """Keep how the page looks now."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    path = SHOTS / f"{name}.png"
    page.screenshot(path=path)
    return path


FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


def settled(page: Page) -> None:
    """Wait until what was scrolled or resized is drawn anew: the events of a frame, and then the frame itself."""
    page.evaluate(FRAMES)


def box_of(element: Locator) -> FloatRect:
    """The place of an element on the page. A pane that draws anew replaces its elements, and one that is replaced after
    it was found has no place: it is looked for again."""
    until = time.monotonic() + 10
    while (box := element.bounding_box()) is None:
        assert time.monotonic() < until, f"{element} is not drawn"
        settled(element.page)
    return box


# A notebook ----------------------------------------------------------------------------------------------------------

IDLE = """() => {
  const panel = window.jupyterapp.shell.currentWidget;
  const kernel = panel && panel.sessionContext && panel.sessionContext.session && panel.sessionContext.session.kernel;
  return Boolean(kernel && kernel.info && kernel.status === 'idle');
}"""


def open_notebook(page: Page, server: Server, cells: list[str] | Path, name: str = "test.ipynb") -> Path:
    """Open a new notebook of these cells, or a copy of this one, and wait for its kernel; returns the served file."""
    path = server.root / name
    if isinstance(cells, Path):
        shutil.copy(cells, path)
    else:
        import nbformat  # not above: every run of pytest would take 3 s of processor time for it

        made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells], metadata=PYTHON)
        nbformat.write(made, path)
    show(page, server, name)
    wait_idle(page)
    return path


def show(page: Page, server: Server, name: str) -> None:
    """Open a served notebook, with or without a kernel: in JupyterLab, where it is loaded, without loading it anew."""
    if server.app == "jupyterlab" and page.url.startswith(f"{server.url}/lab") and loaded(page):
        page.evaluate(CLOSE)
        command(page, "docmanager:open", path=name)
        page.locator(".jp-Notebook .jp-Cell").first.wait_for()
    else:
        visit(page, server, name)


# Close all documents of the application without a question, and end their kernels.
# A document whose kernel is still being started would say so of itself as an error behind its end: it is waited for.
# A kernel that is about to start anew cannot be ended at once: the server says so, and is asked again.
CLOSE = """async () => {
  const {shell, serviceManager: {sessions}} = window.jupyterapp;
  const open = [...shell.widgets('main')], patience = new Promise(resolve => setTimeout(resolve, 20_000));
  await Promise.race([patience, Promise.allSettled(open.map(each => each.sessionContext?.ready))]);
  for (const each of open) each.dispose();
  for (let left = 20; ; left--) {
    try {
      return await sessions.shutdownAll();
    } catch (error) {
      if (!left) throw error;
      await new Promise(resolve => setTimeout(resolve, 250));
      await sessions.refreshRunning();
    }
  }
}"""


def visit(page: Page, server: Server, name: str) -> None:
    """Open a served notebook and wait until it stands there, with or without a kernel."""
    place = f"lab/tree/{name}?reset" if server.app == "jupyterlab" else f"notebooks/{name}"
    page.goto(f"{server.url}/{place}", wait_until="domcontentloaded")
    wait_restored(page)


def wait_restored(page: Page) -> None:
    """After a visit or a reload: the application and the notebook are there."""
    page.wait_for_function("window.jupyterapp && window.jupyterapp.restored !== undefined")
    page.evaluate("window.jupyterapp.restored.then(() => undefined)")
    page.locator(".jp-Notebook .jp-Cell").first.wait_for()
    wait_splash(page)


def wait_splash(page: Page) -> None:
    """The start screen is gone; JupyterLab shows it for a new theme, too, and another within its fade is an error."""
    page.locator("#jupyterlab-splash").wait_for(state="detached")


def wait_idle(page: Page) -> None:
    page.wait_for_function(IDLE)


def command(page: Page, name: str, **arguments: object) -> None:
    """Execute a command of the application, such as `notebook:run-all-cells`, and wait for it."""
    page.evaluate(
        "([name, given]) => window.jupyterapp.commands.execute(name, given).then(() => undefined)", [name, arguments]
    )


def cell(page: Page, index: int) -> Locator:
    return page.locator(".jp-Notebook .jp-Cell").nth(index)


def bring(page: Page, index: int) -> Locator:
    """Scroll to a cell that may not be drawn yet: a notebook draws those in sight (JupyterLab 4.4 hides the others)."""
    page.evaluate("index => window.jupyterapp.shell.currentWidget.content.scrollToItem(index, 'start')", index)
    found = cell(page, index)
    found.wait_for()
    return found


def output(page: Page, index: int) -> Locator:
    return cell(page, index).locator(".jp-OutputArea-output")


def start_cell(page: Page, index: int) -> None:
    """Run a cell as a person does, without waiting for its end."""
    editor = cell(page, index).locator(".cm-content")
    if not editor.count():
        bring(page, index)
    editor.click()
    page.keyboard.press("Control+Enter")


def run_cell(page: Page, index: int) -> None:
    """Run a cell as a person does, and wait for its end."""
    before = execution_count(page, index)
    start_cell(page, index)
    page.wait_for_function(
        "([index, before]) => { const cell = window.jupyterapp.shell.currentWidget.content.widgets[index].model;"
        " return cell.executionCount !== null && cell.executionCount !== before; }",
        arg=[index, before],
    )
    wait_idle(page)


def run_again(page: Page, index: int) -> None:
    """Run a cell by the application's own command, which says itself when the cell has ended: counts may repeat."""
    page.evaluate("index => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = index; }", index)
    command(page, "notebook:run-cell")


def restart_kernel(page: Page) -> None:
    """Restart the kernel as a person does, through the menu and its question."""
    page.evaluate("void window.jupyterapp.commands.execute('kernelmenu:restart')")
    page.locator(".jp-Dialog .jp-mod-accept").click()
    page.locator(".jp-Dialog").wait_for(state="detached")


def execution_count(page: Page, index: int) -> int | None:
    found: int | None = page.evaluate(
        "index => window.jupyterapp.shell.currentWidget.content.widgets[index].model.executionCount", index
    )
    return found


def run_all(page: Page) -> None:
    """Run every cell and wait for the last."""
    command(page, "notebook:run-all-cells")
    wait_idle(page)


def save(page: Page) -> None:
    command(page, "docmanager:save")


def theme(page: Page, name: Literal["light", "dark"]) -> None:
    command(page, "apputils:change-theme", theme=f"JupyterLab {name.title()}")
    page.locator(f"body[data-jp-theme-light={'true' if name == 'light' else 'false'}]").wait_for(state="attached")
    wait_splash(page)


# A bare page ---------------------------------------------------------------------------------------------------------


def open_module(page: Page, module: str = "gdlab.js") -> None:
    """An empty page with an ES module of the built front end as `window.gdlab`."""
    text = (REPO / "gdlab" / "static" / module).read_text(encoding="utf-8")
    page.set_content("<!doctype html><title>gdlab</title><body></body>")
    page.evaluate(
        "async text => { const url = URL.createObjectURL(new Blob([text], {type: 'text/javascript'}));"
        " window.gdlab = await import(url); URL.revokeObjectURL(url); }",
        text,
    )

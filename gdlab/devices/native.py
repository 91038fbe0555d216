"""Compile C for this machine at run time, where there is a compiler, and keep libraries beside other caches.

A library ends with a digest of what is before it. One that was cut off or changed on its disk is compiled anew: to load
it could end the process (SIGBUS behind the end of the file, SIGSEGV in a page of zeros).
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from gdlab.base.files import cache_folder

SECONDS = 30.0  # for the compiler
_DIGEST = hashlib.sha256().digest_size
_hanging: set[str] = set()  # compilers that took longer: each session would wait as long again


def compiler() -> str | None:
    """Return the path of the C compiler; None on other systems than Linux, where a missing one may open a window."""
    return shutil.which("cc") if sys.platform == "linux" else None


def functions(head: str, sources: Mapping[str, str], *options: str) -> dict[str, Any]:
    """Return C functions by name, those of `sources` that are not in the cache compiled now, all in one library; none
    where there is no compiler, or no folder for its output. Each text holds one function of its name, behind `head`;
    a name is never given to two texts. Calls release the interpreter."""
    if not sources or (cc := compiler()) is None or cc in _hanging:
        return {}
    with contextlib.suppress(OSError, RuntimeError, AttributeError, subprocess.SubprocessError):
        paths = {name: _path(name, head + text, options) for name, text in sources.items()}
        missing = [name for name, path in paths.items() if not _is_whole(path)]
        if missing:
            text = "".join([head, *(sources[name] for name in missing)])
            _compile(cc, text, options, {name: paths[name] for name in missing})
        return {name: getattr(ctypes.CDLL(str(path)), name) for name, path in paths.items()}
    return {}


def _path(name: str, text: str, options: Sequence[str]) -> Path:
    """Return the path of the library of a function. The processor is part of its name: machines may share the
    folder."""
    facts = "\0".join([text, *options, platform.machine(), _processor()])
    return cache_folder() / "native" / f"{name}-{hashlib.sha256(facts.encode()).hexdigest()[:16]}.so"


def _is_whole(path: Path) -> bool:
    """Return whether a library is there, as it was written."""
    try:
        data = path.read_bytes()
    except OSError:
        return False
    return hashlib.sha256(data[:-_DIGEST]).digest() == data[-_DIGEST:]


def _compile(compiler: str, text: str, options: Sequence[str], paths: Mapping[str, Path]) -> None:
    """Compile a text to a library that lies at the path of each of its functions, if it can be loaded and has all of
    them; other processes may do the same at the same time."""
    first, *_ = paths.values()
    first.parent.mkdir(parents=True, exist_ok=True)
    made = first.with_name(f".{first.name}.{os.getpid()}-{secrets.token_hex(4)}")
    command = [compiler, "-O2", *options, "-shared", "-fPIC", "-x", "c", "-", "-o", str(made)]
    try:
        subprocess.run(command, input=text.encode(), check=True, capture_output=True, timeout=SECONDS)
        with made.open("ab") as file:
            file.write(hashlib.sha256(made.read_bytes()).digest())
        library = ctypes.CDLL(str(made))
        for name, path in paths.items():
            getattr(library, name)
            own = made.with_name(f"{made.name}-{path.stem}")
            try:
                os.link(made, own)  # one file: the system loads it once
            except OSError:  # a folder without links
                shutil.copyfile(made, own)
            os.replace(own, path)
    except subprocess.TimeoutExpired:
        _hanging.add(compiler)
        raise
    finally:
        made.unlink(missing_ok=True)


@cache
def _processor() -> str:
    """Return what tells processors with other instructions apart."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("ascii", "replace").splitlines():
            if line.startswith(("flags", "Features")):
                return line
    return ""

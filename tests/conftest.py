"""Fixtures, and what holds in every test: the environment of the driver, plans judged as they are made."""

from __future__ import annotations

import gc
import signal

import pytest
from machine import expected, needs, set_environment
from marked import WORDS, is_candidate

set_environment()  # before NumPy is loaded, which reads it then

import slot_checker  # noqa: E402

pytest_plugins = ("browser", "documents", "shells", "lessons")


def pytest_configure() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so a shell starts what runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    expected()
    slot_checker.watch()


def pytest_collection_finish() -> None:
    """Leave the half million objects of the collected tests out of every search for garbage."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Leave what the tests made to the system: at exit each of a hundred IPython shells would search all of it for
    garbage, for minutes."""
    gc.freeze()


@pytest.fixture(params=["cpu", "wgpu"])
def device(request: pytest.FixtureRequest) -> str:
    """The name of each device in turn; wgpu is any adapter that answers."""
    if request.param == "wgpu":
        needs("wgpu")
    return str(request.param)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests with a browser and put them last: its event loop stays open, where plain asyncio cannot run.
    Refuse a marked test that tests/run.py would not find."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("browser")
    for mark in WORDS:
        for path in {item.path for item in items if item.get_closest_marker(mark)}:
            if not is_candidate(path, mark):
                raise pytest.UsageError(f"{path}: given tests marked {mark}, wanted one of {WORDS[mark]} in its text")
    items.sort(key=lambda item: item.get_closest_marker("browser") is not None)

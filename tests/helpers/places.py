"""Folders of the repository, for tests that read its files or start Python on them."""

from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
TESTS, NOTEBOOKS = REPO / "tests", REPO / "notebooks"
HELPERS = TESTS / "helpers"  # what a child process imports helpers from

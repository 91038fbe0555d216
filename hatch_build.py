"""Packaging hook: the front end is built before it is packed, and each file lands where it is read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent / "labextension"))
import frontend

LABEXTENSION = "share/jupyter/labextensions/gdlab"


class GdlabBuildHook(BuildHookInterface[Any]):
    def dependencies(self) -> list[str]:
        return [frontend.NODE_WHEEL] if frontend.stale() and not frontend.node_ok() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if frontend.stale():
            frontend.build()
        if self.target_name == "wheel":
            build_data["shared_data"]["gdlab/labextension"] = LABEXTENSION
            build_data["shared_data"]["labextension/install.json"] = f"{LABEXTENSION}/install.json"
        if self.target_name == "wheel" and version == "standard":
            build_data["force_include"]["shaders"] = "gdlab/shaders"

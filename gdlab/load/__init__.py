"""Read models and weights of files that others wrote. Each importer is loaded when somebody first asks for it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gdlab.load.nnef import NnefModel, load_nnef
    from gdlab.load.onnx import OnnxModel, load_onnx
    from gdlab.load.tensors import SafeTensorsModel, TensorInfo, load_safetensors

__all__ = ["NnefModel", "OnnxModel", "SafeTensorsModel", "TensorInfo", "load_nnef", "load_onnx", "load_safetensors"]

_MODULES = {
    "nnef": "NnefModel load_nnef", "onnx": "OnnxModel load_onnx",
    "tensors": "SafeTensorsModel TensorInfo load_safetensors",
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}

if not TYPE_CHECKING:  # a checker knows the names from above, and should refuse all others

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'gdlab.load' has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(f"gdlab.load.{_MODULE_OF[name]}"), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

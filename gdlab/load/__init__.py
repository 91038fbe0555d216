"""Read the weights of files that others wrote."""

from gdlab.load.tensors import SafeTensorsModel, TensorInfo, load_safetensors

__all__ = ["SafeTensorsModel", "TensorInfo", "load_safetensors"]

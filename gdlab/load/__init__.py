"""Read models and weights of files that others wrote: ONNX, NNEF, GGUF, safetensors."""

"""Write the small models that `models.ipynb` opens, each in the format of another library. Nothing is downloaded.

The files are those that the libraries write: an `.onnx` of an exporter, a folder of `save_pretrained`, a `.gguf` of
llama.cpp's converter, and the archive of `torch.export.save`, written here without PyTorch.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray]
BORDER = {"pads": [1, 1, 1, 1], "kernel_shape": [3, 3]}  # of a convolution that keeps the image's extents


# a network of images, as an exporter writes it ------------------------------------------------------------------------
def write_onnx(path: Path) -> None:
    """Write a classifier of images, whose batch has a name in place of a number."""
    from onnx import TensorProto, helper, numpy_helper, save

    rng = np.random.default_rng(0)

    def random(*shape: int) -> np.ndarray:
        return rng.normal(0, 0.3, shape).astype(np.float32)

    held = {"stem.conv.weight": random(8, 3, 3, 3)}
    nodes = [helper.make_node("Conv", ["image", "stem.conv.weight"], ["c"], "/stem/conv/Conv", **BORDER)]

    def norm(layer: str, x: str) -> str:
        made = (1 + random(8), random(8), random(8), 1 + np.abs(random(8)))
        names = [f"{layer}.{part}" for part in ("weight", "bias", "running_mean", "running_var")]
        held.update(zip(names, made, strict=True))
        nodes.append(helper.make_node("BatchNormalization", [x, *names], [f"{layer}.y"], f"/{layer}/BatchNorm"))
        nodes.append(helper.make_node("Relu", [f"{layer}.y"], [f"{layer}.relu"], f"/{layer}/Relu"))
        return f"{layer}.relu"

    x = norm("stem.bn", "c")
    for i in range(2):
        block = f"blocks.{i}"
        held[f"{block}.conv.weight"] = random(8, 8, 3, 3)
        nodes.append(helper.make_node("Conv", [x, f"{block}.conv.weight"], [f"{block}.c"], f"/{block}/Conv", **BORDER))
        nodes.append(helper.make_node("Add", [x, norm(f"{block}.bn", f"{block}.c")], [f"{block}.y"], f"/{block}/Add"))
        x = f"{block}.y"
    held |= {"head.weight": random(10, 8), "head.bias": random(10)}
    nodes += [
        helper.make_node("GlobalAveragePool", [x], ["p"], "/pool/GlobalAveragePool"),
        helper.make_node("Flatten", ["p"], ["f"], "/Flatten"),
        helper.make_node("Gemm", ["f", "head.weight", "head.bias"], ["scores"], "/head/Gemm", transB=1),
    ]
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 16, 16])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 10])
    tensors = [numpy_helper.from_array(values, name) for name, values in held.items()]
    graph = helper.make_graph(nodes, "classifier", [image], [scores], tensors)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


# a language model -----------------------------------------------------------------------------------------------------
def write_folder(folder: Path, config: Any, values: Arrays) -> None:
    """Write a trained `transformer_lm` as `save_pretrained` of a LLaMA does: config.json and safetensors, the matrices
    as [out, in]."""
    from safetensors.numpy import save_file

    fields = {
        "model_type": "llama", "vocab_size": config.vocab_size, "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers, "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads, "intermediate_size": config.intermediate_size,
        "rms_norm_eps": config.rms_norm_eps, "rope_theta": config.rope_theta, "tie_word_embeddings": config.tied,
        "max_position_embeddings": 512,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields, indent=1), "utf-8")
    save_file({name: np.ascontiguousarray(_out_in(name, data)) for name, data in values.items()},
              folder / "model.safetensors")  # fmt: skip


def write_gguf(path: Path, config: Any, values: Arrays) -> None:
    """Write the same model as llama.cpp's converter does, its matrices in q8_0: blocks of 32 elements in 8 bits."""
    import gguf

    kind = gguf.GGMLQuantizationType.Q8_0
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_context_length(512)
    for name, data in values.items():
        rows = _out_in(name, data)
        for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            if part in name:  # llama.cpp turns neighbours where others turn halves of a head
                halves = rows.reshape(heads, 2, -1, rows.shape[1])
                rows = halves.swapaxes(1, 2).reshape(rows.shape)
        packed = gguf.quants.quantize(np.ascontiguousarray(rows), kind) if rows.ndim == 2 else rows
        writer.add_tensor(_name_in_gguf(name), packed, raw_dtype=kind if rows.ndim == 2 else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _out_in(name: str, data: np.ndarray) -> np.ndarray:
    return data.T if data.ndim == 2 and "embed" not in name else data


def _name_in_gguf(name: str) -> str:
    names = {
        "model.embed_tokens": "token_embd", "model.norm": "output_norm", "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "model.layers": "blk",
    }  # fmt: skip
    for theirs, short in names.items():
        name = name.replace(theirs, short)
    return name


# a module of PyTorch --------------------------------------------------------------------------------------------------
NET = '''class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x):
        wide = F.gelu(self.up(self.norm(x)))
        return x + self.down(wide)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)
'''.splitlines()
LAYER: tuple[tuple[str, str, str, str, int], ...] = (  # operator, module, operand, result, line of NET
    ("layer_norm", "norm", "x", "a", 8),
    ("linear", "up", "a", "b", 8),
    ("gelu", "", "b", "c", 8),
    ("linear", "down", "c", "d", 9),
    ("add.Tensor", "", "d", "y", 9),
)
ROWS = 16


def write_pt2(path: Path) -> None:
    """Write the module `NET` as `torch.export.save` does: a zip with the program as JSON, and the weights."""
    rng = np.random.default_rng(1)
    layer = {"norm.weight": (8,), "norm.bias": (8,), "up.weight": (32, 8), "up.bias": (32,), "down.weight": (8, 32),
             "down.bias": (8,)}  # fmt: skip
    shapes = {f"layers.{i}.{name}": shape for i in range(2) for name, shape in layer.items()}
    shapes |= {"head.weight": (3, 8), "head.bias": (3,)}
    weights = {name: rng.normal(0, 0.4, shape).astype("<f4") for name, shape in shapes.items()}
    types = {f"p_{name}": _type(values.shape, True) for name, values in weights.items()}
    types |= {"x": _type((ROWS, 8)), "y": _type((ROWS, 3))}
    nodes = []
    for i in range(2):
        own = {"x": f"y{i - 1}" if i else "x"} | {name: f"{name}{i}" for name in "abcdy"}
        for operator, part, operand, result, line in LAYER:
            place = (f"layers.{i}", f"layers.{i}.{part}")[bool(part)]
            first = (own["x"],) if operator == "add.Tensor" else ()
            types[own[result]] = _type((ROWS, 32 if result in "bc" else 8))
            nodes.append(_node(operator, place, bool(part), (*first, own[operand]), own[result], line))
    nodes.append(_node("linear", "head", True, ("y1",), "y", 21))
    specs: list[Any] = [{"parameter": {"arg": {"name": f"p_{n}"}, "parameter_name": n}} for n in weights]
    specs.append({"user_input": {"arg": _tensor("x")}})
    program = {
        "graph_module": {
            "graph": {"nodes": nodes, "tensor_values": types, "inputs": [], "outputs": []},
            "signature": {"input_specs": specs, "output_specs": [{"user_output": {"arg": _tensor("y")}}]},
        },
        "schema_version": {"major": 8, "minor": 14},
    }
    places = {
        name: {"path_name": f"weight_{i}", "is_param": True, "use_pickle": False, "tensor_meta": types[f"p_{name}"]}
        for i, name in enumerate(weights)
    }
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("net/archive_version", b"0")
        archive.writestr("net/models/model.json", json.dumps(program))
        archive.writestr("net/data/weights/model_weights_config.json", json.dumps({"config": places}))
        archive.writestr("net/data/constants/model_constants_config.json", json.dumps({"config": {}}))
        for i, values in enumerate(weights.values()):
            archive.writestr(f"net/data/weights/weight_{i}", values.tobytes())


def _node(
    operator: str, module: str, held: bool, operands: tuple[str, ...], result: str, line: int
) -> dict[str, Any]:  # fmt: skip
    """One call in a module; `held`: its weight and bias are that module's."""
    names = ("self", "other") if operator == "add.Tensor" else ("input",) if held else ("self",)
    given = dict(zip(names, operands, strict=True))
    if held:
        given |= {name: f"p_{module}.{name}" for name in ("weight", "bias")}
    arguments = [{"name": name, "arg": _tensor(tensor), "kind": 1} for name, tensor in given.items()]
    if operator == "layer_norm":
        arguments.insert(1, {"name": "normalized_shape", "arg": {"as_ints": [8]}, "kind": 1})
    trace = f'File "models/net.py", line {line}, in forward\n    {NET[line - 1].strip()}\n'
    return {
        "target": f"torch.ops.aten.{operator}" + ("" if "." in operator else ".default"),
        "inputs": arguments, "outputs": [_tensor(result)],
        "metadata": {"nn_module_stack": f"L__self__,,net.Net;L__self___{module},{module},net.Layer",
                     "stack_trace": trace},
    }  # fmt: skip


def _tensor(name: str) -> dict[str, Any]:
    return {"as_tensor": {"name": name}}


def _type(shape: tuple[int, ...], trained: bool = False) -> dict[str, Any]:
    strides = np.cumprod((1, *shape[:0:-1]))[::-1]
    return {
        "dtype": 7, "sizes": [{"as_int": n} for n in shape], "requires_grad": trained, "storage_offset": {"as_int": 0},
        "strides": [{"as_int": int(n)} for n in strides], "device": {"type": "cpu", "index": None}, "layout": 7,
    }  # fmt: skip

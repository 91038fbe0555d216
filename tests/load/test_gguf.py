"""Language models of GGUF files compute what the same weights compute from safetensors, and files that are damaged or
not understood are refused by name."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell

import gdlab as gd
from gdlab import models
from gdlab.base.types import FORMATS, DType
from gdlab.load.gguf.tensor_names import our_name

RNG = np.random.default_rng(18)
CONFIG = models.TransformerLmConfig(40, 256, 2, 4, 2, 512, 1e-6, 50_000.0)
IDS = np.array([3, 39, 0, 7, 7], np.uint32)
LAYER = {
    "attn_norm": (256,), "attn_q": (256, 256), "attn_k": (128, 256), "attn_v": (128, 256), "attn_output": (256, 256),
    "ffn_norm": (256,), "ffn_gate": (512, 256), "ffn_up": (512, 256), "ffn_down": (256, 512),
}  # fmt: skip
FIELDS: dict[str, Any] = {
    "embedding_length": 256, "block_count": 2, "feed_forward_length": 512, "attention.head_count": 4,
    "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 50_000.0,
    "rope.dimension_count": 64, "context_length": 128, "vocab_size": 40,
}  # fmt: skip
Tensors = dict[str, np.ndarray]


def theirs(tied: bool = False) -> Tensors:
    """Weights under the names of GGUF as checkpoints of transformers have them: q and k are not reordered yet."""
    made = {f"blk.{i}.{n}.weight": RNG.normal(size=s) / 16 for i in range(2) for n, s in LAYER.items()}
    made |= {"token_embd.weight": RNG.normal(size=(40, 256)), "output_norm.weight": RNG.normal(size=256)}
    if not tied:
        made["output.weight"] = RNG.normal(size=(40, 256)) / 16
    return {name: values.astype(np.float32) for name, values in made.items()}


def permuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp, convert_hf_to_gguf.py, LlamaModel.permute."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def written(
    path: Path, tensors: Tensors, kind: str = "F32", fields: Mapping[str, Any] = FIELDS, more: Any = None
) -> Path:
    """Write a file by the package of ggml, q and k reordered as llama.cpp does."""
    writer = gguf.GGUFWriter(path, fields.get("arch", "llama"))
    writer.add_quantization_version(2)
    writer.add_token_list(["<s>", "ä", "", *map(str, range(37))])
    for name, value in fields.items():
        if name != "arch":
            add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
            (writer.add_string if isinstance(value, str) else add)(name if "!" in name else f"llama.{name}", value)
    if more is not None:
        more(writer)
    for name, values in tensors.items():
        heads = {"attn_q.weight": 4, "attn_k.weight": 2}.get(name.split(".", 2)[-1])
        values = values if heads is None else permuted(values, heads)
        number = gguf.GGMLQuantizationType[kind]
        if values.ndim == 1 or kind == "F32":
            writer.add_tensor(name, values)
        elif kind == "F16":
            writer.add_tensor(name, values.astype(np.float16))
        else:
            writer.add_tensor(name, blocks(values, kind), raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def blocks(values: np.ndarray, kind: str) -> np.ndarray:
    """Bytes in a format: by the package where it encodes it, else by our codec; the package decodes all."""
    number = gguf.GGMLQuantizationType[kind]
    try:
        return gguf.quantize(values, number)
    except NotImplementedError:
        words = gd.base.formats.encode(values, DType[kind.lower()])  # type: ignore[attr-defined]
        count = gd.TensorType(values.shape, DType[kind.lower()]).data_bytes
        return words.view(np.uint8)[:count].reshape(values.shape[0], -1)


def stored(values: np.ndarray, kind: str) -> np.ndarray:
    """The numbers that a file of this format holds, by the package."""
    if values.ndim == 1 or kind == "F32":
        return values
    if kind == "F16":
        return values.astype(np.float16).astype(np.float32)
    return gguf.dequantize(blocks(values, kind), gguf.GGMLQuantizationType[kind])


def judged(tensors: Tensors, kind: str, tied: bool, device: Any) -> np.ndarray:
    """Logits of the same weights from a checkpoint."""
    config = models.TransformerLmConfig(40, 256, 2, 4, 2, 512, 1e-6, 50_000.0, tied)
    graph = models.transformer_lm(config, len(IDS), "prefill")
    checkpoint = {str(our_name(name)): stored(values, kind) for name, values in tensors.items()}
    session = gd.build_inference_session(graph, device=device)
    for name, values in models.checkpoint_weights(graph, checkpoint).items():
        session.set_parameter(name, values)
    return ran(session)


def ran(session: gd.Session) -> np.ndarray:
    session.set_input("token_ids", IDS)
    session.step()
    return session.read_output_by_index(0)


def opened(path: Path, device: Any) -> np.ndarray:
    model = gd.load_gguf(path, "prefill", len(IDS))
    session = gd.build_inference_session(model.graph, device=device)
    model.set_parameters(session)
    return ran(session)


KINDS = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_same_weights_from_a_checkpoint(kind: str, tmp_path: Path) -> None:
    tensors, tied = theirs(kind == "Q6_K"), kind == "Q6_K"
    found = opened(written(tmp_path / "m.gguf", tensors, kind), "cpu")
    wanted = judged(tensors, kind, tied, "cpu")
    assert np.abs(found - wanted).max() <= 2e-5 * np.abs(wanted).max() and np.abs(wanted).max() > 1


def test_a_model_runs_on_every_device_in_its_own_formats(device: str, tmp_path: Path) -> None:
    tensors = theirs(tied=True)
    path = written(tmp_path / "m.gguf", tensors, "Q8_0")
    kept = {n.name: n.type for n in gd.load_gguf(path).graph.parameters}
    assert kept["model.embed_tokens.weight"] == gd.TensorType((40, 256), DType.q8_0)
    assert kept["model.layers.1.mlp.down_proj.weight"] == gd.TensorType((256, 512), DType.q8_0)
    assert kept["model.norm.weight"] == gd.TensorType((256,))
    found, wanted = opened(path, device), judged(tensors, "Q8_0", True, "cpu")
    assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()


def test_a_token_at_a_time_gives_what_the_prompt_gives(tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf", theirs(), "Q8_0")
    model = gd.load_gguf(path, "decode", 8)
    session = gd.build_inference_session(model.graph, device="cpu")
    session.initialize(zeros=True)
    model.set_parameters(session)
    rows = []
    for position, token in enumerate(IDS):
        session.set_input("token_ids", IDS[position : position + 1])
        session.set_input("kv_pos", np.array([position], np.uint32))
        session.step()
        rows.append(session.read_output_by_index(0)[0].copy())
        assert int(token) == IDS[position]
    np.testing.assert_allclose(np.stack(rows), opened(path, "cpu"), atol=2e-4)


def test_a_file_of_f32_can_be_trained_and_no_other(tmp_path: Path) -> None:
    tensors = theirs()
    model = gd.load_gguf(written(tmp_path / "m.gguf", tensors), "training", len(IDS))
    session = gd.build_session(model.graph, device="cpu")
    model.set_parameters(session)
    session.set_input("token_ids", IDS)
    session.set_input("labels", np.eye(40, dtype=np.float32)[IDS])
    session.step()
    assert np.isfinite(session.read_loss()) and session.read_param_grad("lm_head.weight").any()
    wanted = r"load_gguf: mode: given 'training', wanted 'prefill' or 'decode': this file has weights in q8_0"
    with pytest.raises(gd.ArgumentError, match=wanted):
        gd.load_gguf(written(tmp_path / "q.gguf", tensors, "Q8_0"), "training")


@pytest.mark.parametrize("kind", ["F32", "Q5_K"])
def test_values_by_our_names_are_those_of_the_checkpoint(kind: str, tmp_path: Path) -> None:
    """Square matrices too: [out, in] in the file, [in, out] in the graph where they lie in f32."""
    tensors = theirs()
    model = gd.load_gguf(written(tmp_path / "m.gguf", tensors, kind))
    assert len(model) == len(tensors) and set(model) == {our_name(name) for name in tensors}
    for name, values in tensors.items():
        ours = str(our_name(name))
        shape = model.graph_type(ours).shape
        turned = kind == "F32" and ("proj" in ours or "lm_head" in ours)
        wanted = stored(values, kind)
        np.testing.assert_array_equal(model[ours], wanted.T if turned else wanted)
        assert model[ours].shape == shape
    assert repr(model) == "<GgufModel: 2 layers, 21 parameters>"
    with pytest.raises(gd.UnknownNameError, match="did you mean 'lm_head.weight'|lm_head.weight"):
        model["lm_head.weights"]


def test_packed_bytes_multiply_in_a_list(tmp_path: Path) -> None:
    from gdlab.record import GgmlQuantizedMatmulParams

    tensors = theirs()
    model = gd.load_gguf(written(tmp_path / "m.gguf", tensors, "Q4_0"))
    name, x = "model.layers.0.self_attn.k_proj.weight", RNG.normal(size=(3, 256)).astype(np.float32)
    packed, ex = model.packed(name), gd.GraphExecutor("cpu")
    given, weight, out = (
        ex.alloc_buffer(x.nbytes, gd.f32, x.shape), ex.alloc_buffer(len(packed), gd.u32, (len(packed) // 4,)),
        ex.alloc_buffer(3 * 128 * 4, gd.f32, (3, 128)),
    )  # fmt: skip
    given.write(x)
    weight.write(packed)
    with ex.begin() as s:
        s.quantized_matmul_ggml(given, weight, out, GgmlQuantizedMatmulParams(3, 128, 256, "Q4_0"))
    np.testing.assert_allclose(out.read(), x @ model[name].T, atol=1e-4)


def test_sizes_of_blocks_are_those_of_the_package() -> None:
    for dtype, format in FORMATS.items():
        if dtype not in (DType.q4, DType.q8):
            number = gguf.GGMLQuantizationType[dtype.value.upper()]
            assert gguf.GGML_QUANT_SIZES[number] == (format.block, format.nbytes)


# refusals -------------------------------------------------------------------------------------------------------------
def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in FIELDS.items() if name not in names}


def array(name: str, values: list[Any]) -> Callable[[Any], None]:
    return lambda writer: writer.add_array(name, values)


@pytest.mark.parametrize(("fields", "text"), [
    ({"arch": "qwen2"}, "load_gguf: general.architecture: given 'qwen2', wanted 'llama'"),
    (without("attention.layer_norm_rms_epsilon"), "rms_epsilon': given none, wanted a finite number above 0"),
    (without("block_count"), "field 'llama.block_count': given none, wanted an int ≥ 1"),
    (FIELDS | {"rope.scaling.type": "yarn"}, "field 'llama.rope.scaling.type': given 'yarn', wanted 'none'"),
    (FIELDS | {"rope.scaling.factor": 8.0}, "field 'llama.rope.scaling.factor': given 8.0, wanted 1.0"),
    (FIELDS | {"rope.dimension_count": 32}, "rope.dimension_count': given 32, wanted 64, the width of a head"),
    (FIELDS | {"attention.key_length": 128}, "attention.key_length': given 128, wanted 64"),
    (FIELDS | {"attention.sliding_window": 4}, "sliding_window': given 4, wanted 0"),
    (FIELDS | {"expert_count": 8}, "expert_count': given 8, wanted 0"),
    (FIELDS | {"logit_scale": 0.5}, "field 'llama.logit_scale': given 0.5, wanted a field that this reader"),
    (FIELDS | {"block_count": 3}, "field 'llama.block_count': given 3, wanted 2, as there are tensors of layers"),
    (FIELDS | {"block_count": 1}, "field 'llama.block_count': given 1, wanted 2"),
    (FIELDS | {"attention.head_count": 3}, "attention.head_count': given 3, wanted a divisor of 256"),
    (FIELDS | {"attention.head_count_kv": 3}, "head_count_kv': given 3, wanted a divisor of 4"),
    (FIELDS | {"attention.head_count_kv": 4}, r"tensor 'blk.0.attn_k.weight': given [128, 256], wanted [256, 256]"),
    (FIELDS | {"vocab_size": 41}, "vocab_size': given 41, wanted 40, as the table of embeddings has rows"),
    (FIELDS | {"rope.freq_base": float("inf")}, "rope.freq_base': given inf, wanted a finite number above 0"),
    (FIELDS | {"feed_forward_length": 2**32 - 1}, "feed_forward_length': given 4294967295, wanted an int ≥ 1"),
])  # fmt: skip
def test_fields_that_the_model_does_not_compute_are_refused(fields: dict[str, Any], text: str, tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf", theirs(), fields=fields)
    with pytest.raises(gd.LoadError) as caught:
        gd.load_gguf(path)
    assert text in str(caught.value)


@pytest.mark.parametrize(("tensors", "kind", "more", "text"), [
    ({"blk.0.attn_q.bias": (256,)}, "F32", None, "'blk.0.attn_q.bias': given f32[256], wanted a tensor of 2"),
    ({"blk.0.ffn_gate_exps.weight": (8, 256)}, "F32", None, "tensor 'blk.0.ffn_gate_exps.weight'"),
    ({"blk.00.attn_q.weight": (256, 256)}, "F32", None, "tensor 'blk.00.attn_q.weight'"),
    ({"rope_freqs.weight": (32,)}, "F32", None, "tensor 'rope_freqs.weight': given f32[32] of other factors"),
    ({"blk.1.ffn_up.weight": None}, "F32", None, "given no 'model.layers.1.mlp.up_proj.weight'"),
    ({}, "MXFP4", None, "tensor 'blk.0.attn_q.weight': given format mxfp4, wanted one of f32, f16"),
    ({}, "F32", array("llama.attention.head_count_kv", [2, 1]), "head_count_kv': given (2, 1), wanted an int ≥ 1"),
    ({}, "F32", array("general.more", [[1, 2], [3]]), "field 'general.more': given an array of arrays"),
    ({}, "F32", lambda w: w.add_string("adapter.type", "lora"), "field 'adapter.type': given 'lora'"),
    ({}, "F32", lambda w: w.add_uint16("split.count", 2), "field 'split.count': given 2, wanted 0 or 1"),
])  # fmt: skip
def test_tensors_and_fields_that_nobody_reads_are_refused(
    tensors: dict[str, Any], kind: str, more: Any, text: str, tmp_path: Path
) -> None:
    kept = {k: v for k, v in theirs().items() if k not in tensors}
    kept |= {name: np.full(shape, 2, np.float32) for name, shape in tensors.items() if shape}
    fields = without("attention.head_count_kv") if "head_count_kv" in text else FIELDS
    with pytest.raises(gd.LoadError) as caught:
        gd.load_gguf(written(tmp_path / "m.gguf", kept, kind, fields, more))
    assert text in str(caught.value)


def test_fields_that_say_the_same_again_are_taken(tmp_path: Path) -> None:
    def more(writer: Any) -> None:
        writer.add_array("llama.attention.head_count_kv", [2, 2])
        writer.add_string("llama.rope.scaling.type", "none")
        writer.add_bool("llama.attention.causal", True)
        writer.add_array("tokenizer.ggml.scores", [0.5] * 5000)

    again = ("attention.head_count_kv", "rope.freq_base")
    tensors = theirs() | {"rope_freqs.weight": np.ones(32, np.float32)}
    path = written(tmp_path / "m.gguf", tensors, fields=without(*again), more=more)
    config = gd.load_gguf(path).config
    assert (config.num_key_value_heads, config.rope_theta, config.rms_norm_eps) == (2, 10_000.0, 1e-6)


def test_without_the_package_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    with pytest.raises(gd.LoadError, match=r"package gguf: given none, wanted pip install gdlab\[gguf\]"):
        gd.load_gguf(tmp_path / "m.gguf")


# hostile files --------------------------------------------------------------------------------------------------------
def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def head(tensors: int = 0, fields: int = 1, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, fields)


def tensor(name: str, extents: tuple[int, ...], kind: int = 0, start: int = 0) -> bytes:
    rank = len(extents)
    return text(name) + struct.pack(f"<I{rank}QIQ", rank, *extents, kind, start)


HUGE = 2**63
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "magic and version: given 8 bytes at 0, wanted at most the 0 up to 0"),
    "magic": (b"GGML" + bytes(20), "first bytes: given b'GGML', wanted b'GGUF'"),
    "version": (head(version=1), "version: given 1, wanted 2 or 3, little-endian"),
    "big endian": (head(version=3 << 24), "version: given 50331648, or a big-endian file"),
    "fields": (head(fields=HUGE), "fields or tensors: given 9,223,372,036,854,775,808, wanted at most 0 in 0 bytes"),
    "tensors": (head(HUGE, 0) + bytes(64), "fields or tensors: given 9,223,372,036,854,775,808, wanted at most 5"),
    "name": (head() + struct.pack("<Q", HUGE) + bytes(64), "name of a field: given 9,223,372,036,854,775,808 bytes"),
    "utf-8": (head() + struct.pack("<Q", 2) + b"\xff\xfe" + bytes(64), "name of a field: given 'utf-8' codec"),
    "value": (head() + text("x") + struct.pack("<I", 99) + bytes(64), "field 'x': given value type 99, wanted 0 … 12"),
    "string": (head() + text("x") + struct.pack("<IQ", 8, HUGE), "x: given 9,223,372,036,854,775,808 bytes at"),
    "array": (head() + text("x") + struct.pack("<IIQ", 9, 10, HUGE), "x: given 73,786,976,294,838,206,464 bytes at"),
    "strings": (head() + text("x") + struct.pack("<IIQ", 9, 8, HUGE), "given 9,223,372,036,854,775,808 strings"),
    "empty strings": (head() + text("x") + struct.pack("<IIQ", 9, 8, 1 << 20), "x: given 8 bytes at"),
    "nested": (head() + (text("x") + struct.pack("<IIQ", 9, 9, 1)) * 9, "field 'x': given an array of arrays"),
    "bool": (head() + text("x") + struct.pack("<IB", 7, 3) + bytes(64), "field 'x': given 3, wanted 0 or 1, a bool"),
    "alignment": (head() + text("general.alignment") + struct.pack("<II", 4, 3), "general.alignment: given 3"),
    "rank": (head(1, 0) + text("t") + struct.pack("<I", 5) + bytes(64), "tensor 't': given 5 axes, wanted 1 … 4"),
    "extent": (head(1, 0) + tensor("t", (HUGE, 4)), "tensor 't': given extents [4, 9223372036854775808]"),
    "no extent": (head(1, 0) + tensor("t", (0, 4)), "tensor 't': given extents [4, 0]"),
    "beyond": (head(1, 0) + tensor("t", (64, 64, 64, 64)), "tensor 't': given bytes 96 … 67,108,960"),
    "start": (head(1, 0) + tensor("t", (8,), 0, HUGE), "wanted a place within the file's"),
    "odd start": (head(1, 0) + tensor("t", (8,), 0, 4) + bytes(99), "a multiple of 32 behind 64"),
    "format": (head(1, 0) + tensor("t", (8,), 99), "tensor 't': given format number 99"),
    "rows": (head(1, 0) + tensor("t", (100,), 8), "tensor 't': given q8_0[100], wanted rows of a multiple of 32"),
    "twice": (head(2, 0) + tensor("t", (8,)) + tensor("t", (8,), 0, 32) + bytes(99), "names: given a name of two"),
    "overlap": (head(2, 0) + tensor("t", (16,)) + tensor("u", (8,), 0, 32) + bytes(99), "bytes that tensor 't' has"),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_a_damaged_header_is_refused_in_few_lines(what: str, tmp_path: Path) -> None:
    content, words = HOSTILE[what]
    (tmp_path / "m.gguf").write_bytes(content)
    tracemalloc.start()
    begin = time.process_time()
    try:
        with pytest.raises(gd.LoadError) as caught:
            gd.load_gguf(tmp_path / "m.gguf")
        assert words in str(caught.value) and len(str(caught.value).split("\n")) <= 3
        assert time.process_time() - begin < 2 and tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()


def test_no_damage_raises_anything_but_a_load_error(tmp_path: Path) -> None:
    """Every truncation of the header in steps, and 400 headers with bytes changed: a model or a LoadError."""
    path = written(tmp_path / "m.gguf", theirs(), "Q8_0")
    content, other = path.read_bytes(), tmp_path / "other.gguf"
    reach, random = content.index(b"output.weight") + 60, np.random.default_rng(4)
    for cut in range(0, reach, 37):
        other.write_bytes(content[:cut])
        with pytest.raises(gd.LoadError):
            gd.load_gguf(other)
    refused = 0
    for _ in range(400):
        changed = bytearray(content[: reach + 4096])
        for at in random.integers(0, reach, random.integers(1, 4)):
            changed[at] = random.integers(0, 256)
        other.write_bytes(changed + content[len(changed) :])
        try:
            gd.load_gguf(other)
        except gd.LoadError as error:
            refused += 1
            assert str(error).startswith("load_gguf: ")
    assert refused > 200


def test_a_file_that_became_shorter_and_a_folder_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf", theirs(), "Q8_0")
    model = gd.load_gguf(path)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(gd.LoadError, match="bytes, wanted .* of "):
        model["lm_head.weight"]
    for other in (tmp_path, tmp_path / "none.gguf"):
        with pytest.raises(gd.LoadError, match="wanted a GGUF file"):
            gd.load_gguf(other)


# as a study -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["F32", "BF16", "Q4_K", "Q6_K"])
def test_a_file_opens_as_a_study_whose_session_has_its_blocks(kind: str, tmp_path: Path) -> None:
    from gdlab.study.model_files import open_model

    tensors = theirs()
    path = written(tmp_path / "my-model.gguf", tensors, kind)
    study = open_model(path, {"length": len(IDS)})
    assert study.name == "my_model" and not study.notes
    session = study.session
    name = "model.layers.1.mlp.down_proj.weight"
    held = stored(tensors["blk.1.ffn_down.weight"], kind)
    got = session.read_param(name)
    np.testing.assert_array_equal(got if kind != "F32" else got.T, held)
    wanted = opened(path, session.device.kind)
    np.testing.assert_allclose(ran(session), wanted, rtol=1e-4, atol=1e-4)  # the study optimizes
    study.close()
    compiled = gd.build_compiled_graph(gd.load_gguf(path, "prefill", len(IDS)).graph, device="cpu")
    compiled.load_params(gd.load_gguf(path, "prefill", len(IDS)).weights)
    again = compiled.read_param(name)
    np.testing.assert_array_equal(again if kind != "F32" else again.T, held)
    compiled.close()


@pytest.mark.parametrize("kind", ["q4_k", "q6_k", "q5_1"])
def test_packed_blocks_enter_a_session_as_they_are(kind: str) -> None:
    """Blocks that no encoder makes: as numbers they would be encoded to others."""
    from gdlab.base.formats import decode
    from gdlab.base.formats.packed_bytes import Packed

    dtype = DType[kind]
    words = np.full(gd.TensorType((2, 256), dtype).size_bytes // 4, 0x31323334, np.uint32)  # halves of 0.16
    words[1::3] = RNG.integers(0, 1 << 32, len(words[1::3]), np.uint32) & 0x2FFF2FFF
    packed = Packed(dtype, (2, 256), words.tobytes()[: gd.TensorType((2, 256), dtype).data_bytes])
    held = decode(words, dtype, (2, 256))
    np.testing.assert_array_equal(np.asarray(packed), held)
    with gd.Graph() as g:
        g.output(gd.matmul_bt(gd.input("x", (3, 256)), gd.parameter("w", (2, 256), dtype=kind)))
    with gd.build_inference_session(g, "cpu") as session:
        session.set_parameter("w", packed)
        np.testing.assert_array_equal(session.read_param("w"), held)
        session.set_parameter("w", np.asarray(packed))
        assert not np.array_equal(session.read_param("w"), held)
    with gd.Graph() as g:
        g.output(gd.input("x", (3, 2)) @ gd.parameter("w", (2, 256)))
    with gd.build_inference_session(g, "cpu") as session:  # an f32 parameter takes the numbers
        session.set_parameter("w", packed)
        np.testing.assert_array_equal(session.read_param("w"), held)


def test_the_notebook_and_the_command_line_open_a_file(
    shell: InteractiveShell, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from gdlab.__main__ import main

    path = written(tmp_path / "tiny.gguf", theirs(), "Q8_0")
    assert main(["explain", str(path), "--dims", "length=5"]) == 0
    text = capsys.readouterr().out
    assert "graph tiny" in text and "q8_0[512, 256]" in text
    assert main(["explain", str(path)]) == 0
    assert "a prompt of 64 positions is assumed; --dims length=64 sets it" in capsys.readouterr().out
    assert main(["explain", str(path), "--dims", "seq=5"]) == 2
    assert "--dims: given seq=5, wanted length=N, the positions of a GGUF model" in capsys.readouterr().err
    path.with_name("bad.gguf").write_bytes(b"GGUF" + bytes(40))
    assert main(["explain", str(path.with_name("bad.gguf"))]) == 2
    assert "load_gguf: version: given 0" in capsys.readouterr().err
    shell.run_cell(f"%graph {path} --dims length=5")
    study = shell.user_ns["tiny"]
    assert isinstance(study, gd.Study) and study.graph.inputs[0].type.shape == (5,)


def test_the_weights_of_a_file_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf", theirs(), "Q4_0")
    weights = gd.load_gguf(path).weights
    assert len(weights) == len(list(weights)) == 21 and "nothing" not in weights
    one = weights["lm_head.weight"]
    assert one.dtype is DType.q4_0 and str(one.type) == "q4_0[40, 256]"
    np.testing.assert_array_equal(np.asarray(one), gd.load_gguf(path)["lm_head.weight"])
    with pytest.raises(KeyError):
        weights["nothing"]

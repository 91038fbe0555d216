"""`generate` writes the tokens that graphs of the exact length give, whatever buckets, devices, batches and other
generators there are, and refuses bad input before anything is made."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import gguf
import numpy as np
import pytest
from language_models import llama_folder
from machine import needs
from pretrained_folders import CASES, TOKENS, folder_of, ids_of, judged

import gdlab as gd
from gdlab.compiled import CompiledGraph
from gdlab.generate import generate, sequence, tokens
from gdlab.generate.weight_plans import Plans, bucket, cache_length, sequences_of

RNG = np.random.default_rng(25)
PROMPTS = [RNG.integers(0, 61, n).tolist() for n in (1, 7, 8, 9, 63)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama_folder(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return gd.models.from_pretrained(folder)


def exact_logits(model: Any, ids: list[int]) -> np.ndarray:
    """Logits of the last token, of a graph that is as long as the prompt."""
    at = model.at("prefill", len(ids))
    with gd.build_compiled_graph(at.graph, "cpu") as graph:
        at.set_parameters(graph.session)
        return graph.run_read_outputs({"token_ids": ids}, [0])[0][-1]


def written(model: Any, ids: list[int], count: int) -> list[int]:
    """Greedy tokens, each by a graph of the exact length."""
    made = list(ids)
    for _ in range(count):
        made.append(int(exact_logits(model, made).argmax()))
    return made[len(ids) :]


# the same numbers -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ids", PROMPTS, ids=lambda ids: str(len(ids)))
def test_padding_of_a_bucket_changes_no_logit_and_no_token(model: Any, ids: list[int]) -> None:
    made = model.generate(ids, max_new_tokens=5, device="cpu").finish()
    got, want = made._groups[0].sequences.prompt_logits[0], exact_logits(model, ids)
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
    assert made.tokens == written(model, ids, 5)


def test_caches_grow_into_the_next_bucket_and_tokens_stay(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = model.generate(PROMPTS[1], max_new_tokens=100, device="cpu").finish()
    assert whole.tokens[-20:] == written(model, PROMPTS[1] + whole.tokens[:-20], 20)
    lengths, copied = set[int](), []
    monkeypatch.setattr(sequence, "AHEAD", 1)
    copy = sequence.copy_caches
    monkeypatch.setattr(sequence, "copy_caches", lambda a, b: (copied.append(1), copy(a, b)))
    grown = model.generate(PROMPTS[1], max_new_tokens=100, device="cpu")
    for _ in grown:
        graph = grown._groups[0].sequences.decode
        lengths |= set() if graph is None else {graph.plan.param_types["k.0"].shape[0]}
    assert grown.tokens == whole.tokens and lengths == {8, 16, 32, 64, 128} and len(copied) == 4
    warm = model.generate(PROMPTS[1], max_new_tokens=100, temperature=0.7, seed=1, device="cpu").finish()
    monkeypatch.setattr(sequence, "AHEAD", 256)
    assert model.generate(PROMPTS[1], 100, temperature=0.7, seed=1, device="cpu").finish().tokens == warm.tokens


def test_both_devices_and_a_batch_write_what_each_prompt_alone_gives(model: Any) -> None:
    alone = [model.generate(ids, max_new_tokens=12, device="cpu").finish().tokens for ids in PROMPTS[:4]]
    several = model.generate([*PROMPTS[:3], np.array(PROMPTS[3], np.uint8)], max_new_tokens=12, device="cpu")
    steps = list(several)
    assert several.tokens == alone and steps[0] == [ids[0] for ids in alone] and len(steps) == 12
    assert model.generate(PROMPTS[1:3], max_new_tokens=12, device="wgpu").finish().tokens == alone[1:3]
    assert model.generate(PROMPTS[2], max_new_tokens=12, device="wgpu").finish().tokens == alone[2]
    square = model.generate(np.array([PROMPTS[2], PROMPTS[2][::-1]]), max_new_tokens=3, device="cpu").finish()
    assert square.tokens[0] == alone[2][:3] and len(square.tokens) == 2
    many = model.generate([PROMPTS[k % 4] for k in range(10)], max_new_tokens=4, device="cpu")
    assert many.finish().tokens == [alone[k % 4][:4] for k in range(10)] and len(many._groups) == 2


def test_rows_of_a_batch_end_for_themselves_and_grow_together(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence, "AHEAD", 1)
    prompts, drawn = [*PROMPTS[:2], PROMPTS[4] * 3], {"temperature": 1.0, "seed": 4, "top_k": 20}
    for drawing in ({"max_new_tokens": 67, "device": "cpu"}, {"max_new_tokens": 40, "device": "cpu", **drawn}):
        plain = model.generate(prompts[1], **drawing).finish()
        given = {**drawing, "stop": plain.tokens[8]}
        alone = [model.generate(ids, **given).finish() for ids in prompts]
        both = model.generate(prompts, **given)
        steps = list(both)
        assert both.tokens == [one.tokens for one in alone] and both.reason == [one.reason for one in alone]
        assert len({len(one.tokens) for one in alone}) > 1, "they end at different steps"
        ended = [len(one.tokens) for one in alone]
        assert all(
            [step[i] is None for step in steps] == [k >= n for k in range(len(steps))] for i, n in enumerate(ended)
        )


def test_a_batch_has_the_dispatches_of_one(folder: Path) -> None:
    """Also attention and what it writes to the caches."""
    model = gd.models.from_pretrained(folder)
    with Plans(gd.device("cpu")) as plans:
        one, eight = (plans.decode(model, 32, count) for count in (1, 8))
        assert len(eight.plan.dispatches) == len(one.plan.dispatches)
        assert (cache_length(eight), sequences_of(eight), eight.states) == (32, 8, one.states)


def test_as_many_sequences_go_together_as_a_kernel_can_bind_caches_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, device = gd.models.from_pretrained(folder), gd.device("cpu")
    alone = [model.generate(ids, 60, device=device).finish().tokens for ids in PROMPTS[:4]]
    with Plans(device) as plans:
        width = plans.decode(model, 32).plan.param_types["k.0"].shape[1]
        assert plans.together(model, 20) == 8
        target = device.target
        small = replace(target, limits=replace(target.limits, binding_bytes=3 * 4 * width * 128))
        monkeypatch.setattr(device, "target", small)
        assert [plans.together(model, positions) for positions in (33, 64, 65, 128, 129, 900)] == [6, 6, 3, 3, 1, 1]
        made = model.generate(PROMPTS[:4], 60, device=device)
        assert [len(group.rows) for group in made._groups] == [3, 1] and made.finish().tokens == alone


@pytest.mark.parametrize("dtype", ["f16", "q8", "q4"])
def test_weights_in_formats_write_what_their_own_graphs_give(folder: Path, dtype: str) -> None:
    model = gd.models.from_pretrained(folder, dtype=dtype)
    assert model.generate(PROMPTS[1], max_new_tokens=4, device="cpu").finish().tokens == written(model, PROMPTS[1], 4)


@pytest.mark.parametrize("name", CASES)
def test_a_family_writes_the_tokens_of_transformers_alone_and_in_a_batch(name: str, tmp_path: Path) -> None:
    model, ids = gd.models.from_pretrained(folder_of(name, tmp_path / "model")), ids_of(CASES[name])
    alone = model.generate(ids, max_new_tokens=TOKENS, device="cpu").finish()
    assert alone.tokens == judged(name).tokens
    if name not in ("llama 3.1", "mistral", "qwen3", "gemma2", "phi3, partial", "gpt2"):
        return
    with Plans(gd.device("cpu")) as plans:
        prefill = plans.prefill(model, 16, plans.decode(model, 32))
        wide = [d.label for d in prefill.plan.dispatches if "16x48" in d.label]
        assert wide == [], "the head computes the last row alone"
    short = model.generate(ids[:5], max_new_tokens=9, device="cpu").finish()
    assert model.generate([ids[:5], ids], 9, device="cpu").finish().tokens == [short.tokens, alone.tokens[:9]]


def test_a_gguf_file_writes_tokens_too(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    fields = {"embedding_length": 32, "block_count": 1, "feed_forward_length": 64, "attention.head_count": 2,
              "attention.head_count_kv": 1, "context_length": 48, "vocab_size": 40,
              "rope.dimension_count": 16}  # fmt: skip
    for name, value in fields.items():
        writer.add_uint32(f"llama.{name}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_uint32("tokenizer.ggml.eos_token_id", 2)
    layer = {"attn_norm": (32,), "attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32), "attn_output": (32, 32),
             "ffn_norm": (32,), "ffn_gate": (64, 32), "ffn_up": (64, 32), "ffn_down": (32, 64)}  # fmt: skip
    shapes = {f"blk.0.{name}": shape for name, shape in layer.items()}
    shapes |= {"token_embd": (40, 32), "output_norm": (32,), "output": (40, 32)}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", np.random.default_rng(len(name)).normal(size=shape).astype(np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    model = gd.load_gguf(tmp_path / "m.gguf")
    assert (model.positions, model.end_tokens, model.folder) == (48, (2,), None)
    assert model.generate([3, 1, 4], 6, stop=(), device="cpu").finish().tokens == written(model, [3, 1, 4], 6)
    with pytest.raises(gd.ArgumentError, match="generate: tokenizer: given a model without a folder"):
        model.generate("text")


# memory ---------------------------------------------------------------------------------------------------------------
def test_weights_lie_on_the_device_once_and_caches_go_with_the_generator(folder: Path) -> None:
    model = gd.models.from_pretrained(folder)
    first = model.generate(PROMPTS[1], max_new_tokens=30, device="cpu")
    next(first)
    kept = next(iter(tokens._PLANS[id(model)].values()))
    graph, holder = first._groups[0].sequences.decode, kept._holder
    assert graph is not None and holder is not None
    programs = [g.session.loaded.program for g in (graph, holder)]
    homes = [{n: p.memory_at(b)[0] for n, b in p.plan.stored_params} for p in programs]
    weights = [name for name in homes[0] if name not in graph.states]
    assert len(weights) > 10 and all(np.shares_memory(*(h[name] for h in homes)) for name in weights)
    assert not any(np.shares_memory(*(h[name] for h in homes)) for name in graph.states)
    assert graph.counters()["upload_bytes"] == 8, "token and position once: nothing of the weights, nothing per token"
    next(first)
    assert graph.counters()["upload_bytes"] == 8
    first.close()
    first.close()
    assert graph.closed and first.reason == "closed" and list(first) == [] and not holder.closed
    assert model.generate(PROMPTS[1], max_new_tokens=3, device="cpu").finish().reason == "length"
    model.unload()
    assert holder.closed
    again = model.generate(PROMPTS[1], max_new_tokens=3, device="cpu").finish()
    assert again.tokens[0] == first.tokens[0]
    holder = kept._holder
    number = id(model)
    del model, first, again
    gc.collect()
    assert holder is not None and holder.closed and number not in tokens._PLANS


@pytest.mark.parametrize("kind", ["cpu", "wgpu"])
def test_caches_begin_at_zero(folder: Path, kind: Literal["cpu", "wgpu"]) -> None:
    """Also where others were released just before: their memory may come back."""
    if kind == "wgpu":
        needs("wgpu")
    model = gd.models.from_pretrained(folder)
    with Plans(gd.device(kind)) as plans:
        for _ in range(3):
            with plans.decode(model, 32) as decode:
                assert not any(decode.read_param(name).any() for name in decode.states)
                for name in decode.states:
                    decode.set_param(name, np.ones(decode.plan.param_types[name].shape, np.float32))


def test_two_generators_side_by_side_do_not_disturb_each_other(model: Any) -> None:
    alone = [model.generate(ids, max_new_tokens=20, device="cpu").finish().tokens for ids in PROMPTS[1:3]]
    pair = [model.generate(ids, max_new_tokens=20, device="cpu") for ids in PROMPTS[1:3]]
    third = model.generate(PROMPTS[3], max_new_tokens=20, device="cpu")
    for _ in range(10):
        next(pair[0]), next(pair[1]), next(third)
    third.close()
    assert [p.finish().tokens for p in pair] == alone


def test_ctrl_c_ends_a_generator_and_the_next_one_works(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    want = model.generate(PROMPTS[1], max_new_tokens=20, device="cpu").finish().tokens
    real, calls = CompiledGraph.run_pipelined, []

    def interrupted(graph: CompiledGraph, *args: Any) -> Any:
        calls.append(graph)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(graph, *args)

    monkeypatch.setattr(CompiledGraph, "run_pipelined", interrupted)
    made = model.generate(PROMPTS[1], max_new_tokens=20, device="cpu")
    with pytest.raises(KeyboardInterrupt):
        list(made)
    assert made.tokens == want[: len(made.tokens)] and len(made.tokens) > 1
    assert made.reason == "closed" and calls[0].closed and list(made) == []
    assert model.generate(PROMPTS[1], max_new_tokens=20, device="cpu").finish().tokens == want


# ends, figures, text --------------------------------------------------------------------------------------------------
def test_stop_ends_behind_the_token_and_the_folder_names_the_end(folder: Path, tmp_path: Path) -> None:
    model = gd.models.from_pretrained(folder)
    plain = model.generate(PROMPTS[1], max_new_tokens=20, device="cpu").finish()
    at = plain.tokens.index(plain.tokens[6])
    for stop in (plain.tokens[6], [plain.tokens[6], 60], {plain.tokens[6]}, np.array([plain.tokens[6]])):
        made = model.generate(PROMPTS[1], 20, stop=stop, device="cpu").finish()
        assert made.tokens == plain.tokens[: at + 1] and made.reason == "stop"
    ended = gd.models.from_pretrained(llama_folder(tmp_path, eos_token_id=plain.tokens[6]))
    assert ended.generate(PROMPTS[1], 20, device="cpu").finish().tokens == plain.tokens[: at + 1]
    assert len(ended.generate(PROMPTS[1], 20, stop=(), device="cpu").finish().tokens) == 20
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [plain.tokens[2], 60]}))
    assert ended.generate(PROMPTS[1], 20, device="cpu").finish().tokens[-1] == plain.tokens[2]


def test_it_says_how_far_and_how_fast_it_is(model: Any) -> None:
    made = model.generate(PROMPTS[1], device="cpu")
    assert repr(made) == "<Tokens: 0 tokens, cpu>" and made.tokens_per_second == made.prefill_seconds == 0
    next(made)
    assert repr(made).startswith("<Tokens: 1 token, prefill ")
    list(made)
    assert len(made.tokens) == 64 and made.tokens_per_second > 0 < made.prefill_seconds
    assert repr(made).endswith("cpu, ended by length>") and "tokens/s" in repr(made)
    with model.generate(PROMPTS[:2], 5, device="cpu") as several:
        next(several)
    assert several.reason == ["closed", "closed"] and "2 tokens of 2 prompts" in repr(several)
    near = model.generate(PROMPTS[4] * 4, device="cpu").finish()  # 252 of 256 positions
    assert len(near.tokens) == 4


class Letters:
    """A tokenizer in which token n is the letter chr(64 + n); 60 is special."""

    @staticmethod
    def from_file(path: str) -> Letters:
        if "model" not in json.loads(Path(path).read_text()):
            raise Exception("no model")
        return Letters()

    def encode(self, text: str) -> Any:
        return SimpleNamespace(ids=[ord(c) - 64 for c in text])

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return "".join(chr(64 + id) for id in ids if id != 60 or not skip_special_tokens)


@pytest.fixture
def speaking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setitem(sys.modules, "tokenizers", SimpleNamespace(Tokenizer=Letters))
    home = llama_folder(tmp_path / "speaking")
    (home / "tokenizer.json").write_text('{"model": {}}')
    yield gd.models.from_pretrained(home)


def test_text_goes_in_and_comes_out_up_to_a_stop_text(speaking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [ord(c) - 64 for c in "HELLO"]
    plain = speaking.generate(ids, 20, device="cpu").finish()
    letters = "".join(chr(64 + id) for id in plain.tokens if id != 60)
    assert plain.text == letters
    made = speaking.generate("HELLO", 20, device="cpu").finish()
    assert made.tokens == plain.tokens and made.text == letters
    part = letters[9:12]
    cut = speaking.generate("HELLO", 20, stop=["~~", part], device="cpu").finish()
    assert cut.text == letters[: letters.index(part)] and cut.reason == "stop" and cut.tokens[-1] == ord(part[-1]) - 64
    assert speaking.generate(["HELLO", ids], 3, device="cpu").finish().text == [letters[:3]] * 2
    (speaking.folder / "tokenizer.json").write_text("{}")
    with pytest.raises(gd.LoadError, match="generate: tokenizer.json: given no model, wanted a file that the package"):
        speaking.generate("HELLO")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(gd.ArgumentError, match="given no package 'tokenizers', wanted pip install tokenizers"):
        plain.text  # noqa: B018
    (speaking.folder / "tokenizer.json").unlink()
    with pytest.raises(gd.ArgumentError, match="tokenizer: given no tokenizer.json in its folder, wanted token ids"):
        speaking.generate("HELLO")


# bad input ------------------------------------------------------------------------------------------------------------
BAD: list[tuple[dict[str, Any], str]] = [
    ({"ids": []}, "ids: given no token, wanted a prompt of one token or more"),
    ({"ids": [[1], []]}, r"ids\[1\]: given no token"),
    ({"ids": np.zeros((0,), int)}, "ids: given no token"),
    ({"ids": [1, 61]}, "ids: given 61 at position 1, wanted token ids, ints in 0 … 60"),
    ({"ids": [[1], [-1]]}, r"ids\[1\]: given -1 at position 0"),
    ({"ids": [1.0]}, "given 1.0 at position 0"),
    ({"ids": [True]}, "given True at position 0"),
    ({"ids": np.array([1.0])}, "given 1.0 at position 0"),
    ({"ids": np.array([True])}, "given True at position 0"),
    ({"ids": np.zeros((1, 1, 1), int)}, r"ids\[0\]: given an array \[1, 1\] of int64"),
    ({"ids": 5}, "ids: given 5, wanted a list of token ids"),
    ({"ids": None}, "ids: given NoneType None"),
    ({"ids": {"a": 1}}, "ids: given dict"),
    ({"ids": [1] * 256}, "ids: given 256 tokens, wanted fewer than 256, the model's positions"),
    ({"max_new_tokens": 254}, "max_new_tokens: given 254, wanted at most 253 behind a prompt of 3: the model has 256"),
    ({"max_new_tokens": 0}, "max_new_tokens: given 0, wanted an int ≥ 1"),
    ({"max_new_tokens": 2.0}, "max_new_tokens: given 2.0"),
    ({"max_new_tokens": True}, "max_new_tokens: given True"),
    ({"temperature": -0.1}, "temperature: given -0.1, wanted a finite number ≥ 0"),
    ({"temperature": float("nan")}, "temperature: given nan"),
    ({"temperature": float("inf")}, "temperature: given inf"),
    ({"temperature": "1"}, "temperature: given '1'"),
    ({"temperature": None}, "temperature: given None"),
    ({"top_p": 0}, r"top_p: given 0, wanted a number in \(0, 1\]"),
    ({"top_p": 1.1}, "top_p: given 1.1"),
    ({"top_p": float("nan")}, "top_p: given nan"),
    ({"top_k": 0}, "top_k: given 0, wanted an int ≥ 1"),
    ({"top_k": 1.5}, "top_k: given 1.5"),
    ({"seed": -1}, "seed: given -1, wanted an int ≥ 0"),
    ({"seed": 0.5}, "seed: given 0.5"),
    ({"stop": 61}, "stop: given 61, wanted token ids in 0 … 60"),
    ({"stop": [True]}, "stop: given True"),
    ({"stop": "end"}, "tokenizer: given no tokenizer.json in its folder"),
    ({"ids": "text"}, "tokenizer: given no tokenizer.json in its folder"),
]  # fmt: skip


def test_bad_input_is_refused_in_a_line_and_nothing_is_made(folder: Path) -> None:
    model = gd.models.from_pretrained(folder)
    for given, text in BAD:
        with pytest.raises(gd.ArgumentError, match=text) as error:
            model.generate(**{"ids": [1, 2, 3], "device": "cpu", **given})
        told = str(error.value)
        assert told.startswith("generate: ") and "\n" not in told and len(told) < 250
    at = type(model).at

    def encoder(self: Any, mode: str | None = None, length: int | None = None, batch: int | None = None) -> Any:
        if mode == "decode":
            raise gd.ArgumentError("from_pretrained", "mode", "'decode'", "one of inference, training")
        return at(self, mode, length, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(model), "at", encoder)
        with pytest.raises(gd.ArgumentError, match="generate: model: given <Pretr.*does not decode.*wanted a language"):
            model.generate([1])
    with pytest.raises(gd.ArgumentError, match="generate: model: given int, wanted a language model"):
        generate(3, [1])  # type: ignore[arg-type]
    with pytest.raises(gd.ArgumentError, match="device"):
        model.generate([1], device="tpu")
    assert id(model) not in tokens._PLANS


def with_weights(model: Any, monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None]) -> None:
    """Change the weights that a model gives to its plans."""
    set_all = type(model).set_parameters
    monkeypatch.setattr(type(model), "set_parameters", lambda self, session: (set_all(self, session), change(session)))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, temperature: float, bad: float
) -> None:
    model = gd.models.from_pretrained(folder)
    norm = np.full(32, bad, np.float32)
    with_weights(model, monkeypatch, lambda session: session.set_parameter("model.norm.weight", norm))
    text = r"generate: logits: given a largest of (nan|inf) for new token 1, wanted finite ones: look at the weights"
    for prompt in ([1], [[1, 2], [3]]):
        with pytest.raises(gd.SessionError, match=text):
            model.generate(prompt, temperature=temperature, device="cpu").finish()


@pytest.mark.parametrize("device", ["cpu", "wgpu"])
def test_the_first_token_whose_logits_are_not_finite_is_named(
    model: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    """The embedding of the fifth token is NaN: the logits behind it are."""
    plain = model.generate(PROMPTS[1], 12, device="cpu").finish().tokens
    assert plain.index(plain[4]) == 4 and plain[4] not in PROMPTS[1], "it is read then for the first time"
    broken = gd.models.from_pretrained(folder)

    def change(session: Any) -> None:
        table = session.read_param("model.embed_tokens.weight")
        table[plain[4]] = np.nan
        session.set_parameter("model.embed_tokens.weight", table)

    with_weights(broken, monkeypatch, change)
    made = broken.generate(PROMPTS[1], 12, device=device)
    with pytest.raises(gd.SessionError, match="given a largest of nan for new token 6, wanted finite ones"):
        made.finish()
    assert made.tokens == plain[:5] and made.reason == "closed"
    stopped = broken.generate(PROMPTS[1], 12, device=device, stop=plain[4]).finish()
    assert stopped.tokens == plain[:5], "nothing behind the end counts"


def test_buckets_are_powers_of_two_up_to_the_positions() -> None:
    assert [bucket(n) for n in (1, 8, 9, 63, 64, 65)] == [8, 8, 16, 64, 64, 128]
    assert bucket(65, 100) == 100 and bucket(3, 5) == 5

"""Check prompts and turn text into tokens and back, where a model has a tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gdlab.base.errors import ArgumentError, LoadError
from gdlab.generate.sampling import WHERE, whole_number

FILE = "tokenizer.json"
MOST_BYTES = 1 << 28
WANTED = "a list of token ids, an array of ints, a str, or a list of such prompts"


class Tokenizer:
    """The tokenizer of a model's folder: `tokenizer.json`, read by the package `tokenizers`."""

    def __init__(self, folder: object) -> None:
        path = None if folder is None else Path(str(folder)) / FILE
        if path is None or not path.is_file():
            given = "a model without a folder" if path is None else f"no {FILE} in its folder"
            raise ArgumentError(WHERE, "tokenizer", given, "token ids in place of text")
        try:
            import tokenizers
        except ImportError:
            wanted = "pip install tokenizers, or token ids in place of text"
            raise ArgumentError(WHERE, "tokenizer", "no package 'tokenizers'", wanted) from None
        if path.resolve().parent != path.parent.resolve() or path.stat().st_size > MOST_BYTES:
            raise LoadError(WHERE, FILE, "a link, or a file of more than 256 MB", f"{FILE} of the folder itself")
        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises plain Exceptions
            raise LoadError(WHERE, FILE, f"{error!s:.200}", "a file that the package 'tokenizers' reads") from None

    def ids(self, text: str) -> list[int]:
        """Return the tokens of a text, with those that the tokenizer adds."""
        return list(self._tokenizer.encode(text).ids)

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, without special ones."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))


@dataclass(frozen=True, slots=True)
class Prompts:
    """The token ids of each prompt; `single`: one prompt was given, not a list."""

    rows: tuple[tuple[int, ...], ...]
    single: bool


@dataclass(frozen=True, slots=True)
class StopSequences:
    """Tokens and texts that end a sequence."""

    ids: frozenset[int]
    texts: tuple[str, ...]


def checked_prompts(given: object, vocabulary: int, tokenizer: Tokenizer | None) -> Prompts:
    """Return prompts as tokens, or raise if they are none."""
    single = _is_prompt(given)
    if not single and (not isinstance(given, (list, tuple, np.ndarray)) or not len(given)):
        raise ArgumentError(WHERE, "ids", _shown(given), WANTED)
    prompts: Iterable[object] = [given] if single else given  # type: ignore[assignment]
    names = ["ids"] if single else [f"ids[{k}]" for k in range(len(given))]  # type: ignore[arg-type]
    pairs = zip(names, prompts, strict=True)
    return Prompts(tuple(_checked_row(name, prompt, vocabulary, tokenizer) for name, prompt in pairs), single)


def texts_in(given: object) -> bool:
    """Return whether a prompt or a stop sequence is text."""
    return isinstance(given, str) or (isinstance(given, (list, tuple)) and any(isinstance(g, str) for g in given))


def _is_prompt(given: object) -> bool:
    """Return whether this is one prompt: text, an array of one axis, or a list whose entries are no prompts."""
    if isinstance(given, str):
        return True
    if isinstance(given, np.ndarray):
        return given.ndim < 2
    return isinstance(given, (list, tuple)) and not any(isinstance(g, (str, list, tuple, np.ndarray)) for g in given)


def _checked_row(name: str, given: object, vocabulary: int, tokenizer: Tokenizer | None) -> tuple[int, ...]:
    if isinstance(given, str) and tokenizer is not None:
        given = tokenizer.ids(given)
    ids = given.tolist() if isinstance(given, np.ndarray) and given.ndim == 1 else given
    if not isinstance(ids, (list, tuple)):
        raise ArgumentError(WHERE, name, _shown(given), WANTED)
    if not ids:
        raise ArgumentError(WHERE, name, "no token", "a prompt of one token or more")
    for place, id in enumerate(ids):
        if isinstance(id, (bool, np.bool_)) or not isinstance(id, (int, np.integer)) or not 0 <= id < vocabulary:
            wanted = f"token ids, ints in 0 … {vocabulary - 1}"
            raise ArgumentError(WHERE, name, f"{id!r:.80} at position {place}", wanted)
    return tuple(int(id) for id in ids)


def checked_stop(given: object, vocabulary: int, tokenizer: Tokenizer | None) -> StopSequences:
    """Return the stop sequences: a token, a text, or a list of such."""
    entries = list(given) if isinstance(given, (list, tuple, set, frozenset, np.ndarray)) else [given]
    ids, texts = set[int](), list[str]()
    for entry in entries:
        if isinstance(entry, str):
            if not entry or tokenizer is None:
                raise ArgumentError(WHERE, "stop", repr(entry), "token ids, or texts that are not empty")
            texts.append(entry)
        else:
            id = whole_number("stop", entry, 0)
            if id >= vocabulary:
                raise ArgumentError(WHERE, "stop", id, f"token ids in 0 … {vocabulary - 1}")
            ids.add(id)
    return StopSequences(frozenset(ids), tuple(texts))


def _shown(given: object) -> str:
    if isinstance(given, np.ndarray):
        return f"an array {list(given.shape)} of {given.dtype}"
    return f"{given!r:.80}" if isinstance(given, (int, float)) else f"{type(given).__name__} {given!r:.40}"

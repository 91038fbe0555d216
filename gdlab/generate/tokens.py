"""Iterate over the tokens that a language model writes: `for token in model.generate(prompt)`."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

from gdlab.base.binding import bound
from gdlab.base.closing import Closing
from gdlab.base.errors import ArgumentError, GraphError, SessionError
from gdlab.base.words import duration, plural, sig
from gdlab.generate.graphs import decode_graph
from gdlab.generate.prompts import Prompts, StopSequences, Tokenizer, checked_prompts, checked_stop, texts_in
from gdlab.generate.sampling import WHERE, Sampling, checked_sampling, whole_number
from gdlab.generate.sequence import CachedSequences
from gdlab.generate.weight_plans import LanguageModel, Plans
from gdlab.session.builders import DeviceLike, resolve_device

DEFAULT_TOKENS = 64
TAIL = 8  # tokens more than a stop text has characters, in which it is looked for
PROGRESS_SECONDS = 0.25
Reason = Literal["", "stop", "length", "closed"]
_PLANS: dict[int, dict[str, Plans]] = {}  # id of a model that is alive -> device -> plans; models are not hashable
_LOCK = threading.Lock()


class _Row:
    """One prompt: the tokens that were given out, of `most` at most. `reason`: why it has ended."""

    def __init__(self, most: int, stop: StopSequences, tokenizer: Tokenizer | None) -> None:
        self.most, self.stop, self.tokenizer = most, stop, tokenizer
        self.tokens: list[int] = []
        self.reason: Reason = ""

    def take(self, token: int | float) -> int | None:
        """Give out a token, which may end the sequence; None if that has ended already. A float is a largest logit that
        is not finite."""
        if self.reason:
            return None
        if isinstance(token, float):
            given = f"a largest of {token} for new token {len(self.tokens) + 1}"
            raise SessionError(WHERE, "logits", given, "finite ones: look at the weights")
        self.tokens.append(token)
        if token in self.stop.ids or self._stop_text() >= 0:
            self.reason = "stop"
        elif len(self.tokens) >= self.most:
            self.reason = "length"
        return token

    def _stop_text(self) -> int:
        """Return the start of the first stop text in the text of the last tokens, or −1."""
        if not self.stop.texts or self.tokenizer is None:
            return -1
        last = self.tokens[-max(map(len, self.stop.texts)) - TAIL :]
        return _first(self.tokenizer.text(last), self.stop.texts)

    def text(self, tokenizer: Tokenizer) -> str:
        """Return the text of the tokens, up to a stop text."""
        text = tokenizer.text(self.tokens)
        end = _first(text, self.stop.texts)
        return text if end < 0 else text[:end]


class _Group:
    """Rows whose tokens are written together, and the steps that wait to be given out."""

    def __init__(self, rows: Sequence[_Row], sequences: CachedSequences) -> None:
        self.rows, self.sequences = rows, sequences
        self.waiting: deque[tuple[int | float, ...]] = deque()

    def next(self) -> list[int | None]:
        """Return the next token of each row. With the last one of all the memory is released."""
        alive = [not row.reason for row in self.rows]
        if not any(alive):
            return [None] * len(self.rows)
        if not self.waiting:
            self.waiting.extend(zip(*self.sequences.more(alive), strict=True))
        found = [row.take(token) for row, token in zip(self.rows, self.waiting.popleft(), strict=True)]
        if all(row.reason for row in self.rows):
            self.close()
        return found

    def close(self) -> None:
        """Release the memory, and drop the steps that wait."""
        for row in self.rows:
            row.reason = row.reason or "closed"
        self.waiting.clear()
        self.sequences.close()


def _first(text: str, parts: Sequence[str]) -> int:
    return min((place for part in parts if (place := text.find(part)) >= 0), default=-1)


@bound
class Tokens(Closing):
    """An iterator of tokens. For one prompt each item is a token id; for a list of prompts a list with a token for each
    prompt, None where a prompt has ended. A stop token is the last that is given out. The weights stay on the device
    with the model; caches and plans are released at the end, by `close`, at the end of a `with` block, and by an error
    or Ctrl-C."""

    def __init__(
        self, groups: Sequence[_Group], single: bool, device: str, make_tokenizer: Callable[[], Tokenizer]
    ) -> None:
        self._groups, self.single, self.device, self._make_tokenizer = tuple(groups), single, device, make_tokenizer
        self._rows = [row for group in groups for row in group.rows]
        self._shown: Callable[[Tokens], None] | None = None
        self._next_line = 0.0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if all(row.reason for row in self._rows):
            raise StopIteration
        try:
            self._tell()
            found = [token for group in self._groups for token in group.next()]
        except BaseException:
            self.close()
            raise
        if all(row.reason for row in self._rows):
            self._tell(True)
        return found[0] if self.single else found

    def finish(self) -> Self:
        """Write all tokens that are left, and return this object: `model.generate(prompt).finish().text`."""
        for _ in self:
            pass
        return self

    def close(self) -> None:
        """Release caches and plans; no further token is written. Idempotent."""
        if not all(row.reason for row in self._rows):
            for group in self._groups:
                group.close()
            self._tell(True)

    # what was written -------------------------------------------------------------------------------------------------
    @property
    def tokens(self) -> Any:
        """The token ids so far: a list, for several prompts a list for each."""
        found = [list(row.tokens) for row in self._rows]
        return found[0] if self.single else found

    @property
    def text(self) -> Any:
        """The text of the tokens so far, up to a stop text: a str, for several prompts a list. It needs a tokenizer."""
        tokenizer = self._make_tokenizer()
        found = [row.text(tokenizer) for row in self._rows]
        return found[0] if self.single else found

    @property
    def reason(self) -> Any:
        """The reason of the end: "stop", "length" (`max_new_tokens`), "closed", or "" while it goes on; for several
        prompts a list."""
        found = [row.reason for row in self._rows]
        return found[0] if self.single else found

    @property
    def prefill_seconds(self) -> float:
        """The seconds that reading the prompts took, plans that had to be compiled included."""
        return sum(group.sequences.prefill_seconds for group in self._groups)

    @property
    def tokens_per_second(self) -> float:
        """The number of tokens behind the first of each prompt, divided by their seconds; 0 before there are any."""
        seconds = sum(group.sequences.decode_seconds for group in self._groups)
        count = sum(group.sequences.decoded for group in self._groups)
        return count / seconds if seconds else 0.0

    def __repr__(self) -> str:
        count = sum(len(row.tokens) for row in self._rows)
        parts = [plural(count, "token")]
        if not self.single:
            parts[0] += f" of {plural(len(self._rows), 'prompt')}"
        if self.tokens_per_second:
            parts.append(f"{sig(self.tokens_per_second)} tokens/s")
        if self.prefill_seconds:
            parts.append(f"prefill {duration(self.prefill_seconds)}")
        reasons = sorted({row.reason for row in self._rows})
        ended = "" if "" in reasons else f", ended by {' and '.join(reasons)}"
        return f"<Tokens: {', '.join(parts)}, {self.device}{ended}>"

    # progress ---------------------------------------------------------------------------------------------------------
    def _tell(self, ended: bool = False) -> None:
        """Show the number of tokens so far in a notebook, at most four times a second."""
        now = time.monotonic()
        if self._shown is None and not ended:
            self._shown = self.progress_line()  # type: ignore[attr-defined]  # bound in gdlab/__init__.py
        elif self._shown is not None and (ended or now >= self._next_line):
            self._shown(self)
        else:
            return
        self._next_line = now + PROGRESS_SECONDS


def generate(
    model: LanguageModel, ids: Any, max_new_tokens: int | None = None, *, temperature: float = 0.0,
    top_k: int | None = None, top_p: float | None = None, seed: int | None = None, stop: Any = None,
    device: DeviceLike = "auto",
) -> Tokens:  # fmt: skip
    """Return an iterator of the tokens that follow a prompt: `ids` is a list or an array of token ids, a str where the
    model's folder has a tokenizer, or a list of such prompts, each of which is continued as if it were alone.

    `max_new_tokens`: 64, or what the model's positions leave. `temperature` 0 takes the likeliest token; else the
    logits are divided by it, the `top_k` largest are kept, of those the fewest that reach the probability `top_p`, and
    one is drawn; the same `seed` draws the same tokens. `stop`: token ids, or texts, that end a sequence; None: the end
    tokens of the model, (): nothing.
    """
    _check_model(model)
    sampling = checked_sampling(temperature, top_k, top_p, seed)
    text = texts_in(ids) or texts_in(stop)
    tokenizer = Tokenizer(model.folder) if text else None
    vocabulary = int(model.config.vocab_size)
    prompts = checked_prompts(ids, vocabulary, tokenizer)
    ends = StopSequences(frozenset(model.end_tokens), ()) if stop is None else checked_stop(stop, vocabulary, tokenizer)
    positions = model.positions
    most = [_checked_count(len(row), max_new_tokens, positions) for row in prompts.rows]
    plans = _plans_of(model, device)
    return _tokens(model, plans, prompts, most, sampling, ends, tokenizer)


def _check_model(model: Any) -> None:
    """Raise for a model without a graph that writes token by token, such as an encoder."""
    wanted = "a language model: gd.models.from_pretrained(folder) or gd.load_gguf(path)"
    if not isinstance(model, LanguageModel):
        raise ArgumentError(WHERE, "model", type(model).__name__, wanted)
    if id(model) in _PLANS:  # it was looked at before
        return
    try:
        decode_graph(model.at(mode="decode", length=1).graph, 1)
    except (ArgumentError, GraphError) as error:
        raise ArgumentError(WHERE, "model", f"{model!r:.80}, which does not decode ({error!s:.160})", wanted) from None


def _tokens(
    model: LanguageModel, plans: Plans, prompts: Prompts, most: Sequence[int], sampling: Sampling, stop: StopSequences,
    tokenizer: Tokenizer | None,
) -> Tokens:  # fmt: skip
    folder, groups = model.folder, list[_Group]()
    together = plans.together(model, max(len(p) + count for p, count in zip(prompts.rows, most, strict=True)))
    for start in range(0, len(most), together):
        some = slice(start, start + together)
        sequences = CachedSequences(model, plans, prompts.rows[some], most[some], sampling)
        groups.append(_Group([_Row(count, stop, tokenizer) for count in most[some]], sequences))
    return Tokens(groups, prompts.single, plans.device.info.kind, lambda: tokenizer or Tokenizer(folder))


def _checked_count(prompt: int, most: int | None, positions: int | None) -> int:
    """Return the largest number of new tokens, or raise."""
    if positions is not None and prompt >= positions:
        raise ArgumentError(WHERE, "ids", plural(prompt, "token"), f"fewer than {positions}, the model's positions")
    if most is None:
        return DEFAULT_TOKENS if positions is None else min(DEFAULT_TOKENS, positions - prompt)
    count = whole_number("max_new_tokens", most, 1)
    if positions is not None and prompt + count > positions:
        wanted = f"at most {positions - prompt} behind a prompt of {prompt}: the model has {positions} positions"
        raise ArgumentError(WHERE, "max_new_tokens", count, wanted)
    return count


def _plans_of(model: Any, device: DeviceLike) -> Plans:
    """Return the plans of a model on a device, which are released with the model."""
    opened = resolve_device(device)
    key = f"{opened.info.kind} {opened.info.name}"
    with _LOCK:
        if id(model) not in _PLANS:
            _PLANS[id(model)] = {}
            weakref.finalize(model, _forget, id(model)).atexit = False
        return _PLANS[id(model)].setdefault(key, Plans(opened))


def _forget(number: int) -> None:
    """Release the plans of a model that nobody refers to any more."""
    _close_all(_PLANS.pop(number))


def _close_all(by_device: dict[str, Plans]) -> None:
    for plans in list(by_device.values()):
        plans.close()


def unload(model: Any) -> None:
    """Release the weights that `generate` keeps on devices for a model; the next call uploads them again."""
    with _LOCK:
        by_device = dict(_PLANS.get(id(model), {}))
    _close_all(by_device)

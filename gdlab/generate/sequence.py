"""Write sequences: prompts read by a prefill plan, then tokens by a decode plan with caches for each of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import isfinite

import numpy as np

from gdlab.base.closing import Closing
from gdlab.base.types import Array
from gdlab.compiled import CompiledGraph
from gdlab.generate.graphs import LARGEST, LENGTH, LOGITS, NEXT, NEXT_POSITION, POSITION, START, TOKEN
from gdlab.generate.sampling import Sampling
from gdlab.generate.weight_plans import LanguageModel, Plans, bucket, cache_length, copy_caches

AHEAD = 256  # new tokens for which the first caches have room
FIRST_STEPS, MOST_STEPS = 4, 64  # of one call to the device
SHORT_SECONDS, LONG_SECONDS = 0.04, 0.15  # of a call
Steps = tuple[list[Array], list[Array]]  # of each step the tokens, u32[rows], and the largest logits, f32[rows]


class CachedSequences(Closing):
    """The tokens of a few prompts, which are written together. `most`: new tokens of each at most. `positions`: rows of
    each one's caches that hold a token; `prompt_logits`: those of the last token of each prompt, f32[vocabulary]."""

    def __init__(
        self, model: LanguageModel, plans: Plans, prompts: Sequence[Sequence[int]], most: Sequence[int],
        sampling: Sampling,
    ) -> None:  # fmt: skip
        self.model, self.plans, self.prompts, self.sampling = model, plans, prompts, sampling
        self.most = np.array(most)
        self.most_positions = model.positions
        self.made = 0  # new tokens of each; those behind `most` of one are nobody's
        self.decoded = 0  # tokens of all behind the first ones
        self.positions = np.zeros(len(prompts), np.int64)
        self.last: Array = np.zeros(len(prompts), np.uint32)  # the tokens that are to be written to the caches next
        self.prefill_seconds = self.decode_seconds = 0.0
        self.drawers = [] if sampling.greedy else [sampling.drawer() for _ in prompts]
        self.decode: CompiledGraph | None = None
        self.prompt_logits: list[Array] = []
        self._steps = FIRST_STEPS

    def more(self, alive: Sequence[bool]) -> list[list[int | float]]:
        """Return the next tokens of each prompt, one or several, as many for each; `alive`: those that still count, of
        which one must have tokens left. Of others the tokens mean nothing. A largest logit that is not finite, a float,
        is in the place of its token: the caller knows whether that one still counts."""
        start = time.perf_counter()
        if self.decode is None:
            tokens, largest = self._read_prompts()
            self.prefill_seconds = time.perf_counter() - start
        else:
            tokens, largest = self._written(self.decode, np.array(alive))
            self._adapt(time.perf_counter() - start, len(tokens))
            self.decoded += len(tokens) * sum(alive)
        self.made += len(tokens)
        self.last = tokens[-1]
        rows = zip(np.stack(tokens, 1).tolist(), np.stack(largest, 1).tolist(), strict=True)
        return [[k if isfinite(logit) else logit for k, logit in zip(*row, strict=True)] for row in rows]

    def close(self) -> None:
        """Release the caches and the memory of the plans."""
        decode, self.decode = self.decode, None
        if decode is not None:
            decode.close()

    # the prompts ------------------------------------------------------------------------------------------------------
    def _read_prompts(self) -> Steps:
        """Read the prompts into new caches, and return the first token of each."""
        rows = [bucket(len(prompt), self.most_positions) for prompt in self.prompts]
        ends = [len(p) + min(int(most), AHEAD) for p, most in zip(self.prompts, self.most, strict=True)]
        length = max(*rows, bucket(max(ends), self.most_positions))
        self.decode = self.plans.decode(self.model, length, len(self.prompts))
        first = [self._read_prompt(self.decode, i, rows[i]) for i in range(len(self.prompts))]
        self.positions = np.array([len(prompt) for prompt in self.prompts])
        self._feed(self.decode, np.array(first, np.uint32))
        return [np.array(first, np.uint32)], [np.array([logits.max() for logits in self.prompt_logits])]

    def _read_prompt(self, decode: CompiledGraph, place: int, rows: int) -> int:
        prompt = self.prompts[place]
        padded = np.zeros(rows, np.uint32)
        padded[: len(prompt)] = prompt
        start = place * cache_length(decode)
        with self.plans.prefill(self.model, rows, decode) as prefill:
            inputs = {TOKEN: padded, LENGTH: np.array([len(prompt)], np.uint32), START: np.array([start], np.uint32)}
            logits, following, _ = prefill.run_read_outputs(inputs, [LOGITS, NEXT])
        assert logits is not None and following is not None
        self.prompt_logits.append(logits[0])
        return self._draw(place, logits[0]) if self.drawers else int(following[0])

    def _feed(self, decode: CompiledGraph, tokens: Array) -> None:
        """Keep tokens and positions on the device, fed by the step before, if nothing is drawn."""
        if self.drawers:
            return
        positions = self._places(decode)
        for name, values, output in ((TOKEN, tokens, NEXT), (POSITION, positions, NEXT_POSITION)):
            decode.bind_gpu_handle(name, values)
            decode.set_gpu_handle_feed(name, output)

    def _places(self, decode: CompiledGraph) -> Array:
        """Return the rows of the caches that are written next; for a sequence that has ended, the last row."""
        return np.minimum(self.positions, cache_length(decode) - 1).astype(np.uint32)

    # tokens -----------------------------------------------------------------------------------------------------------
    def _written(self, decode: CompiledGraph, alive: Array) -> Steps:
        """Make some steps, and return their tokens."""
        most = int((self.most - self.made)[alive].max())
        room = cache_length(decode) - int(self.positions[alive].max())
        if not room:
            decode = self._grown(decode)
            room = cache_length(decode) - int(self.positions[alive].max())
        if self.drawers:
            return self._drawn(decode, alive)
        count = min(self._steps, most, room)
        results = decode.run_pipelined([{}] * count, [NEXT, LARGEST])
        self.positions += count
        return [tokens for tokens, _ in results], [logits for _, logits in results]

    def _drawn(self, decode: CompiledGraph, alive: Array) -> Steps:
        """Make a step and draw a token for each sequence that has not ended."""
        logits = decode.run_read_outputs({TOKEN: self.last, POSITION: self._places(decode)}, [LOGITS])[LOGITS]
        assert logits is not None
        self.positions += 1
        tokens = [self._draw(i, row) if lives else 0 for i, (row, lives) in enumerate(zip(logits, alive, strict=True))]
        return [np.array(tokens, np.uint32)], [logits.max(1)]

    def _draw(self, place: int, logits: Array) -> int:
        """Draw a token, or return 0 where the largest logit is not finite."""
        return self.drawers[place].draw(logits) if isfinite(logits.max()) else 0

    def _adapt(self, seconds: float, count: int) -> None:
        """Set the number of steps in a call so that it takes some hundredths of a second."""
        self.decode_seconds += seconds
        if count == self._steps and seconds < SHORT_SECONDS:
            self._steps = min(2 * self._steps, MOST_STEPS)
        elif seconds > LONG_SECONDS:
            self._steps = max(1, self._steps // 2)

    def _grown(self, decode: CompiledGraph) -> CompiledGraph:
        """Change to the decode plan of the next bucket of cache length, with the same rows in its caches; return it."""
        length = bucket(cache_length(decode) + 1, self.most_positions)
        longer = self.plans.decode(self.model, length, len(self.prompts))
        try:
            copy_caches(decode, longer)
            self._feed(longer, self.last)
        except BaseException:
            longer.close()
            raise
        self.decode = longer
        decode.close()
        return longer

"""Write one sequence: a prompt read by a prefill plan, then tokens by a decode plan with caches of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from gdlab.base.closing import Closing
from gdlab.compiled import CompiledGraph
from gdlab.generate.graphs import LENGTH, LOGITS, NEXT, NEXT_POSITION, POSITION, TOKEN
from gdlab.generate.plans import LanguageModel, Plans, bucket, copy_caches
from gdlab.generate.sampling import Sampling

AHEAD = 256  # new tokens for which the first caches have room
FIRST_STEPS, MOST_STEPS = 4, 64  # of one call to the device
SHORT_SECONDS, LONG_SECONDS = 0.03, 0.1  # of a call


class CachedSequence(Closing):
    """The tokens of one prompt as they are written. `positions`: rows of the caches that hold a token; `prompt_logits`:
    those of the last token of the prompt, f32[vocabulary]."""

    def __init__(
        self, model: LanguageModel, plans: Plans, prompt: Sequence[int], most: int, sampling: Sampling
    ) -> None:
        self.model, self.plans, self.prompt, self.sampling = model, plans, tuple(prompt), sampling
        self.most = most  # new tokens at most
        self.most_positions = model.positions
        self.made = self.positions = 0
        self.last = 0  # the token that is to be written to the caches next
        self.prefill_seconds = self.decode_seconds = 0.0
        self.drawer = None if sampling.greedy else sampling.drawer()
        self.decode: CompiledGraph | None = None
        self.prompt_logits: np.ndarray | None = None
        self._steps = FIRST_STEPS

    def more(self) -> list[int]:
        """Return the next tokens, at least one; nothing where `most` are made."""
        if self.made >= self.most:
            return []
        start = time.perf_counter()
        if self.decode is None:
            tokens = [self._read_prompt()]
            self.prefill_seconds = time.perf_counter() - start
        else:
            tokens = self._written(self.decode)
            self._adapt(time.perf_counter() - start, len(tokens))
        self.made += len(tokens)
        self.last = tokens[-1]
        return tokens

    def close(self) -> None:
        """Release the caches and the memory of the plans."""
        decode, self.decode = self.decode, None
        self.most = self.made
        if decode is not None:
            decode.close()

    # the prompt -------------------------------------------------------------------------------------------------------
    def _read_prompt(self) -> int:
        """Read the prompt into new caches, and return the first token."""
        count, most = len(self.prompt), self.most_positions
        rows = bucket(count, most)
        self.decode = self.plans.decode(self.model, max(rows, bucket(count + min(self.most, AHEAD), most)))
        padded = np.zeros(rows, np.uint32)
        padded[:count] = self.prompt
        with self.plans.prefill(self.model, rows, self.decode) as prefill:
            inputs = {TOKEN: padded, LENGTH: np.array([count], np.uint32)}
            logits, following, _ = prefill.run_read_outputs(inputs, [LOGITS, NEXT])
        assert logits is not None and following is not None
        self.positions, self.prompt_logits = count, logits[0]
        first = int(following[0]) if self.drawer is None else self.drawer.draw(logits[0])
        self._feed(self.decode, first)
        return first

    def _feed(self, decode: CompiledGraph, token: int) -> None:
        """Where nothing is drawn: keep token and position on the device, each fed by the step before."""
        if self.drawer is not None:
            return
        for name, value, output in ((TOKEN, token, NEXT), (POSITION, self.positions, NEXT_POSITION)):
            decode.bind_gpu_handle(name, np.array([value], np.uint32))
            decode.set_gpu_handle_feed(name, output)

    # tokens -----------------------------------------------------------------------------------------------------------
    def _written(self, decode: CompiledGraph) -> list[int]:
        if self.positions == self._room(decode):
            decode = self._grown(decode)
        if self.drawer is not None:
            inputs = {TOKEN: np.array([self.last], np.uint32), POSITION: np.array([self.positions], np.uint32)}
            logits = decode.run_read_outputs(inputs, [LOGITS])[LOGITS]
            assert logits is not None
            self.positions += 1
            return [self.drawer.draw(logits[0])]
        count = min(self._steps, self.most - self.made, self._room(decode) - self.positions)
        results = decode.run_pipelined([{}] * count, [NEXT])
        self.positions += count
        return [int(result[0][0]) for result in results]

    def _adapt(self, seconds: float, count: int) -> None:
        """Make as many steps in a call as take some hundredths of a second."""
        self.decode_seconds += seconds
        if count == self._steps and seconds < SHORT_SECONDS:
            self._steps = min(2 * self._steps, MOST_STEPS)
        elif seconds > LONG_SECONDS:
            self._steps = max(1, self._steps // 2)

    def _room(self, decode: CompiledGraph) -> int:
        """Return the positions of the caches."""
        return int(decode.plan.param_types[decode.states[0]].shape[0])

    def _grown(self, decode: CompiledGraph) -> CompiledGraph:
        """Go on with caches of the next bucket, which hold the same rows."""
        longer = self.plans.decode(self.model, bucket(self._room(decode) + 1, self.most_positions))
        try:
            copy_caches(decode, longer)
            self._feed(longer, self.last)
        except BaseException:
            longer.close()
            raise
        self.decode = longer
        decode.close()
        return longer

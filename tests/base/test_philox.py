"""The counter generator gives the published words, and the numbers made of them are the golden ones."""

from __future__ import annotations

import numpy as np
import pytest

from gdlab.base import philox

ONES = 0xFFFFFFFF
PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
KNOWN = {  # (counter, key) → words, as Random123 publishes them
    "zeros": ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    "ones": ((ONES,) * 4, (ONES,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    "digits of pi": (*PI, "d16cfe09 94fdcceb 5001e420 24126ea1"),
}
STREAMS = {  # (seed, call, step) → first words
    (0, 0, 0): "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    (42, 0, 0): "9ceaf053 77f5493b 12bf50ad 5742b3d7 fcdb2127 53ba6cfd 838f5a6e 744e06fb",
    (42, 1, 0): "02933769 2051e913 3b68b038 b62c409c",
    (41, 1, 0): "922af3b8 79e625fe bb08a3bd 4b74e3ac",
    (42, 0, 1): "20439b04 9807e022 5419fa3f c8fa5a2d",
    (2**64 - 1, 0, 0): "72a47709 15474739 9f41b01f 22799a5a",
}


def as_hex(words: np.ndarray) -> str:
    return " ".join(f"{int(word):08x}" for word in words)


@pytest.mark.parametrize(("counter", "key", "want"), KNOWN.values(), ids=KNOWN)
def test_a_block_has_the_published_words(counter, key, want) -> None:
    assert " ".join(f"{int(word):08x}" for word in philox.block(counter, key)) == want


@pytest.mark.parametrize(("stream", "want"), STREAMS.items(), ids=str)
def test_a_stream_has_the_golden_words(stream, want) -> None:
    seed, call, step = stream
    assert as_hex(philox.words(want.count(" ") + 1, seed, call=call, step=step)) == want


def test_a_stream_does_not_depend_on_how_much_is_taken() -> None:
    long = philox.words(1024, 42)
    assert int(long.sum(dtype=np.uint64)) == 2170443867741
    for count in (1, 3, 4, 5, 17):
        np.testing.assert_array_equal(philox.words(count, 42), long[:count])
    assert philox.words(1, 42, domain=1)[0] != long[0]


def test_uniform_numbers_are_the_golden_ones() -> None:
    values = philox.uniform(4, 42)
    assert values.dtype == np.float32
    wanted = [0.6129598617553711, 0.4685865044593811, 0.07323169708251953, 0.3408614993095398]
    assert values.tolist() == [float(np.float32(w)) for w in wanted]
    many = philox.uniform(100_000, 7)
    assert 0 <= many.min() and many.max() < 1 and abs(many.mean() - 0.5) < 0.005


def test_normal_numbers_are_the_golden_ones() -> None:
    golden = [-0.970189708191932, -1.2356200747928239, -0.07318130573074808, -1.1066648560793124]
    np.testing.assert_allclose(philox.normal(4, 42), golden, rtol=1e-7)
    many = philox.normal(100_000, 7)
    assert abs(many.mean()) < 0.01 and abs(many.std() - 1) < 0.01

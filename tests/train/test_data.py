"""Loaders: what is in a batch, in which order, and what is refused; the MNIST files."""

from __future__ import annotations

import gzip
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machine import needs

import gdlab as gd
from gdlab.train.data import shuffled

# Orders of 8 samples by seed: fixed for good, they decide what a network learns.
GOLDEN = {0: [7, 4, 3, 2, 5, 0, 1, 6], 42: [7, 1, 0, 3, 6, 4, 2, 5]}


def eight(batch_size: int = 8) -> gd.DataLoader:
    """Sample k is [k, k + 0.5] with the label [−k]."""
    data = np.arange(8)[:, None] + np.array([0, 0.5])
    return gd.DataLoader(data, -np.arange(8.0), 2, 1, batch_size)


def drawn(loader: gd.DataLoader) -> list[float]:
    return [float(value) for batch in loader for value in -batch.get("labels")]


@pytest.mark.parametrize("seed", GOLDEN)
def test_a_seed_gives_its_order_whatever_was_before(seed: int) -> None:
    loader = eight(2)
    assert drawn(loader) == list(range(8)), "unshuffled, the order of the data"
    for before in (5, seed, seed):
        loader.shuffle(before)
        loader.shuffle(seed)
        assert drawn(loader) == GOLDEN[seed]


def test_shuffling_is_a_permutation_and_takes_every_seed() -> None:
    for seed in (0, 1, 2**63, 2**64 - 1, np.int64(3)):
        assert sorted(shuffled(1000, int(seed))) == list(range(1000))
        eight().shuffle(seed)
    assert shuffled(1, 9) == [0] and shuffled(50, 1) != shuffled(50, 2)
    for wrong in (-1, 0.5, True, "0"):
        with pytest.raises(gd.ArgumentError, match="shuffle: seed: given"):
            eight().shuffle(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [1, 2, 3, 64, 65, 1000])
def test_the_order_is_that_of_the_generator_step_by_step(n: int) -> None:
    for seed in (0, 7, 2**64 - 2, 2**64 - 1, 2**70):
        order, state = list(range(n)), (seed + 1) % 2**64
        for i in range(n - 1, 0, -1):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            j = (state >> 33) % (i + 1)
            order[i], order[j] = order[j], order[i]
        assert shuffled(n, seed) == order


def test_a_batch_holds_whole_samples_of_all_streams() -> None:
    loader = eight(3)
    loader.shuffle(0)
    first, second = loader.next_batch(), loader.next_batch()
    assert first is not None and second is not None and loader.next_batch() is None, "8 = 3 + 3 + 2 that are left out"
    assert first.get("x").tolist() == [7, 7.5, 4, 4.5, 3, 3.5] and first.get("x").dtype == np.float32
    assert second.get("labels").tolist() == [-2, -5, 0]
    assert (len(loader), loader.num_batches(), loader.is_empty()) == (8, 2, False)
    assert loader.input_names() == ["x", "labels"] and "8 samples, 2 batches" in repr(loader)
    loader.reset()
    again = loader.next_batch()
    assert again is not None and again.get("x").tolist() == first.get("x").tolist(), "reset keeps the order"
    assert [b.get("labels").tolist() for b in loader] == [[-7, -4, -3], [-2, -5, 0]], "iterating begins anew"


def test_what_a_batch_holds_is_a_copy() -> None:
    data = np.zeros((4, 1), np.float32)
    loader = gd.DataLoader(data, data, 1, 1, 2)
    batch = loader.next_batch()
    assert batch is not None
    batch.get("x")[:] = 9
    assert not data.any() and not loader.next_batch().get("x").any()  # type: ignore[union-attr]


def test_streams_carry_the_names_of_inputs_and_keep_integers() -> None:
    ids = np.arange(12, dtype=np.uint32)
    streams = [gd.InputStream("tokens", ids, 3), gd.InputStream("weights", [1, 2, 3, 4], 1)]
    batch = gd.DataLoader.with_streams(streams, 2).next_batch()
    assert batch is not None
    assert batch.get("tokens").tolist() == [0, 1, 2, 3, 4, 5] and batch.get("tokens").dtype == np.uint32
    with pytest.raises(gd.UnknownNameError, match="nearest: tokens"):
        batch.get("token")


def stream(name: str, samples: int, size: int = 2) -> gd.InputStream:
    return gd.InputStream(name, np.zeros(samples * size), size)


BAD: dict[str, tuple[Any, str]] = {
    "not a multiple": (lambda: gd.DataLoader(np.zeros(9), np.zeros(4), 2, 1, 1), r"'x': given 9 values.* size 2"),
    "labels not a multiple": (lambda: gd.DataLoader(np.zeros(8), np.zeros(7), 2, 2, 1), "'labels': given 7 values"),
    "unequal lengths": (lambda: gd.DataLoader(np.zeros(8), np.zeros(5), 2, 1, 1), "'labels': given 5 samples"),
    "batch of 0": (lambda: gd.DataLoader(np.zeros(8), np.zeros(4), 2, 1, 0), r"'x': given 0, wanted 1 … 4"),
    "batch too large": (lambda: gd.DataLoader.with_streams([stream("a", 4)], 5), r"'a': given 5, wanted 1 … 4"),
    "batch not an int": (lambda: gd.DataLoader.with_streams([stream("a", 4)], 2.0), r"'a': given 2\.0"),  # type: ignore[arg-type]
    "no samples": (lambda: gd.DataLoader(np.zeros(0), np.zeros(0), 2, 1, 1), "given 1, wanted 1 … 0"),
    "sample of 0": (lambda: gd.DataLoader(np.zeros(8), np.zeros(4), 0, 1, 1), "'x': sample_size: given 0"),
    "no streams": (lambda: gd.DataLoader.with_streams([], 1), "one InputStream or more"),
    "a name twice": (lambda: gd.DataLoader.with_streams([stream("a", 2), stream("a", 2)], 1), "each name once"),
    "no name": (lambda: stream("", 2), "name: given ''"),
    "ragged": (lambda: gd.DataLoader([[1], [1, 2]], [1, 2], 1, 1, 1), "stream 'x'"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_wrong_loader_is_refused_by_the_name_of_its_stream(what: str) -> None:
    make, text = BAD[what]
    with pytest.raises(gd.ArgumentError, match=text):
        make()


def test_text_is_no_data() -> None:
    with pytest.raises(gd.DTypeError, match="stream 'x': given <U1"):
        gd.DataLoader(["a", "b"], [1, 2], 1, 1, 1)


# MNIST ----------------------------------------------------------------------------------------------------------------
PIXELS = np.arange(3 * 4 * 2, dtype=np.uint8).reshape(3, 4, 2) * 10
CLASSES = np.array([7, 0, 9], np.uint8)


def idx(array: np.ndarray, magic: int) -> bytes:
    return struct.pack(f">I{array.ndim}I", magic, *array.shape) + array.tobytes()


IMAGES, LABELS = idx(PIXELS, 0x803), idx(CLASSES, 0x801)


def written(folder: Path, images: bytes, labels: bytes) -> tuple[Path, Path]:
    (folder / "images").write_bytes(images)
    (folder / "labels").write_bytes(labels)
    return folder / "images", folder / "labels"


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_mnist_files_become_pixels_and_one_hot_rows(tmp_path: Path, pack: Any) -> None:
    data = gd.MnistDataset.load(*written(tmp_path, pack(IMAGES), pack(LABELS)))
    assert (len(data), data.n, data.images.dtype, data.labels.dtype) == (3, 3, np.float32, np.float32)
    np.testing.assert_array_equal(data.images, PIXELS.reshape(3, 8).astype(np.float32) / np.float32(255))
    assert data.labels.argmax(1).tolist() == [7, 0, 9] and data.labels.sum() == 3
    batch = data.loader(2).next_batch()
    assert batch is not None and batch.get("x").shape == (16,) and batch.get("labels").shape == (20,)


FAULTS: dict[str, tuple[bytes, bytes, str]] = {
    "wrong magic": (LABELS + bytes(99), LABELS, "magic number: given 0x801, wanted 0x803"),
    "wrong magic of labels": (IMAGES, IMAGES, "magic number: given 0x803, wanted 0x801"),
    "other count": (IMAGES, idx(CLASSES[:2], 0x801), "given 2 labels, wanted 3"),
    "truncated": (IMAGES[:-1], LABELS, "given 23 bytes, wanted 24 bytes"),
    "truncated header": (IMAGES[:7], LABELS, "header: given 7 bytes, wanted 16"),
    "too long": (IMAGES + b"x", LABELS, "given more bytes, wanted 24"),
    "empty": (b"", LABELS, "header: given 0 bytes"),
    "a label of 10": (IMAGES, idx(CLASSES + np.uint8(1), 0x801), "label 10 at 2"),
    "a promise of 2^96 bytes": (struct.pack(">4I", 0x803, *[2**32 - 1] * 3) + bytes(50), LABELS, "given 50 bytes"),
    "gzip cut short": (gzip.compress(IMAGES)[:-9], LABELS, "wanted an IDX file"),
    "gzip damaged": (b"\x1f\x8b" + bytes(40), LABELS, "wanted an IDX file"),
}


@pytest.mark.parametrize("what", FAULTS)
def test_a_damaged_mnist_file_is_refused(tmp_path: Path, what: str) -> None:
    images, labels, text = FAULTS[what]
    with pytest.raises(gd.LoadError, match=text):
        gd.MnistDataset.load(*written(tmp_path, images, labels))


def test_a_missing_mnist_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(gd.LoadError, match="MnistDataset"):
            gd.MnistDataset.load(path, path)


def test_a_pipe_and_a_device_are_no_mnist_files(tmp_path: Path) -> None:
    needs("posix")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(gd.LoadError, match="a pipe, a device or a socket"):
            gd.MnistDataset.load(path, path)

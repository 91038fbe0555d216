"""Thin out curves: fewer points that draw the same line."""

from __future__ import annotations

from collections.abc import Sequence


def averaged(points: Sequence[tuple[int, float]], most: int) -> list[tuple[int, float]]:
    """Return at most `most` points: the mean of each bucket at its last step. Many noisy curves can be told apart so;
    of a bucket with a number that is not finite that number."""
    size = max(1, -(-len(points) // most))
    buckets = [points[i : i + size] for i in range(0, len(points), size)]
    return [(bucket[-1][0], sum(loss for _, loss in bucket) / len(bucket)) for bucket in buckets]


def decimated(points: Sequence[tuple[int, float]], most: int) -> list[tuple[int, float]]:
    """Return at most `most` points: the lowest and the highest of each bucket, and the last; order kept."""
    if len(points) <= most:
        return list(points)
    size = -(-2 * len(points) // (most - 2))
    kept: list[tuple[int, float]] = []
    for i in range(0, len(points), size):
        bucket = points[i : i + size]
        ends = {min(bucket, key=lambda p: p[1]), max(bucket, key=lambda p: p[1])}
        kept += sorted(ends)
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]

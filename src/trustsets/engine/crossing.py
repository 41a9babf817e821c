"""The first zero of a residual along an edge, found by a look at few points.

Which points a step must look at, and why that is exact, is told in `scan`. Imports `kernels`,
`landmarks`, `problem`, `scan` and `work`.
"""

from typing import Any

import numpy as np

from trustsets.engine.compiled import inner
from trustsets.engine.kernels import WIDTH, block_products
from trustsets.engine.landmarks import RESIDUAL, SHIFT, START
from trustsets.engine.problem import FloatArray, IntArray
from trustsets.engine.scan import DISTANCE, FIRST_KEY, LEAST, SIDE, SPREAD, Scan
from trustsets.engine.work import (
    BLOCK_CACHE,
    CLOCK,
    EDGE,
    FIRST_CACHE,
    HOME_SHIFT,
    KNOWN,
    MARK,
    OPENED,
    READ,
    SEEN,
    SPEED,
    STAMP,
    WAY,
    PathState,
    rows_dot,
)

__all__ = ["advance", "first_crossing"]

EDGE_TOL = 1e-11
"""A product with an edge below this share of the edge's length counts as zero."""
RADIUS_SLACK = 1.0 + 1e-9
"""Room for rounding in the comparison of keys and distances."""
FLOOR_SLACK = 1e-9
"""Room for rounding in the bound of a block."""
NEXT: Any = np.int64(WIDTH)
"""Where the second products of a chapter go, after the first."""
UNREACHED = 1e150
"""The length of a step that nothing ends; finite, so that its products are numbers."""


@inner()
def first_crossing(members: int, scan: Scan, state: PathState) -> tuple[float, int, int]:
    """First zero of a residual along the edge: step, entering point, number of blocks seen.

    The entering point is a member's number or the number of members plus its position; -1: a ray.
    """
    vectors, cache, floor, visits = state.vectors, state.cache, state.floor, state.visits
    blocks, summary, points = scan.blocks, scan.summary, scan.points
    clock, mark, known = state.counters[CLOCK], state.counters[MARK], state.counters[KNOWN]
    long = rows_dot(vectors, EDGE, vectors, EDGE)
    tiny = EDGE_TOL * np.sqrt(long)
    here = rows_dot(vectors, SHIFT, vectors, SHIFT)
    along = rows_dot(vectors, SHIFT, vectors, EDGE)
    gone = rows_dot(vectors, WAY, vectors, WAY)
    ahead = rows_dot(vectors, WAY, vectors, EDGE)
    length, entering = _member_crossing(members, tiny, state.row, state.member, vectors)
    radius, reach = _after(here, along, long, length), _after(gone, ahead, long, length)
    seen = 0
    for chapter in range(len(scan.centres)):
        if summary[FIRST_KEY, chapter * WIDTH] > radius:
            break
        if visits[OPENED, chapter] != mark:
            visits[OPENED, chapter] = mark
            _set_floors(chapter, scan.centres, summary, vectors, cache, floor)
        block_products(scan.centres, chapter, vectors, WAY, cache, START)
        block_products(scan.centres, chapter, vectors, EDGE, cache, NEXT)
        for lane in range(WIDTH):
            block = chapter * WIDTH + lane
            # At the end of the step the signed products of the block stay below this.
            bound = cache[lane] + length * cache[WIDTH + lane] + summary[SPREAD, block] * reach
            if summary[FIRST_KEY, block] > radius or bound < floor[block]:
                continue
            low = FIRST_CACHE + block * BLOCK_CACHE
            if visits[READ, block] != mark:
                visits[READ, block] = mark
                _read_home(block, blocks, points, vectors, cache, low)
                _hide(block, state.position, START, known, cache, low)
                floor[block] = _least(cache, low)
                if bound < floor[block]:
                    continue
            if visits[STAMP, block] != clock:
                _read_near(block, blocks, vectors, cache, low)
                _hide(block, state.position, known, members, cache, low + WIDTH)
            visits[SEEN, seen] = block
            seen += 1
            block_products(blocks, block, vectors, EDGE, cache, low + 2 * WIDTH)
            shorter, found = _block_crossing(cache, low + WIDTH, tiny, length)
            if found >= 0:
                length, entering = shorter, members + block * WIDTH + found
                radius, reach = _after(here, along, long, length), _after(gone, ahead, long, length)
    return length, entering, seen


@inner(inline="always")
def _after(square: float, along: float, long: float, length: float) -> float:
    """Distance after a step of `length` along the edge from a point at a squared distance."""
    if length >= UNREACHED:
        return UNREACHED * UNREACHED  # beyond all keys, but not beyond padding
    return float(RADIUS_SLACK * np.sqrt(max(square + length * (2.0 * along + length * long), 0.0)))


@inner()
def _member_crossing(
    members: int, tiny: float, row: FloatArray, member: FloatArray, vectors: FloatArray
) -> tuple[float, int]:
    """First zero among members that are not basic."""
    length, entering = UNREACHED, -1
    for m in range(members):
        side = member[SIDE, m]
        if side != 0.0:
            rate = rows_dot(row, m, vectors, EDGE)
            member[SPEED, m] = rate
            if side * rate > tiny:
                step = max(side * member[RESIDUAL, m], 0.0) / (side * rate)
                if step < length:
                    length, entering = step, m
    return length, entering


@inner(inline="always")
def _set_floors(
    chapter: int,
    centres: FloatArray,
    summary: FloatArray,
    vectors: FloatArray,
    cache: FloatArray,
    floor: FloatArray,
) -> None:
    """Lower bounds of the residuals of blocks at the landmark."""
    block_products(centres, chapter, vectors, HOME_SHIFT, cache, START)
    far = np.sqrt(rows_dot(vectors, HOME_SHIFT, vectors, HOME_SHIFT))
    for lane in range(WIDTH):
        block, middle = chapter * WIDTH + lane, cache[lane]
        around = summary[SPREAD, block] * far
        slack = FLOOR_SLACK * (abs(middle) + around)
        floor[block] = (1.0 - FLOOR_SLACK) * summary[LEAST, block] - (middle + around + slack)


@inner(inline="always")
def _read_home(
    block: int,
    blocks: FloatArray,
    points: FloatArray,
    vectors: FloatArray,
    cache: FloatArray,
    low: int,
) -> None:
    """Signed residuals of a block at the landmark: distances less the products with its shift."""
    block_products(blocks, block, vectors, HOME_SHIFT, cache, low)
    for lane in range(WIDTH):
        cache[low + lane] = points[DISTANCE, block * WIDTH + lane] - cache[low + lane]


@inner(inline="always")
def _read_near(
    block: int, blocks: FloatArray, vectors: FloatArray, cache: FloatArray, low: int
) -> None:
    """Signed residuals of a block now: those at the landmark less the products with the way."""
    block_products(blocks, block, vectors, WAY, cache, low + WIDTH)
    for i in range(low, low + WIDTH):
        cache[i + WIDTH] = cache[i] - cache[i + WIDTH]


@inner(inline="always")
def _hide(
    block: int, position: IntArray, first: int, last: int, cache: FloatArray, low: int
) -> None:
    """Make the residuals of members of a block infinite: the scan then passes over them."""
    for m in range(first, last):
        if position[m] // WIDTH == block:
            cache[low + position[m] % WIDTH] = np.inf


@inner(inline="always")
def _least(cache: FloatArray, low: int) -> float:
    """Smallest residual of a block, less some room for rounding."""
    least = np.inf
    for i in range(low, low + WIDTH):
        least = min(least, cache[i])
    return least * (1.0 - FLOOR_SLACK if least > 0.0 else 1.0 + FLOOR_SLACK)


@inner()
def _block_crossing(cache: FloatArray, low: int, tiny: float, length: float) -> tuple[float, int]:
    """First zero before `length` of the residuals at `low`: step and place in the block, or -1.

    The count is a loop without branches, which vectorises; most blocks end there.
    """
    count = 0
    for i in range(low, low + WIDTH):
        count += (cache[i + WIDTH] > tiny) & (cache[i] < length * cache[i + WIDTH])
    found = -1
    if count > 0:
        for lane in range(WIDTH):
            near, speed = cache[low + lane], cache[low + WIDTH + lane]
            if speed > tiny and near < length * speed:
                length, found = max(near, 0.0) / speed, lane
    return length, found


@inner()
def advance(length: float, members: int, seen: int, state: PathState) -> None:
    """Move the vertex and all residuals in view by `length` along the edge."""
    vectors, member, visits, cache = state.vectors, state.member, state.visits, state.cache
    state.counters[CLOCK] += 1
    clock = state.counters[CLOCK]
    for j in range(vectors.shape[1]):
        step = length * vectors[EDGE, j]
        vectors[SHIFT, j] += step
        vectors[WAY, j] += step
    for m in range(members):
        if member[SIDE, m] != 0.0:
            member[RESIDUAL, m] -= length * member[SPEED, m]
    for s in range(seen):
        block = visits[SEEN, s]
        visits[STAMP, block] = clock
        low = FIRST_CACHE + block * BLOCK_CACHE + WIDTH
        for i in range(low, low + WIDTH):
            cache[i] -= length * cache[i + WIDTH]

"""The first zero of a residual along an edge, found by a scan of few points.

`scan_order` says which points a step must scan and why that is exact. At a landmark at distance
x0, the bound of a block reads ``Q_i y <= c y + |Q_i - c| |y|`` with y = x - x0, the way from the
landmark. It is compared with the floor of the block: a lower bound of its residuals at the
landmark, and once a path has read these, their minimum.
"""

from typing import Any

import numpy as np

from trustsets.engine.compiled import FloatArray, inner
from trustsets.engine.kernels import EDGE_TOL, WIDTH, ZERO, block_products, rows_dot
from trustsets.engine.landmarks import FROM_BASE, RESIDUAL
from trustsets.engine.path_state import (
    BLOCK_CACHE,
    BOUNDED_FOR,
    EDGE,
    FIRST_CACHE,
    FROM_LANDMARK,
    LANDMARK,
    LANDMARK_MEMBERS,
    LANDMARK_SHIFT,
    READ_FOR,
    SCANNED,
    SPEED,
    STEP,
    UPDATED_AT,
    PathState,
)
from trustsets.engine.scan_order import DISTANCE, GROUP_KEY, LEAST_DISTANCE, SIDE, SPREAD, Scan

__all__ = ["advance", "first_crossing"]

RADIUS_SLACK = 1.0 + 1e-9
"""Distances are enlarged by this factor before they are compared with keys, to cover rounding."""
FLOOR_SLACK = 1e-9
"""The floor of a block is lowered by this share of its terms, to cover rounding."""
NEXT: Any = np.int64(WIDTH)
"""Where the second products of a superblock go, after the first."""
UNREACHED = 1e150
"""The length of a step that nothing ends; finite, so that products with it are never NaN."""


@inner()
def first_crossing(members: int, scan: Scan, state: PathState) -> tuple[float, int, int]:
    """First zero of a residual along the edge: step, entering point, number of scanned blocks.

    The entering point is the number of a member, or the number of members plus a position. It is
    -1 if no residual reaches zero: the edge is a ray.
    """
    vectors, cache, floor, visits = state.vectors, state.cache, state.floor, state.visits
    blocks, summary, counters = scan.blocks, scan.summary, state.counters
    step, landmark, known = counters[STEP], counters[LANDMARK], counters[LANDMARK_MEMBERS]
    long = rows_dot(vectors, EDGE, vectors, EDGE)
    tiny = EDGE_TOL * np.sqrt(long)
    # Terms of the distances from base vertex and landmark, which are quadratic along the edge.
    here = rows_dot(vectors, FROM_BASE, vectors, FROM_BASE)
    along = rows_dot(vectors, FROM_BASE, vectors, EDGE)
    gone = rows_dot(vectors, FROM_LANDMARK, vectors, FROM_LANDMARK)
    ahead = rows_dot(vectors, FROM_LANDMARK, vectors, EDGE)
    # Members come first: they are few, and a short step makes the scan short.
    length, entering = _member_crossing(members, tiny, state.row, state.member, vectors)
    radius, reach = _after(here, along, long, length), _after(gone, ahead, long, length)
    scanned = 0
    for superblock in range(len(scan.centres)):
        # Group keys grow, so no later block can have a crossing either.
        if summary[GROUP_KEY, superblock * WIDTH] > radius:
            break
        if visits[BOUNDED_FOR, superblock] != landmark:
            visits[BOUNDED_FOR, superblock] = landmark
            _set_floors(superblock, scan, state)
        block_products(scan.centres, superblock, vectors, FROM_LANDMARK, cache, ZERO)
        block_products(scan.centres, superblock, vectors, EDGE, cache, NEXT)
        for lane in range(WIDTH):
            block = superblock * WIDTH + lane
            # At the end of the step the products Q_i y of the block are at most this.
            bound = cache[lane] + length * cache[WIDTH + lane] + summary[SPREAD, block] * reach
            if summary[GROUP_KEY, block] > radius or bound < floor[block]:
                continue
            low = FIRST_CACHE + block * BLOCK_CACHE
            if visits[READ_FOR, block] != landmark:
                # The first path that needs the block replaces its bound by the true minimum.
                visits[READ_FOR, block] = landmark
                _read_landmark(block, low, scan, state)
                _hide(block, ZERO, known, low, state)
                floor[block] = _least(cache, low)
                if bound < floor[block]:
                    continue
            if visits[UPDATED_AT, block] != step:
                # The step before did not scan the block, so its residuals are out of date.
                _read_vertex(block, low, scan, state)
                _hide(block, known, members, low + WIDTH, state)
            visits[SCANNED, scanned] = block
            scanned += 1
            block_products(blocks, block, vectors, EDGE, cache, low + 2 * WIDTH)
            shorter, found = _block_crossing(cache, low + WIDTH, tiny, length)
            if found >= 0:
                length, entering = shorter, members + block * WIDTH + found
                radius, reach = _after(here, along, long, length), _after(gone, ahead, long, length)
    return length, entering, scanned


@inner(inline="always")
def _after(square: float, along: float, long: float, length: float) -> float:
    """Distance after a step of `length`, from the squared distance before it and its terms."""
    if length >= UNREACHED:
        # Beyond all keys, but below the infinite keys of padding.
        return UNREACHED * UNREACHED
    return float(RADIUS_SLACK * np.sqrt(max(square + length * (2.0 * along + length * long), 0.0)))


@inner()
def _member_crossing(
    members: int, tiny: float, row: FloatArray, member: FloatArray, vectors: FloatArray
) -> tuple[float, int]:
    """First zero among members that are not basic; stores their rates."""
    length, entering = UNREACHED, -1
    for m in range(members):
        side = member[SIDE, m]
        if side != 0.0:
            rate = rows_dot(row, m, vectors, EDGE)
            member[SPEED, m] = rate
            if side * rate > tiny:
                # Rounding can leave a residual on the wrong side of zero; its step is zero.
                step = max(side * member[RESIDUAL, m], 0.0) / (side * rate)
                if step < length:
                    length, entering = step, m
    return length, entering


@inner(inline="always")
def _set_floors(superblock: int, scan: Scan, state: PathState) -> None:
    """Store lower bounds of the residuals at the landmark, for the blocks of a superblock."""
    summary, vectors, cache = scan.summary, state.vectors, state.cache
    block_products(scan.centres, superblock, vectors, LANDMARK_SHIFT, cache, ZERO)
    far = np.sqrt(rows_dot(vectors, LANDMARK_SHIFT, vectors, LANDMARK_SHIFT))
    for lane in range(WIDTH):
        block, middle = superblock * WIDTH + lane, cache[lane]
        around = summary[SPREAD, block] * far
        slack = FLOOR_SLACK * (abs(middle) + around)
        least = (1.0 - FLOOR_SLACK) * summary[LEAST_DISTANCE, block]
        state.floor[block] = least - (middle + around + slack)


@inner(inline="always")
def _read_landmark(block: int, low: int, scan: Scan, state: PathState) -> None:
    """Store signed residuals at the landmark: distances less the products with its shift."""
    cache, points = state.cache, scan.points
    block_products(scan.blocks, block, state.vectors, LANDMARK_SHIFT, cache, low)
    for lane in range(WIDTH):
        cache[low + lane] = points[DISTANCE, block * WIDTH + lane] - cache[low + lane]


@inner(inline="always")
def _read_vertex(block: int, low: int, scan: Scan, state: PathState) -> None:
    """Store signed residuals at the vertex: those at the landmark less the products since."""
    cache = state.cache
    block_products(scan.blocks, block, state.vectors, FROM_LANDMARK, cache, low + WIDTH)
    for i in range(low, low + WIDTH):
        cache[i + WIDTH] = cache[i] - cache[i + WIDTH]


@inner(inline="always")
def _hide(block: int, first: int, last: int, low: int, state: PathState) -> None:
    """Make the residuals of members of a block infinite, so that the scan never chooses them."""
    position, cache = state.position, state.cache
    for m in range(first, last):
        if position[m] // WIDTH == block:
            cache[low + position[m] % WIDTH] = np.inf


@inner(inline="always")
def _least(cache: FloatArray, low: int) -> float:
    """Smallest residual of a block, lowered to cover rounding."""
    least = np.inf
    for i in range(low, low + WIDTH):
        least = min(least, cache[i])
    return least * (1.0 - FLOOR_SLACK if least > 0.0 else 1.0 + FLOOR_SLACK)


@inner()
def _block_crossing(cache: FloatArray, low: int, tiny: float, length: float) -> tuple[float, int]:
    """First zero before `length` of the residuals at `low`: step and place in the block, or -1."""
    count = 0
    # A loop without branches vectorises, and most blocks have no crossing.
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
def advance(length: float, members: int, scanned: int, state: PathState) -> None:
    """Move the vertex, and the residuals of members and scanned blocks, along the edge."""
    vectors, member, visits, cache = state.vectors, state.member, state.visits, state.cache
    state.counters[STEP] += 1
    step = state.counters[STEP]
    for j in range(vectors.shape[1]):
        change = length * vectors[EDGE, j]
        vectors[FROM_BASE, j] += change
        vectors[FROM_LANDMARK, j] += change
    for m in range(members):
        if member[SIDE, m] != 0.0:
            member[RESIDUAL, m] -= length * member[SPEED, m]
    for s in range(scanned):
        block = visits[SCANNED, s]
        visits[UPDATED_AT, block] = step
        low = FIRST_CACHE + block * BLOCK_CACHE + WIDTH
        for i in range(low, low + WIDTH):
            cache[i] -= length * cache[i + WIDTH]

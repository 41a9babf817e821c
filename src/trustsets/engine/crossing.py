"""The first zero of a residual along an edge, found by a look at few points.

Which points a step must look at, and why that is exact, is told in `scan`. Imports `kernels`,
`problem`, `scan` and `work`.
"""

import numpy as np

from trustsets.engine.compiled import inner
from trustsets.engine.kernels import WIDTH, block_products, dot, row_dot
from trustsets.engine.problem import FloatArray, IntArray
from trustsets.engine.scan import Base
from trustsets.engine.work import Work

__all__ = ["advance", "first_crossing"]

EDGE_TOL = 1e-11
"""A product with an edge below this share of the edge's length counts as zero."""
RADIUS_SLACK = 1.0 + 1e-9
"""Room for rounding in the comparison of keys and distances."""
FLOOR_SLACK = 1e-9
"""Room for rounding in the bound of a block."""
UNREACHED = 1e150
"""The length of a step that nothing ends; finite, so that its products are numbers."""


@inner()
def first_crossing(members: int, base: Base, work: Work) -> tuple[float, int, int]:
    """First zero of a residual along the edge: step, entering point, number of blocks seen.

    The entering point is a member's number or the number of members plus its position; -1: a ray.
    """
    long = dot(work.edge, work.edge)
    tiny = EDGE_TOL * np.sqrt(long)
    here, along = dot(work.shift, work.shift), dot(work.shift, work.edge)
    gone, ahead = dot(work.way, work.way), dot(work.way, work.edge)
    length, entering = _member_crossing(members, tiny, work)
    radius, reach = _after(here, along, long, length), _after(gone, ahead, long, length)
    seen = 0
    for chapter in range(len(base.centres)):
        if base.first_key[chapter * WIDTH] > radius:
            break
        _open(chapter, base, work)
        for lane in range(WIDTH):
            block = chapter * WIDTH + lane
            # At the end of the step the signed products of the block stay below this.
            end = work.centre_here[lane] + length * work.centre_speed[lane]
            bound = end + base.spread[block] * reach
            if base.first_key[block] > radius or bound < work.floor[block]:
                continue
            known = work.home_members[0]
            if work.read[block] != work.mark[0]:
                work.read[block] = work.mark[0]
                _read(block, base.blocks, base.distance, work.home_shift, work.home)
                _hide(block, work.member_position, 0, known, work.home)
                work.floor[block] = _least(work.home, block)
                if bound < work.floor[block]:
                    continue
            if work.stamp[block] != work.clock[0]:
                _read(block, base.blocks, work.home, work.way, work.near)
                _hide(block, work.member_position, known, members, work.near)
            work.seen[seen] = block
            seen += 1
            block_products(base.blocks, block, work.edge, work.speed, block * WIDTH)
            shorter, position = _block_crossing(work.near, work.speed, block * WIDTH, tiny, length)
            if position >= 0:
                length, entering = shorter, members + position
                radius, reach = _after(here, along, long, length), _after(gone, ahead, long, length)
    return length, entering, seen


@inner()
def _open(chapter: int, base: Base, work: Work) -> None:
    """Products of a chapter's centres with way and edge; its floors if they are not known yet."""
    if work.opened[chapter] != work.mark[0]:
        work.opened[chapter] = work.mark[0]
        block_products(base.centres, chapter, work.home_shift, work.centre_here, 0)
        _set_floors(chapter, work.centre_here, base.spread, base.least, work.far[0], work.floor)
    block_products(base.centres, chapter, work.way, work.centre_here, 0)
    block_products(base.centres, chapter, work.edge, work.centre_speed, 0)


@inner()
def _after(square: float, along: float, long: float, length: float) -> float:
    """Distance after a step of `length` along the edge from a point at a squared distance."""
    if length >= UNREACHED:
        return UNREACHED * UNREACHED  # beyond all keys, but not beyond padding
    return float(RADIUS_SLACK * np.sqrt(max(square + length * (2.0 * along + length * long), 0.0)))


@inner()
def _member_crossing(members: int, tiny: float, work: Work) -> tuple[float, int]:
    """First zero among members that are not basic."""
    length, entering = UNREACHED, -1
    for m in range(members):
        side = work.member_side[m]
        if side != 0.0:
            rate = row_dot(work.member_row, m, work.edge)
            work.member_speed[m] = rate
            if side * rate > tiny:
                step = max(side * work.member_residual[m], 0.0) / (side * rate)
                if step < length:
                    length, entering = step, m
    return length, entering


@inner()
def _set_floors(
    chapter: int,
    middle: FloatArray,
    spread: FloatArray,
    least: FloatArray,
    far: float,
    floor: FloatArray,
) -> None:
    """Lower bounds of the residuals of blocks at a landmark `far` from the base vertex."""
    for lane in range(WIDTH):
        block = chapter * WIDTH + lane
        around = spread[block] * far
        slack = FLOOR_SLACK * (abs(middle[lane]) + around)
        floor[block] = (1.0 - FLOOR_SLACK) * least[block] - (middle[lane] + around + slack)


@inner()
def _read(
    block: int, blocks: FloatArray, start: FloatArray, way: FloatArray, out: FloatArray
) -> None:
    """Signed residuals of a block: those at the start less the products with the way."""
    low = block * WIDTH
    block_products(blocks, block, way, out, low)
    for i in range(low, low + WIDTH):
        out[i] = start[i] - out[i]


@inner()
def _hide(block: int, positions: IntArray, first: int, last: int, residual: FloatArray) -> None:
    """Make the residuals of members of a block infinite: the scan then passes over them."""
    for m in range(first, last):
        if positions[m] // WIDTH == block:
            residual[positions[m]] = np.inf


@inner()
def _least(residual: FloatArray, block: int) -> float:
    """Smallest residual of a block, less some room for rounding."""
    least = np.inf
    for i in range(block * WIDTH, (block + 1) * WIDTH):
        least = min(least, residual[i])
    return least * (1.0 - FLOOR_SLACK if least > 0.0 else 1.0 + FLOOR_SLACK)


@inner()
def _block_crossing(
    near: FloatArray, speed: FloatArray, low: int, tiny: float, length: float
) -> tuple[float, int]:
    """First zero before `length` in the block at `low`: step and position, or -1.

    The count is a loop without branches, which vectorises; most blocks end there.
    """
    count = 0
    for i in range(low, low + WIDTH):
        count += (speed[i] > tiny) & (near[i] < length * speed[i])
    found = -1
    if count > 0:
        for i in range(low, low + WIDTH):
            if speed[i] > tiny and near[i] < length * speed[i]:
                length, found = max(near[i], 0.0) / speed[i], i
    return length, found


@inner()
def advance(length: float, members: int, seen: int, work: Work) -> None:
    """Move the vertex and all residuals in view by `length` along the edge."""
    work.clock[0] += 1
    for j in range(len(work.shift)):
        work.shift[j] += length * work.edge[j]
        work.way[j] += length * work.edge[j]
    for m in range(members):
        if work.member_side[m] != 0.0:
            work.member_residual[m] -= length * work.member_speed[m]
    for s in range(seen):
        low = work.seen[s] * WIDTH
        work.stamp[work.seen[s]] = work.clock[0]
        for i in range(low, low + WIDTH):
            work.near[i] -= length * work.speed[i]

"""Sixteen numbers at a time: the vectors that compiled kernels add, multiply and compare.

Of a loop over few numbers the compiler makes scalar code: it is unrolled before anything could be
vectorised, and the last numbers of a longer loop are always treated one by one. Both are too slow
for the short rows of a basis. So kernels keep `WIDTH` numbers, the *lanes*, in one value, and pad
arrays to a multiple of it.

The functions are plain Python on arrays of `WIDTH` numbers. Compiled code has the instruction of
LLVM that is registered for each of them at the end, where a single number may stand for equal
lanes. ``+``, ``-`` and ``*`` work on lanes, too, and are never fused or reordered.
"""

import inspect
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import lower_builtin, models, register_model, type_callable

WIDTH = 16  # A few vector registers.
ALL = 2**WIDTH - 1  # The bits of all lanes.

Lanes = Any  # `WIDTH` numbers.


def padded(size: int) -> int:
    """The next multiple of `WIDTH`."""
    return -(-size // WIDTH) * WIDTH


def load(array: Any, number: int) -> Lanes:
    """Lanes number `number` in the memory of an array."""
    return array.reshape(-1, WIDTH)[number].copy()


def store(array: Any, number: int, lanes: Lanes) -> None:
    """Write lanes to the memory of an array."""
    array.reshape(-1, WIDTH)[number] = lanes


def spread(value: float) -> Lanes:
    """The same number in all lanes."""
    return np.full(WIDTH, value)


def fused(x: Lanes, y: Any, total: Lanes) -> Lanes:
    """``x * y + total``, rounded once if the processor has an instruction for it."""
    return x * y + total


def below(left: Any, right: Any) -> int:
    """Bits of the lanes where the left number is less than the right one."""
    return int(np.packbits(left < right, bitorder="little").view("<u2")[0])


def lowest(bits: int) -> int:
    """Lane of the lowest of some bits."""
    return (bits & -bits).bit_length() - 1


def absolute(lanes: Lanes) -> Lanes:
    """Absolute values."""
    return np.abs(lanes)


def least(lanes: Lanes) -> float:
    """The smallest number; none may be NaN."""
    return float(lanes.min())


def add_up(lanes: Lanes) -> float:
    """The sum of all lanes, in any order."""
    return float(lanes.sum())


_NUMBER, _INDEX = ir.DoubleType(), ir.IntType(32)
_VECTOR = ir.VectorType(_NUMBER, WIDTH)


class _LanesType(types.Type):
    """The type of lanes in compiled code."""


_lanes: Any = _LanesType("lanes")


@register_model(_LanesType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)  # type: ignore[no-untyped-call]


def _broadcast(builder: Any, value: Any) -> Any:
    """The same number in all lanes; all but single numbers stay as they are."""
    if value.type != _NUMBER:
        return value
    anything, first = ir.Constant(_VECTOR, ir.Undefined), ir.Constant(_INDEX, 0)
    everywhere = ir.Constant(ir.VectorType(_INDEX, WIDTH), [0] * WIDTH)
    one = builder.insert_element(anything, value, first)
    return builder.shuffle_vector(one, anything, everywhere)


def _call(name: str, result: Any = _VECTOR, *flags: str) -> Callable[..., Any]:
    """Call one of LLVM's own functions of vectors."""
    name = f"llvm.{name}.v{WIDTH}f64"

    def generate(builder: Any, *values: Any) -> Any:
        kind = ir.FunctionType(result, [value.type for value in values])
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        return builder.call(function, values, fastmath=flags)

    return generate


def _store(builder: Any, pointer: Any, lanes: Any) -> None:
    builder.store(lanes, pointer, align=8)


def _below(builder: Any, left: Any, right: Any) -> Any:
    bits = builder.bitcast(builder.fcmp_ordered("<", left, right), ir.IntType(WIDTH))
    return builder.zext(bits, ir.IntType(64))


def _lowest(builder: Any, bits: Any) -> Any:
    return builder.cttz(bits, ir.Constant(ir.IntType(1), 1))


def _add_up(builder: Any, lanes: Any) -> Any:
    sum_of = _call("vector.reduce.fadd", _NUMBER, "reassoc")
    return sum_of(builder, ir.Constant(_NUMBER, -0.0), lanes)


def _register(function: Any, result: Any, generate: Callable[..., Any], *pattern: Any) -> None:
    """Make ``generate(builder, *values)`` what compiled code has for arguments of these types.

    It gets a pointer for an array and the number of lanes in it, and lanes for a single number.
    """

    def type_of(*kinds: Any) -> Any:
        if len(kinds) != len(pattern):
            return None
        pairs = zip(kinds, pattern, strict=True)
        return result if all(kind is like or type(kind) is like for kind, like in pairs) else None

    type_of.pysig = inspect.signature(function)  # type: ignore[attr-defined]

    def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        if pattern[0] is types.Array:
            array = context.make_array(signature.args[0])(context, builder, values[0])
            start = builder.gep(array.data, [builder.mul(values[1], values[1].type(WIDTH))])
            values = [builder.bitcast(start, _VECTOR.as_pointer()), *values[2:]]
        values = [_broadcast(builder, value) for value in values]
        done = generate(builder, *values)
        return context.get_dummy_value() if result is types.void else done

    type_callable(function)(lambda context: type_of)
    lower_builtin(function, *pattern)(lower)


_ARRAY, _WHOLE, _FLOAT = types.Array, types.Integer, types.Float
_register(load, _lanes, partial(ir.IRBuilder.load, align=8), _ARRAY, _WHOLE)
_register(store, types.void, _store, _ARRAY, _WHOLE, _lanes)
_register(spread, _lanes, _broadcast, _FLOAT)
_register(lowest, types.int64, _lowest, _WHOLE)
_register(absolute, _lanes, _call("fabs"), _lanes)
_register(least, types.float64, _call("vector.reduce.fmin", _NUMBER, "nnan"), _lanes)
_register(add_up, types.float64, _add_up, _lanes)
for _right in (_lanes, _FLOAT):
    _register(fused, _lanes, _call("fmuladd"), _lanes, _right, _lanes)
for _pair in ((_lanes, _lanes), (_lanes, _FLOAT), (_FLOAT, _lanes)):
    _register(below, types.int64, _below, *_pair)
    _register(operator.add, _lanes, ir.IRBuilder.fadd, *_pair)
    _register(operator.sub, _lanes, ir.IRBuilder.fsub, *_pair)
    _register(operator.mul, _lanes, ir.IRBuilder.fmul, *_pair)

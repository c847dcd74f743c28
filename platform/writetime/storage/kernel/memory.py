"""Reads and writes raw memory in code that numba compiles. The kernel is built on this module.

An address is an int64. Nothing here checks bounds. The caller checks them before each read, as `length > end -
address`.
"""

import hashlib
import operator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.caching import NullCache
from numba.core.typing.templates import AbstractTemplate, builtin_registry, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

from writetime.core.compiled import cached
from writetime.storage.kernel.layout import COLUMN_FIELDS, TABLE_FIELDS
from writetime.storage.kernel.write_layout import WRITE_FIELDS

_KERNEL = b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))


def compiled(function: Any, **options: Any) -> Any:
    """Compile a function, once for all processes.

    The code uses no reference counts, because it creates no objects, and counting took longer than reading. By default,
    numba considers a cached function current while its file is unchanged. Here, all files of the kernel must be
    unchanged, because the function may call them.
    """
    dispatcher = cached(function, _nrt=False, **options)
    if not isinstance(dispatcher._cache, NullCache):
        own = Path(function.__code__.co_filename).read_bytes()
        dispatcher._cache._cache_file._source_stamp = hashlib.sha256(_KERNEL + own).hexdigest()
    return dispatcher


def inlined(function: Any) -> Any:
    """Compile a function into its callers, if the call would cost more than the function.

    A call returns several values through memory, and reading them back at once stalls the processor.
    """
    return compiled(function, forceinline=True)


# What type checkers see of `Numbers`.
Lines: TypeAlias = np.ndarray
_I8_POINTER = ir.IntType(8).as_pointer()


def _loader(bits: int, *, signed: bool, swapped: bool = True) -> Any:
    @intrinsic
    def load(typing_context: Any, address: Any) -> Any:
        """Load one integer: big-endian, or in the machine's byte order."""
        del typing_context, address

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            del context, signature
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            value = builder.load(pointer, align=1)
            if bits > 8 and swapped:
                value = builder.bswap(value)
            if bits == 64:
                return value
            return (builder.sext if signed else builder.zext)(value, ir.IntType(64))

        return types.int64(types.int64), generate

    return load


def _storer(bits: int, *, swapped: bool = False) -> Any:
    @intrinsic
    def store(typing_context: Any, address: Any, value: Any) -> Any:
        """Store the low bits of a value: in the machine's byte order, or big-endian."""
        del typing_context, address, value

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            del signature
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            value = arguments[1] if bits == 64 else builder.trunc(arguments[1], ir.IntType(bits))
            builder.store(builder.bswap(value) if swapped else value, pointer, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return store


def _copier() -> Any:
    @intrinsic
    def copy_bytes(typing_context: Any, target: Any, source: Any, length: Any) -> Any:
        """Copy bytes between places that do not overlap."""
        del typing_context, target, source, length

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            del signature
            target = builder.inttoptr(arguments[0], _I8_POINTER)
            source = builder.inttoptr(arguments[1], _I8_POINTER)
            cgutils.raw_memcpy(builder, target, source, arguments[2], 1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), generate

    return copy_bytes


load8 = _loader(8, signed=False)
load16 = _loader(16, signed=False)
load_int8 = _loader(8, signed=True)
load_int16 = _loader(16, signed=True)
load_int32 = _loader(32, signed=True)
load32 = _loader(32, signed=False)
load64 = _loader(64, signed=True)
load_native32 = _loader(32, signed=True, swapped=False)
load_native64 = _loader(64, signed=True, swapped=False)
store8 = _storer(8)
store16 = _storer(16)
store32 = _storer(32)
store64 = _storer(64)
store_big16 = _storer(16, swapped=True)
store_big32 = _storer(32, swapped=True)
store_big64 = _storer(64, swapped=True)
copy = _copier()


class Numbers(types.Type):
    """A table of int64 numbers with lines of `width`, or a plain sequence of them if that is 0.

    It is indexed like an array, and annotated as `Lines`, but is only an address. An array has nine words that each
    call copies, and it checks for negative indices at each access.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        super().__init__(f"Numbers({width})")

    @property
    def index(self) -> Any:
        """The type of an index."""
        return types.UniTuple(types.int64, 2) if self.width else types.int64


_registry: Any = builtin_registry


@register_model(Numbers)
class _NumbersModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Numbers) -> None:
        super().__init__(manager, kind, ir.IntType(64).as_pointer())


@_registry.register_global(operator.getitem)
class _TypeOfGet(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        del kws
        return signature(types.int64, args[0], args[0].index) if isinstance(args[0], Numbers) else None


@_registry.register_global(operator.setitem)
class _TypeOfSet(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        del kws
        return signature(types.void, args[0], args[0].index, types.int64) if isinstance(args[0], Numbers) else None


def _element(builder: Any, kind: Numbers, numbers: Any, index: Any) -> Any:
    if kind.width:
        line = builder.mul(builder.extract_value(index, 0), ir.Constant(ir.IntType(64), kind.width))
        index = builder.add(line, builder.extract_value(index, 1))
    return builder.gep(numbers, [index])


@lower_builtin(operator.getitem, Numbers, types.Any)
def _get(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    del context
    return builder.load(_element(builder, signature.args[0], *arguments))


@lower_builtin(operator.setitem, Numbers, types.Any, types.int64)
def _set(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    numbers, index, value = arguments
    builder.store(value, _element(builder, signature.args[0], numbers, index))
    return context.get_dummy_value()


def _viewer(width: int) -> Any:
    @intrinsic
    def view(typing_context: Any, array: Any) -> Any:
        """Return the numbers of an int64 array. The caller must keep the array."""
        del typing_context

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return context.make_array(signature.args[0])(context, builder, arguments[0]).data

        return Numbers(width)(array), generate

    return view


numbers = _viewer(0)
written_columns = _viewer(WRITE_FIELDS)
tables = _viewer(TABLE_FIELDS)
columns = _viewer(COLUMN_FIELDS)


_SIGN = -(1 << 63)


@inlined
def compare(a: int, a_length: int, b: int, b_length: int) -> int:
    """Compare bytes as unsigned numbers, eight at a time; a prefix comes first."""
    end = a + min(a_length, b_length)
    while end - a >= 8:
        x, y = load64(a), load64(b)
        if x != y:
            return -1 if (x ^ _SIGN) < (y ^ _SIGN) else 1
        a += 8
        b += 8
    if end - a >= 4:
        x, y = load32(a), load32(b)
        if x != y:
            return -1 if x < y else 1
        a += 4
        b += 4
    while a < end:
        x, y = load8(a), load8(b)
        if x != y:
            return -1 if x < y else 1
        a += 1
        b += 1
    return a_length - b_length


@compiled
def compare_bytes(  # noqa: PLR0917 (numba has no keyword-only arguments)
    offsets: int, data: int, i: int, other_offsets: int, other_data: int, j: int
) -> int:
    """Compare value `i` of some with value `j` of others as `compare` does.

    Values have Arrow's form: the addresses of offsets, and of the data that they divide.
    """
    a, b = load_native32(offsets + 4 * i), load_native32(other_offsets + 4 * j)
    a_length = load_native32(offsets + 4 * i + 4) - a
    b_length = load_native32(other_offsets + 4 * j + 4) - b
    return compare(data + a, a_length, other_data + b, b_length)

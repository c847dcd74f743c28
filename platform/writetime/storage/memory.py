"""Reads and writes raw memory inside numba code: what the kernel stands on.

An address is an int64. Nothing here checks bounds: the caller does, before every read, as `length > end - address`.
"""

import hashlib
from pathlib import Path
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_PARTS = (
    "cells",
    "digest",
    "frames",
    "index",
    "layout",
    "memory",
    "primitives",
    "row_index",
    "rows",
    "trie",
    "unfiltered",
    "walk_mutations",
    "walk_sstable",
)
_SOURCES = hashlib.sha256(b"".join(Path(__file__).with_name(f"{p}.py").read_bytes() for p in _PARTS)).hexdigest()


def compiled(function: Any, inline: str = "never") -> Any:
    """Compile a function, once for all processes.

    Without reference counts: nothing here makes objects, and counting took longer than reading. numba takes what it
    kept of a function for current as long as that function's file is unchanged; what it calls counts here as well.
    """
    njit: Any = numba.njit
    dispatcher = njit(cache=True, _nrt=False, inline=inline)(function)
    dispatcher._cache._cache_file._source_stamp = _SOURCES
    return dispatcher


def inlined(function: Any) -> Any:
    """Compile a function into its callers, where a call would cost more than what is called."""
    return compiled(function, inline="always")


_I8_POINTER = ir.IntType(8).as_pointer()


def _loader(bits: int, *, signed: bool) -> Any:
    @intrinsic
    def load(typing_context: Any, address: Any) -> Any:
        """Load one big-endian integer."""
        del typing_context, address

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            del context, signature
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            value = builder.load(pointer, align=1)
            if bits > 8:
                value = builder.bswap(value)
            if bits == 64:
                return value
            return (builder.sext if signed else builder.zext)(value, ir.IntType(64))

        return types.int64(types.int64), generate

    return load


def _storer(bits: int) -> Any:
    @intrinsic
    def store(typing_context: Any, address: Any, value: Any) -> Any:
        """Store the low bits of a value, in the machine's byte order."""
        del typing_context, address, value

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            del signature
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            value = arguments[1] if bits == 64 else builder.trunc(arguments[1], ir.IntType(bits))
            builder.store(value, pointer, align=1)
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
store8 = _storer(8)
store16 = _storer(16)
store32 = _storer(32)
store64 = _storer(64)
copy = _copier()

"""Avro: decodes records to Arrow columns, message by message in one compiled loop, without a Python object per value.

Neither fastavro nor Apache's library does this: both return each record as a dict, from which Arrow would have to build
the columns again.

The writer's schema is compiled to a program, once: a list of instructions in the order in which the values of a record
are encoded. The loop runs it for each message and stores each value in its column. A value that the reader does not
need is skipped; a field that the writer did not have is null. Reference: Apache Avro 1.12 Specification, "Binary
encoding" and "Schema Resolution" (only that of records by field name is needed here).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from writetime.core.compiled import njit
from writetime.core.errors import WritetimeError
from writetime.schema.avro import pc
from writetime.schema.mapping import avro_name
from writetime.schema.text import bytes_of_texts

# Instructions. NEXT ends an element of its ARRAY.
_LONG, _BOOLEAN, _FLOAT, _DOUBLE, _BYTES, _NULLABLE, _ARRAY, _NEXT = range(8)
# The parts of an instruction: where it writes (a place in the numbers, flags and texts; -1 if the value is not needed),
# the domain in which it counts, that of an array's elements, and where a null or empty value continues.
_OP, _NUMBERS, _FLAGS, _TEXT, _USED, _DOMAIN, _INNER, _TARGET = range(8)
_FIELDS = 8
# The approximate number of bytes of messages that are decoded at once. Each column's buffer has room for the most
# values that they can hold.
WINDOW_BYTES = 4 << 20

_LEAVES = {
    "int": (_LONG, 1),
    "long": (_LONG, 1),
    "enum": (_LONG, 1),
    "boolean": (_BOOLEAN, 1),
    "float": (_FLOAT, 4),
    "double": (_DOUBLE, 8),
    "string": (_BYTES, 1),
    "bytes": (_BYTES, 1),
}

_Build = Callable[["_Output", pa.Buffer | None], pa.Array]


class AvroReader:
    """Decodes messages of one writer's schema to structs of an Arrow type. A field of the writer that cannot become the
    reader's is a WritetimeError.
    """

    def __init__(self, writer: Any, reader: pa.StructType) -> None:
        self._reader = reader
        self._program: list[list[int]] = []
        # For each needed number, flag and text: the domain, which has their number.
        self._numbers: list[int] = []
        self._flags: list[int] = []
        self._texts = 0
        # For each domain, the least bytes of an entry. The first domain is that of the messages.
        self._least = [1]
        self._build, _ = self._compile(writer, reader, 0, "")

    def decode(self, messages: pa.Array, header: int = 0) -> pa.Table:
        """Return the values of messages (of large_binary, not null), each with a header to skip. One that does not
        follow the writer's schema is a WritetimeError.
        """
        _, offsets, content = messages.buffers()
        bounds = np.frombuffer(offsets, np.int64)[messages.offset : messages.offset + len(messages) + 1]
        data = np.frombuffer(content or b"", np.uint8)
        batches = []
        first = 0
        while first < len(messages):
            last = max(first + 1, int(np.searchsorted(bounds, bounds[first] + WINDOW_BYTES, "right")) - 1)
            output = self._output(last - first, int(bounds[last] - bounds[first]))
            starts, ends = bounds[first:last] + header, bounds[first + 1 : last + 1]
            fault = _decode(output.program, output.counts, data, starts, ends, *output.buffers)
            if fault >= 0:
                raise WritetimeError(f"message {first + fault} does not follow its Avro schema")
            batch = pa.RecordBatch.from_struct_array(self._build(output, None))
            try:
                batch.validate(full=True)
            except pa.ArrowInvalid as e:
                raise WritetimeError(f"messages {first} to {last - 1} do not follow their Avro schema: {e}") from None
            batches.append(batch)
            first = last
        return pa.Table.from_batches(batches, pa.schema(list(self._reader)))

    def _compile(self, avro: Any, arrow: pa.DataType | None, domain: int, path: str) -> tuple[_Build, int]:
        """Append the instructions for a value; return the function that builds its array, and its least bytes.

        Without an Arrow type the value is not needed.
        """
        if isinstance(avro, list):
            return self._nullable(avro, arrow, domain, path)
        kind = avro["type"] if isinstance(avro, dict) else avro
        if kind == "record":
            return self._record(avro, arrow, domain, path)
        if kind == "array":
            return self._array(avro["items"], arrow, domain, path)
        if kind not in _LEAVES:
            raise WritetimeError(f"Avro type {kind!r} of field {path} is not one that Writetime writes")
        op, least = _LEAVES[kind]
        if arrow is not None and not _fits(kind, arrow):
            raise WritetimeError(f"field {path} was written as Avro's {kind}, which cannot become {arrow}")
        number, text = self._number(arrow, domain), self._text(arrow) if op == _BYTES else -1
        self._add(op, domain, number=number, text=text)
        # Changes once held timestamps as microseconds, always of whole milliseconds.
        micros = isinstance(avro, dict) and avro.get("logicalType") == "timestamp-micros" and arrow == pa.int64()
        as_bytes = kind == "string" and arrow is not None and pa.types.is_binary(arrow)

        def build(output: "_Output", validity: pa.Buffer | None) -> pa.Array:
            own = pa.int64() if kind == "enum" else pa.string() if as_bytes else arrow
            values = output.leaf(own, domain, number, text, validity)
            if kind != "enum":
                return bytes_of_texts(values) if as_bytes else pc.divide(values, 1000) if micros else values
            try:
                return pa.array(avro["symbols"]).take(values)
            except pa.ArrowIndexError:
                raise WritetimeError(f"field {path} has a number that its enum does not have") from None

        return build, least

    def _nullable(self, union: list[Any], arrow: pa.DataType | None, domain: int, path: str) -> tuple[_Build, int]:
        if len(union) != 2 or union[0] != "null":
            raise WritetimeError(f"field {path}: Avro unions other than null and one type are not supported")
        flag = -1
        if arrow is not None:
            flag = len(self._flags)
            self._flags.append(domain)
        at = self._add(_NULLABLE, domain, flag=flag)
        build, _ = self._compile(union[1], arrow, domain, path)
        self._program[at][_TARGET] = len(self._program)
        return lambda output, _: build(output, output.validity(domain, flag)), 1

    def _record(self, avro: Any, arrow: pa.DataType | None, domain: int, path: str) -> tuple[_Build, int]:
        if arrow is not None and not pa.types.is_struct(arrow):
            raise WritetimeError(f"field {path} was written as a record, which cannot become {arrow}")
        wanted = {} if arrow is None else {avro_name(field.name): field.type for field in arrow}
        builds: dict[str, _Build] = {}
        least = 0
        for field in avro["fields"]:
            name = field["name"]
            builds[name], bytes_ = self._compile(field["type"], wanted.get(name), domain, f"{path}.{name}".lstrip("."))
            least += bytes_

        def build(output: "_Output", validity: pa.Buffer | None) -> pa.Array:
            count = output.count(domain)
            children = [
                builds[name](output, validity) if name in builds else pa.nulls(count, field)
                for name, field in wanted.items()
            ]
            return pa.Array.from_buffers(arrow, count, [validity], children=children)

        return build, least

    def _array(self, items: Any, arrow: pa.DataType | None, domain: int, path: str) -> tuple[_Build, int]:
        element = None
        if arrow is not None:
            if pa.types.is_map(arrow):
                element = pa.struct([pa.field("key", arrow.key_type, nullable=False), ("value", arrow.item_type)])
            elif pa.types.is_list(arrow):
                element = arrow.value_type
            else:
                raise WritetimeError(f"field {path} was written as an array, which cannot become {arrow}")
        inner = len(self._least)
        self._least.append(1)
        number = self._number(arrow, domain)
        begin = self._add(_ARRAY, domain, number=number, inner=inner)
        build_elements, self._least[inner] = self._compile(items, element, inner, path)
        self._add(_NEXT, domain, number=number, inner=inner, target=begin)
        self._program[begin][_TARGET] = len(self._program)

        def build(output: "_Output", validity: pa.Buffer | None) -> pa.Array:
            elements = build_elements(output, None)
            offsets = output.offsets(domain, number)
            return pa.Array.from_buffers(arrow, output.count(domain), [validity, offsets], children=[elements])

        return build, 1

    def _number(self, arrow: pa.DataType | None, domain: int) -> int:
        if arrow is None:
            return -1
        self._numbers.append(domain)
        return len(self._numbers) - 1

    def _text(self, arrow: pa.DataType | None) -> int:
        if arrow is None:
            return -1
        self._texts += 1
        return self._texts - 1

    def _add(
        self, op: int, domain: int, *, number: int = -1, flag: int = -1, text: int = -1, inner: int = 0, target: int = 0
    ) -> int:
        self._program.append([op, number, flag, text, 0, domain, inner, target])
        return len(self._program) - 1

    def _output(self, count: int, size: int) -> "_Output":
        """Return the buffers for a window of so many messages and bytes, and the program with their places."""
        most = [count, *(size // least + 1 for least in self._least[1:])]
        program = np.array(self._program, np.int64).reshape(-1, _FIELDS)
        starts = []
        for column, domains in ((_NUMBERS, self._numbers), (_FLAGS, self._flags)):
            ends = np.cumsum([0, *(most[domain] for domain in domains)])
            wanted = program[:, column] >= 0
            program[wanted, column] = ends[program[wanted, column]]
            starts.append(ends.tolist())
        texts = program[:, _TEXT]
        program[:, _TEXT] = np.where(texts >= 0, texts * size, -1)
        numbers, flags = np.zeros(starts[0][-1], np.int64), np.zeros(starts[1][-1], np.uint8)
        buffers = numbers, flags, np.empty(self._texts * size, np.uint8)
        return _Output(program, np.zeros(len(self._least), np.int64), buffers, starts[0], starts[1], size)


@dataclass
class _Output:
    """The buffers for the values of one window, and the arrays over them.

    They have the largest size that the window may need, of which the system allocates only the used part. `counts` are
    the entries of each domain; `buffers` are the numbers, flags and texts, of which each has a place of its own.
    """

    program: np.ndarray
    counts: np.ndarray
    buffers: tuple[np.ndarray, np.ndarray, np.ndarray]
    number_starts: list[int]
    flag_starts: list[int]
    size: int

    def leaf(
        self, arrow: pa.DataType | None, domain: int, number: int, text: int, validity: pa.Buffer | None
    ) -> pa.Array:
        """Return a column of numbers, flags, text or bytes."""
        assert arrow is not None
        count = self.count(domain)
        if text >= 0:
            offsets = self.offsets(domain, number)
            start = text * self.size
            content = pa.py_buffer(self.buffers[2][start : start + np.frombuffer(offsets, np.int32)[-1]])
            return pa.Array.from_buffers(arrow, count, [validity, offsets, content])
        values = self._values(domain, number)
        if pa.types.is_boolean(arrow):
            return pa.Array.from_buffers(arrow, count, [validity, _bits(values.astype(np.uint8))])
        if pa.types.is_float32(arrow):
            return pa.Array.from_buffers(arrow, count, [validity, pa.py_buffer(values.astype(np.uint32))])
        if arrow.bit_width < 64:
            narrow = values.astype(f"i{arrow.bit_width // 8}")
            if not np.array_equal(narrow, values):
                raise WritetimeError(f"a number does not fit into {arrow}")
            values = narrow
        return pa.Array.from_buffers(arrow, count, [validity, pa.py_buffer(values)])

    def count(self, domain: int) -> int:
        """Return the number of entries of a domain."""
        return int(self.counts[domain])

    def validity(self, domain: int, flag: int) -> pa.Buffer | None:
        """Return which values of a union are not null; None if all are."""
        start = self.flag_starts[flag]
        flags = self.buffers[1][start : start + self.count(domain)]
        return None if flags.all() else _bits(flags)

    def offsets(self, domain: int, number: int) -> pa.Buffer:
        """Return offsets, from lengths."""
        lengths = self._values(domain, number)
        offsets = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        return pa.py_buffer(offsets)

    def _values(self, domain: int, number: int) -> np.ndarray:
        start = self.number_starts[number]
        return self.buffers[0][start : start + self.count(domain)]


def _bits(flags: np.ndarray) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def _fits(avro: str, arrow: pa.DataType) -> bool:
    if avro in ("string", "bytes"):
        # Old databases changed text to blob.
        return pa.types.is_binary(arrow) or (avro == "string" and pa.types.is_string(arrow))
    if avro in ("int", "long"):
        return pa.types.is_integer(arrow) or pa.types.is_temporal(arrow)
    return arrow == {"enum": pa.string(), "boolean": pa.bool_(), "float": pa.float32(), "double": pa.float64()}[avro]


@njit
def _varint(data: np.ndarray, p: int, end: int) -> tuple[int, int]:
    """Return a zig-zag number and the offset after it; that is beyond the end if it is truncated or too long."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while p < end and shift < 70:
        byte = np.uint64(data[p])
        p += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < 128:
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), p  # type: ignore[return-value]
        shift += np.uint64(7)
    return 0, end + 1


@njit
def _decode(  # noqa: PLR0912, PLR0913, PLR0915, PLR0917 (compiled functions take their arrays one by one)
    program: np.ndarray,
    counts: np.ndarray,
    data: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    numbers: np.ndarray,
    flags: np.ndarray,
    texts: np.ndarray,
) -> int:
    """Run the program for each message; return the first that does not fit, or -1."""
    # Arrays in arrays: where each began, and the number of its remaining elements.
    begins = np.empty(len(program), np.int64)
    left = np.empty(len(program), np.int64)
    for message in range(len(starts)):
        p, end = starts[message], ends[message]
        pc, depth = 0, 0
        while pc < len(program):
            op = program[pc, _OP]
            at = counts[program[pc, _DOMAIN]]
            number = program[pc, _NUMBERS]
            if op == _NULLABLE:
                if p >= end:
                    return message
                branch = data[p]
                p += 1
                if branch == 0:
                    pc = program[pc, _TARGET]
                    continue
                if branch != 2:
                    return message
                flag = program[pc, _FLAGS]
                if flag >= 0:
                    flags[flag + at] = 1
            elif op == _LONG:
                value, p = _varint(data, p, end)
                if p > end:
                    return message
                if number >= 0:
                    numbers[number + at] = value
            elif op == _BYTES:
                length, p = _varint(data, p, end)
                if length < 0 or length > end - p:
                    return message
                if number >= 0:
                    numbers[number + at] = length
                    target = program[pc, _TEXT] + program[pc, _USED]
                    for i in range(length):
                        texts[target + i] = data[p + i]
                    program[pc, _USED] += length
                p += length
            elif op == _BOOLEAN:
                if p >= end or data[p] > 1:
                    return message
                if number >= 0:
                    numbers[number + at] = data[p]
                p += 1
            elif op in (_FLOAT, _DOUBLE):
                size = 4 if op == _FLOAT else 8
                if size > end - p:
                    return message
                bits = np.uint64(0)
                for i in range(size):
                    bits |= np.uint64(data[p + i]) << np.uint64(8 * i)
                if number >= 0:
                    numbers[number + at] = np.int64(bits)
                p += size
            else:
                if op == _NEXT:
                    counts[program[pc, _INNER]] += 1
                    left[depth - 1] -= 1
                    if left[depth - 1] > 0:
                        pc = begins[depth - 1] + 1
                        continue
                    depth -= 1
                    pc = begins[depth]
                # The (next) block of the array that is at `pc`: its length; if negative, then also its size in bytes.
                length, p = _varint(data, p, end)
                if length < 0:
                    length = -length
                    _, p = _varint(data, p, end)
                # Each element has at least one byte.
                if p > end or length > end - p or length < 0:
                    return message
                if length == 0:
                    pc = program[pc, _TARGET]
                    continue
                if number >= 0:
                    numbers[number + at] += length
                begins[depth] = pc
                left[depth] = length
                depth += 1
            pc += 1
        if p != end:
            return message
        counts[0] += 1
    return -1

"""Searches all files below some folders for values, without any code of the product: each page of Parquet decompressed
(parquet.thrift, `PageHeader`), Avro by fastavro, and all files as they are.
"""

import gzip
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

_CODECS = {"LZ4": "lz4_raw", "ZSTD": "zstd", "SNAPPY": "snappy", "GZIP": "gzip"}


def texts_below(*folders: Path) -> dict[Path, bytes]:
    """Return all that each file has, as it is and decoded."""
    files = (path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file())
    return {path: path.read_bytes() + b"\n" + _decoded(path) for path in files}


def found_in(texts: dict[Path, bytes], values: Iterable[str]) -> dict[str, list[str]]:
    """Return the files that have each value, as text, in hexadecimal digits or as 64 bits, by their names."""
    forms = {value: _forms(value) for value in values}
    return {
        value: [str(path) for path, text in texts.items() if any(form in text for form in of_value)]
        for value, of_value in forms.items()
    }


def _forms(value: str) -> list[bytes]:
    found = [value.encode(), value.encode().hex().encode()]
    if value.lstrip("-").isdigit() and -(1 << 63) <= int(value) < 1 << 63:
        found.append(int(value).to_bytes(8, "little", signed=True))
    return found


def _decoded(path: Path) -> bytes:
    if path.suffix == ".parquet":
        try:
            file = pq.ParquetFile(path)
        except ValueError:
            # A program was killed while it wrote this file.
            return b""
        groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
        chunks = [group.column(i) for group in groups for i in range(group.num_columns)]
        pages = [page for chunk in chunks for page in _pages(path.read_bytes(), chunk)]
        statistics = [str(group.to_dict()).encode() for group in groups]
        return b"\n".join([*pages, *statistics, repr(file.read().to_pylist()).encode()])
    if path.suffix == ".avro":
        with path.open("rb") as opened:
            return repr(list(fastavro.reader(opened))).encode()
    if path.suffix == ".gz":
        return gzip.decompress(path.read_bytes())
    return b""


def _pages(data: bytes, chunk: pq.ColumnChunkMetaData) -> Iterable[bytes]:
    """Yield the decompressed pages of a column chunk, also dictionaries with values that no row has."""
    at = chunk.data_page_offset
    if chunk.has_dictionary_page:
        at = min(at, chunk.dictionary_page_offset)
    end = at + chunk.total_compressed_size
    while at < end:
        header, at = _struct(data, at)
        page = data[at : at + header[3]]
        at += header[3]
        codec = _CODECS.get(chunk.compression)
        yield page if codec is None else pa.decompress(page, header[2], codec=codec, asbytes=True)


def _struct(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    """Read a struct of Thrift's compact protocol; return its fields by their numbers, and where it ends."""
    fields: dict[int, Any] = {}
    number = 0
    while byte := data[at]:
        at += 1
        kind, delta = byte & 15, byte >> 4
        if not delta:
            delta, at = _integer(data, at)
            number = 0
        number += delta
        fields[number], at = _value(data, at, kind)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind in {1, 2}:
        return kind == 1, at
    if kind == 3:
        return data[at], at + 1
    if kind in {4, 5, 6}:
        return _integer(data, at)
    if kind == 8:
        size, at = _varint(data, at)
        return data[at : at + size], at + size
    assert kind == 12, f"a page header has a field of the kind {kind}"
    return _struct(data, at)


def _integer(data: bytes, at: int) -> tuple[int, int]:
    found, at = _varint(data, at)
    return found >> 1 ^ -(found & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        byte = data[at]
        found |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return found, at

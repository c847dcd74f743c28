"""Reads results of the database without decoding: a value of any type stays bytes.

The driver's own types do not hold all CQL values, and it cannot read every type's name: in `vector<frozen<u>, 2>` with
a type `u` it reads the name, in hexadecimal "75", as a number.
"""

from typing import Any

from cassandra.protocol import (  # type: ignore[attr-defined]
    ResultMessage,
    _ProtocolHandler,
    read_short,
    read_string,
)

# Types that have parameters (native protocol version 4, 4.2.5.2).
_CUSTOM, _LIST, _MAP, _SET, _UDT, _TUPLE = 0x00, 0x20, 0x21, 0x22, 0x30, 0x31
_PARTS = {_LIST: 1, _MAP: 2, _SET: 1}


class _Bytes:
    """Stands for every type and leaves values as they are."""

    @staticmethod
    def from_binary(data: bytes | None, _: int) -> bytes | None:
        return data


class UntypedResult(ResultMessage):
    """A result that skips the types of its columns."""

    def recv_results_metadata(self, f: Any, user_type_map: Any) -> None:
        """Read names and number of the columns."""
        # Values that are bound to a statement keep their types: the driver reads those by the class.
        self.read_type = _read_past
        super().recv_results_metadata(f, user_type_map)
        del self.read_type


class UntypedProtocol(_ProtocolHandler):
    """A protocol handler for a session whose rows hold bytes."""

    message_types_by_opcode = _ProtocolHandler.message_types_by_opcode | {UntypedResult.opcode: UntypedResult}


def _read_past(f: Any, user_type_map: Any = None) -> type[_Bytes]:
    del user_type_map
    code = read_short(f)
    if code == _CUSTOM:
        read_string(f)
    elif code == _UDT:
        read_string(f)
        read_string(f)
        for _ in range(read_short(f)):
            read_string(f)
            _read_past(f)
    else:
        parts = read_short(f) if code == _TUPLE else _PARTS.get(code, 0)
        for _ in range(parts):
            _read_past(f)
    return _Bytes

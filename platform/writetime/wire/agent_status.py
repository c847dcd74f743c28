"""The form of an agent's status in its messages of `writetime.watermarks`; `capture.metrics` makes the status.

Every reader of the topic relies on this form, so it is checked once, where messages are read. Fields may be missing or
unknown: an agent may be older or newer than its readers.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

_Count = Annotated[int, Field(ge=0, lt=2**63)]
# The microseconds and seconds since 1970 that Python's dates can represent.
_Instant = Annotated[int, Field(ge=0, le=253_402_300_799_000_000)]
Seconds = Annotated[float, Field(ge=0, le=253_402_300_799, allow_inf_nan=False)]
_Number = Annotated[float, Field(ge=0, lt=2**63, allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class _Log(_Part):
    until: _Instant = 0
    fault: str | None = None
    found: dict[str, _Count] = {}


class _Snapshot(_Part):
    status: str = ""
    sstables: _Count = 0
    sstables_read: _Count = 0
    changes: _Count = 0


class _Status(_Part):
    at: Seconds = 0.0
    address: str = ""
    published_until: _Instant = 0
    held_by: str | None = None
    held: dict[str, str] = {}
    not_captured: dict[str, str] = {}
    logs: dict[str, _Log] = {}
    snapshots: dict[str, _Snapshot] = {}
    changes: dict[str, dict[str, _Count]] = {}
    errors: dict[str, _Count] = {}
    lag: dict[str, _Number] = {}
    totals: dict[str, _Count] = {}


def _checked(status: Mapping[str, Any]) -> Mapping[str, Any]:
    _Status.model_validate(dict(status))
    return status


AgentStatus = Annotated[Mapping[str, Any], AfterValidator(_checked)]
"""A status. Reading a message with an invalid one fails, as with every other invalid message."""

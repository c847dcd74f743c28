"""Types of settings: each accepts only the values that every command can use.

Dagster must accept the names of owners and queues. If it refused one, all assets would fail.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

# As Dagster checks it (`dagster._core.definitions.utils.is_valid_owner`).
_OWNER = re.compile(r"team:.+|\b[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}\b")


def _owner(name: str) -> str:
    if not _OWNER.fullmatch(name):
        raise ValueError(
            f"{name!r} is not an owner that Dagster accepts: use a mail address, whose last part has 2 to 7 letters, "
            "or a team, such as team:orders"
        )
    return name


Owner = Annotated[str, AfterValidator(_owner)]
"""The owner of an asset."""

QueueName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}$")]
"""The name of a replay queue."""


Text = Annotated[str, Field(min_length=1, pattern=r"^\S(.*\S)?$")]
"""A name or an address. Clients take an empty one as "none", or as a default of their own."""

TopicName = Annotated[str, Field(pattern=r"^\.?[A-Za-z0-9_-][A-Za-z0-9._-]{0,247}$")]
"""The name of a Kafka topic (`org.apache.kafka.common.internals.Topic.validate`)."""


def _table_name(name: str) -> str:
    if not re.fullmatch(r"\w+\.\w+", name):
        raise ValueError(f"{name} is not named as keyspace.table")
    return name


TableName = Annotated[str, AfterValidator(_table_name)]
"""A table as keyspace.table."""

Port = Annotated[int, Field(ge=1, le=65_535)]
"""A TCP port. Clients use the last 16 bits of a larger number."""


def _addresses(text: str) -> str:
    # ZooKeeper's may end with a path, and Kafka's may begin with a protocol.
    for address in text.partition("/" if "://" not in text else "\0")[0].split(","):
        match = re.fullmatch(r"(\w+://)?(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+)(:(\d{1,5}))?", address.strip())
        if match is None or (match[4] is not None and not 1 <= int(match[4]) <= 65_535):
            raise ValueError(f"{address.strip()!r} is not host:port, with a port from 1 to 65535")
    return text


Addresses = Annotated[str, AfterValidator(_addresses)]
"""Addresses as host:port, with commas."""

YEAR_SECONDS = 366 * 86_400
# A century: dates before the year 1 cannot be computed.
_MOST_DAYS = 36_525
# Clients keep milliseconds in 32 bits.
_MOST_REQUEST_SECONDS = 86_400

Seconds = Annotated[float, Field(gt=0, le=YEAR_SECONDS)]
"""A pause or an age, of at most a year."""

SecondsOrNone = Annotated[float, Field(ge=0, le=YEAR_SECONDS)]
"""The same, or 0."""

RequestSeconds = Annotated[float, Field(gt=0, le=_MOST_REQUEST_SECONDS)]
"""The time limit of a request or of a session, of at most a day."""

Hours = Annotated[float, Field(ge=0, le=24 * _MOST_DAYS)]
Days = Annotated[float, Field(ge=0, le=_MOST_DAYS)]


def _local_path(path: Path) -> Path:
    # An empty path is the working folder, which no setting means.
    if not str(path).strip() or path == Path():
        raise ValueError("a path is missing; the working folder is not used")
    return path


LocalPath = Annotated[Path, AfterValidator(_local_path)]
"""A folder or a file of this machine."""


def _lake_path(path: str) -> str:
    scheme, separator, place = path.partition("://")
    is_store = scheme in LAKE_SCHEMES and not place.startswith("/") and place != ""
    is_file = scheme == "file" and place.startswith("/")
    if separator and not (is_store or is_file):
        known = ", ".join(f"{name}://" for name in LAKE_SCHEMES)
        raise ValueError(f"{path!r} is neither a folder nor a bucket or container at one of {known}")
    return path


LAKE_SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss")
"""The object stores that can hold a lake: delta-rs has conditional puts for them, which commits need."""

LakePath = Annotated[Text, AfterValidator(_lake_path)]
"""The lake: a folder of this machine, or an address in an object store."""

MAX_BUCKETS = 1 << 16


def power_of_two(buckets: int) -> int:
    """Return a number of buckets. Raises ValueError: it is not a power of two up to `MAX_BUCKETS`."""
    if not 1 <= buckets <= MAX_BUCKETS or buckets & (buckets - 1):
        raise ValueError(f"{buckets:,} is no number of buckets: a power of two from 1 to {MAX_BUCKETS:,} is needed")
    return buckets


Buckets = Annotated[int, AfterValidator(power_of_two)]
"""A number of buckets: token ranges are the top bits of tokens."""


def _web_address(address: SecretStr) -> SecretStr:
    if not re.fullmatch(r"https?://[^\s/?#]+\S*", address.get_secret_value()):
        raise ValueError("it is not an http:// or https:// address")
    return address


WebAddress = Annotated[SecretStr, AfterValidator(_web_address)]
"""A URL that may hold a token."""


def _connect_address(address: SecretStr) -> SecretStr:
    if not re.fullmatch(r"sc://[^\s/?#]+\S*", address.get_secret_value()):
        raise ValueError("it is not an sc:// address")
    return address


ConnectAddress = Annotated[SecretStr, AfterValidator(_connect_address)]
"""The address of a Spark Connect server, which may hold a token."""


def require_distinct(queues: Sequence[str]) -> None:
    """Reject queues that Dagster cannot distinguish. Raises ValueError: two have the same name in Dagster."""
    names = [re.sub("[.-]", "_", queue) for queue in queues]
    if same := [queue for queue, name in zip(queues, names, strict=True) if names.count(name) > 1]:
        raise ValueError(
            f"queues: Dagster cannot distinguish {' and '.join(same)}: use names that differ in more than '-', '.' and "
            "'_'"
        )

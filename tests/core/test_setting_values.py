"""No setting accepts a value that a command cannot use: each field of each section is tried with values of its kind."""

import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from writetime.core import config
from writetime.core.config import Queue, Settings, TableEntry
from writetime.core.errors import WritetimeError

BAD_NUMBERS = [True, float("inf"), float("-inf"), float("nan"), 1e300, -1e300, -1]
# Free text, and numbers that may be negative.
ANY_TEXT = {"description"}
ANY_NUMBER = {"priority"}


def fields_of(model: type[BaseModel], path: str = "") -> Iterator[tuple[type[BaseModel], str, FieldInfo]]:
    """Yield each field of a section and of the sections below it."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from fields_of(kind, f"{path}{name}.")
        else:
            yield model, name, field


def kinds(annotation: Any) -> set[type]:
    """Return the types of the values that a field takes, also in lists."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return kinds(arguments[0])
    if origin in (list, typing.Union, types.UnionType):
        return {kind for argument in arguments for kind in kinds(argument)}
    return {annotation} if isinstance(annotation, type) else set()


FIELDS = [(m, n, f) for section in (Settings, TableEntry, Queue) for m, n, f in fields_of(section)]
CASES = [
    pytest.param(model, name, value, id=f"{model.__name__}.{name}={value}")
    for model, name, field in FIELDS
    for value in [
        *(BAD_NUMBERS if kinds(field.annotation) & {int, float} and name not in ANY_NUMBER else ()),
        *(("", " ") if kinds(field.annotation) & {str, Path} and name not in ANY_TEXT else ()),
    ]
]


def test_every_section_is_tried() -> None:
    assert {model for model, _, _ in FIELDS} > {config.Cassandra, config.Kafka, config.Capture, config.Embedded}
    assert len(CASES) > 500


@pytest.mark.parametrize(("model", "name", "value"), CASES)
def test_a_value_that_no_command_can_use_is_refused(model: type[BaseModel], name: str, value: Any) -> None:
    is_list = typing.get_origin(model.model_fields[name].annotation) is list
    with pytest.raises(ValidationError) as caught:
        model.model_validate({name: [value] if is_list else value})
    assert any(fault["loc"][0] == name for fault in caught.value.errors())


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ("lake", {"path": path})
        for path in ("s3a://", "s3://", "gs:///", "foo://x", "S3A://b/x", "http://host/x", "s3a:///prefix")
    ]
    + [("lake", {"buckets": buckets}) for buckets in (0, 7, -4, 1 << 17)]
    + [("cassandra", {"port": port}) for port in (0, -1, 65_536, 70_000, "9042x", True)]
    + [("cassandra", {"contact_points": points}) for points in ([], [""], "127.0.0.1")]
    + [("cassandra", {"keyspace": "k" * 49})]
    + [
        ("kafka", {"bootstrap_servers": servers})
        for servers in ("a:0", "a:65536", "a:b", ",", "a:1,", "a:1;b:2", "a b:1", "::1:9092", "http://")
    ]
    + [("zookeeper", {"hosts": hosts}) for hosts in ("a:0", "a:70000", "a:1,,b:1", "/chroot")]
    + [("ingest", {"topic": topic}) for topic in (".", "..", "a b", "ä", "a/b", "a" * 250)]
    + [("ingest", {"topic": "same", "dead_letter_topic": "same"}), ("ingest", {"group": ""})]
    + [("capture", {"finished": "archive"})]
    + [
        ("alerts", {"webhook": url})
        for url in ("chat.example/hook", "file:///etc/passwd", "ftp://a/b", "https://", "https:///x", "https://a b/c")
    ]
    + [("schema_registry", {"url": url}) for url in ("registry:8081", "http://", "https://u:p@registry", "http:///x")]
    + [("scylla_cdc", {"truncations": "system.truncated; DROP TABLE a.b"})],
)
def test_a_value_of_another_form_is_refused(section: str, value: Any) -> None:
    with pytest.raises(WritetimeError, match=section):
        config.load(None, **{section: value})


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ("lake", {"path": "s3://bucket/lake"}),
        ("lake", {"path": "abfss://lake@account.dfs.core.windows.net/x"}),
        ("kafka", {"bootstrap_servers": "SASL_SSL://b-1.example:9096, [::1]:9092,b"}),
        ("zookeeper", {"hosts": "zk1:2181,zk2:2181/writetime/prod"}),
        ("ingest", {"topic": ".hidden-topic_1"}),
        ("alerts", {"webhook": "https://hooks.chat.example/services/T0/B0?x=1#y"}),
        ("capture", {"finished": "archive", "archive": "s3://segments"}),
        ("embedded", {"home": "servers"}),
    ],
)
def test_a_usable_value_is_accepted(section: str, value: Any) -> None:
    [(name, wanted)] = list(value.items())[-1:]
    found = getattr(getattr(config.load(None, **{section: value}), section), name)
    assert (found.get_secret_value() if isinstance(found, SecretStr) else str(found)) == wanted

"""Images compared with changes: they agree, until writes are missing in the log."""

import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.scylla_cdc.agents import land, settings_for, wait_for_metrics, wait_until
from tests.scylla_cdc.conftest import Logged
from tests.scylla_cdc.databases import SECOND, CdcDatabase, StreamSet
from tests.scylla_cdc.odd import STREAM, Odd
from tests.support.programs import agent
from tests.support.status import status_lines
from tests.support.waiting import wait_for
from writetime.scylla_cdc import images
from writetime.scylla_cdc.images import Disagreement, contradictions, disagreements
from writetime.scylla_cdc.offsets import interval
from writetime.scylla_cdc.source import open_source
from writetime.servers.process import free_port


def compared(odd: Odd) -> list[Disagreement]:
    with open_source(odd.cdc.settings, odd.name) as source:
        pieces = interval(source, None, None, None)
        changes = pa.Table.from_batches(list(source.read(pieces)))
        return list(disagreements(source.images(pieces), changes, source.schema))


class Writer:
    """Writes to rows of one partition, and logs them with their images: what the database answers before and after
    each write, as ScyllaDB reads them."""

    def __init__(self, odd: Odd) -> None:
        self.odd = odd
        self.r = random.Random(5)

    def image(self, operation: int, c: int | None) -> list[dict[str, int | None]]:
        where = "p = 1" if c is None else f"p = 1 AND c = {c}"
        found = self.odd.cdc.session.execute(f"SELECT * FROM {self.odd.name} WHERE {where} LIMIT 1").one()
        if found is None or (c is None and found.s is None):
            return []
        shown = {"s": found.s} if c is None else {"c": c, "v": found.v, "w": found.w}
        return [{"operation": operation, "p": 1, **shown}]

    def write(self, second: int, *, logged: bool = True) -> None:
        column, value, c = self.r.choice("svw"), self.r.randint(0, 99), self.r.randint(1, 3)
        clustering = None if column == "s" else c
        where = "p = 1" if clustering is None else f"p = 1 AND c = {c}"
        using = f"USING TIMESTAMP {self.odd.start + second * SECOND}"
        delete = clustering is not None and self.r.random() < 0.2
        before = self.image(0, clustering)
        name = self.odd.name
        what = f"DELETE FROM {name} {using}" if delete else f"UPDATE {name} {using} SET {column} = {value}"
        self.odd.cdc.session.execute(f"{what} WHERE {where}")
        after = [] if delete else self.image(9, clustering)
        key = {"p": 1} if clustering is None else {"p": 1, "c": c}
        delta = {"operation": 3, **key} if delete else {"operation": 1, **key, column: value}
        if logged:
            self.odd.log(second, *before, delta, *after)


def test_images_show_writes_that_the_log_lacks(cdc: CdcDatabase) -> None:
    odd = Odd(cdc, "p int, c int, s int static, v int, w int, PRIMARY KEY (p, c)")
    writer = Writer(odd)
    for second in range(1, 25):
        writer.write(second)
    assert compared(odd) == []
    # As if CDC had been off.
    for second in range(25, 35):
        writer.write(second, logged=False)
    for second in range(35, 50):
        writer.write(second)
    found = compared(odd)
    assert found
    assert {d.kind for d in found} == {"preimage", "postimage"}
    assert min(d.write_time for d in found) >= odd.start + 35 * SECOND
    assert all(d.image != d.changes for d in found)


def test_images_that_cannot_be_compared(cdc: CdcDatabase) -> None:
    odd = Odd(cdc)
    key = {"p": 1, "c": 1}
    odd.log(1, {"operation": 1, **key, "v": 1}, {"operation": 9, **key, "v": 9})
    assert [(d.kind, d.column, d.image, d.changes) for d in compared(odd)] == [("postimage", "v", 9, 1)]
    odd.log(2, {"operation": 1, **key, "v": 2})  # newer than the image
    assert compared(odd) == []
    odd.log(3, {"operation": 1, **key, "v": 3, "ttl": 1}, {"operation": 9, **key, "v": None})  # expires
    odd.log(4, {"operation": 0, "p": 1, "c": 2, "v": 4}, {"operation": 1, "p": 1, "c": 2, "v": 5})
    odd.log(5, {"operation": 5, "p": 1, "c": 2}, {"operation": 7, "p": 1})  # deleted since
    assert compared(odd) == []


def checked(odd: Odd) -> tuple[int, list[str]]:
    """The disagreements while a log is read: their number, and the descriptions."""
    found: Counter[str] = Counter()
    texts: list[str] = []
    with open_source(odd.cdc.settings, odd.name) as source:
        list(source.read(interval(source, None, None, None), found=found, texts=texts))
    assert not found["image_not_compared"]
    return found["image_disagrees"], texts


def test_each_write_is_compared_with_its_own_image(cdc: CdcDatabase) -> None:
    """The agent does not have the writes from before the windows that it reads."""
    odd = Odd(cdc, "p int, c int, s int static, v int, w int, m map<int, int>, PRIMARY KEY (p, c)")
    cdc.set_options(odd.schema, enabled="true", preimage="true", postimage="true")

    def key(c: int, operation: int) -> dict[str, Any]:
        return {"operation": operation, "p": 1, "c": c}

    odd.log(1, {**key(1, 1), "v": 1}, {**key(1, 9), "v": 1, "w": 7})  # w is of before
    odd.log(2, {**key(1, 0), "v": 5}, {**key(1, 1), "v": 2}, {**key(1, 9), "v": 2})
    odd.log(3, key(2, 3), {**key(2, 9), "v": 3})  # of a row that is deleted
    odd.log(4, {**key(3, 1), "v": 1, "ttl": 5}, key(3, 9))  # may have expired
    odd.log(5, key(4, 0), key(4, 2), {**key(4, 9), "v": 3})  # the row was there
    odd.log(6, {**key(5, 2), "m": {1: 1}}, {**key(5, 9), "m": {1: 1}, "v": 3})  # an insert of something
    odd.log(7, key(6, 2), key(6, 9))
    assert checked(odd) == (0, [])
    odd.log(11, {**key(1, 1), "v": 8}, {**key(1, 9), "v": 9})
    odd.log(12, {"operation": 1, "p": 1, "s": 5}, {"operation": 9, "p": 1, "s": 6})
    odd.log(13, {**key(2, 1), "cdc$deleted_w": True}, {**key(2, 9), "w": 4})
    # As of an insert while `delta` was `keys`.
    odd.log(14, key(7, 2), {**key(7, 9), "v": 4})
    found, texts = checked(odd)
    assert found == 4
    for text, column in zip(texts, "vswv", strict=True):
        wanted = f"the postimage of a write of 2[-0-9T:.+]+ in stream 0x{STREAM.hex()} has another value of column "
        assert re.match(f"{wanted}{column} than the changes of the log of {odd.name}: ", text), text
    # Without preimages, the row of the insert may have been there.
    cdc.set_options(odd.schema, enabled="true", preimage="false", postimage="true")
    assert checked(odd)[0] == 3


def test_writes_of_one_time_are_not_compared(cdc: CdcDatabase) -> None:
    """The greater value wins, but each image shows its own."""
    odd = Odd(cdc)
    for value, low in ((1, 5), (2, 6)):
        row = {"p": 1, "c": 1, "v": value}
        odd.log(1, {"operation": 1, **row}, {"operation": 9, **row}, random=low)
    assert checked(odd) == (0, [])
    assert odd.changes().num_rows == 2


def test_the_agent_counts_disagreements_and_continues(
    cdc: CdcDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where images cannot be compared: all changes are published."""
    odd = Odd(cdc)
    for second in range(1, 31):
        key = {"p": second, "c": 1}
        odd.log(second, {"operation": 1, **key, "v": 1}, {"operation": 9, **key, "v": 1 + (second > 10)})
    for second in range(40, 43):
        odd.log(second, {"operation": 1, "p": second, "c": 1, "v": 1}, {"operation": 9, "p": second, "c": 1, "v": 1})
    table = Logged(odd.schema, [], [StreamSet(odd.start, (STREAM,))], [])
    settings = settings_for(cdc, tmp_path, table, window_seconds=1, batch_seconds=35)
    port = free_port()
    capture = settings.capture.model_copy(update={"metrics_port": port})
    settings = settings.model_copy(update={"capture": capture})

    def compare(*values: Any) -> Iterator[Disagreement]:
        if max(values[0]["write_time"].to_pylist()) >= odd.start + 40 * SECOND:
            raise ValueError("this cannot be compared")
        yield from contradictions(*values)

    monkeypatch.setattr(images, "contradictions", compare)
    with agent(settings):
        wait_until(settings, table, odd.start + 45 * SECOND)
        counted = 'writetime_capture_log_findings_total{{kind="{}",table="{}"}} {}'
        found = (("image_disagrees", 20.0), ("image_not_compared", 3.0))
        metrics = wait_for_metrics(port, *(counted.format(kind, odd.name, n) for kind, n in found))
        wait_for(lambda: any("3 postimages that could not be compared" in s for s in status_lines(settings)))
    assert 'writetime_capture_errors_total{what="log"}' not in metrics
    assert caplog.text.count("has another value of column v than the changes") == 10
    assert any("20 values of postimages that differ" in line for line in status_lines(settings))
    assert land(settings, table).total() == 33

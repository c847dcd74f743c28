"""How far an agent of logs goes at once: faults that last repeat nothing, and tables take turns."""

import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from tests.scylla_cdc.agents import reached, settings_for, wait_until
from tests.scylla_cdc.conftest import Logged
from tests.scylla_cdc.databases import SECOND, CdcDatabase, StreamSet
from tests.scylla_cdc.odd import STREAM, Odd
from tests.support.programs import agent
from tests.support.waiting import wait_for
from writetime.capture import cdc_log
from writetime.capture.agent_metrics import read_status
from writetime.clients.kafka import client_config, end_offsets, ensure_topics
from writetime.core.config import Settings
from writetime.wire.topic_names import changes_topic

ROWS = 20


def published(settings: Settings, table: str) -> int:
    """How many messages the topic of a table has."""
    return sum(end_offsets(settings, changes_topic(table)).values())


def odd_log(cdc: CdcDatabase, bad: dict[str, Any]) -> tuple[Odd, Logged]:
    """A log of some rows each second, with a bad row in the middle of those of second 15."""
    odd = Odd(cdc, "p int, c int, v blob, PRIMARY KEY (p, c)")
    row = {"operation": 1, "p": 1, "v": b"v"}
    for second in range(1, 21):
        for i in range(2):
            odd.log(second, *({**row, "c": c} for c in range(ROWS // 2)), random=2 * i)
    odd.log(15, {**row, "c": 0, **bad}, random=1)
    return odd, Logged(odd.current(), [], [StreamSet(odd.start, (STREAM,))], [])


@pytest.mark.parametrize(
    ("bad", "reason"), [({"v": bytes(200_000)}, "max.message.bytes"), ({"operation": 10}, "has the operation 10")]
)
def test_a_fault_that_lasts_repeats_nothing(
    cdc: CdcDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: dict[str, Any], reason: str
) -> None:
    """What was handed over before the fault is published once more at most, and saved up to the bad window."""
    monkeypatch.setattr("writetime.scylla_cdc.pages.PAGE_ROWS", ROWS // 4)
    monkeypatch.setattr("writetime.scylla_cdc.pieces.BATCH_ROWS", ROWS // 4)
    odd, table = odd_log(cdc, bad)
    settings = settings_for(cdc, tmp_path, table, window_seconds=1)
    topic = changes_topic(odd.name)
    ensure_topics(settings, {topic: {"max.message.bytes": "150000"}}, 2)
    retries: list[float] = []
    advance = cdc_log.LogAgent.advance

    def count(*arguments: Any) -> None:
        retries.append(time.monotonic())
        advance(*arguments)

    monkeypatch.setattr(cdc_log.LogAgent, "advance", count)
    with agent(settings):
        wait_for(lambda: reached(settings).get(odd.name, 0) > odd.start + 14 * SECOND)
        wait_for(lambda: reason in ((read_status(settings.capture.state_dir) or {})["logs"][odd.name]["fault"] or ""))
        before, done = published(settings, odd.name), len(retries)
        assert 14 * ROWS <= before <= 31 * ROWS
        wait_for(lambda: len(retries) >= done + 3)
        # The pauses grow.
        assert retries[-1] - retries[-3] >= 4
        assert published(settings, odd.name) == before
        assert reached(settings)[odd.name] <= odd.start + 15 * SECOND
        if "v" not in bad:
            return
        change = ConfigResource(ConfigResource.Type.TOPIC, topic)
        larger = ConfigEntry("max.message.bytes", "1000000", incremental_operation=AlterConfigOpType.SET)
        change.add_incremental_config(larger)
        admin = AdminClient(client_config(settings))
        for future in admin.incremental_alter_configs([change]).values():
            future.result(15)
        wait_until(settings, table, odd.start + 21 * SECOND)
        assert published(settings, odd.name) == before + 6 * ROWS + 1

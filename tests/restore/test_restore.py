"""Each kind of persistent data is lost, and restored by the commands of docs/backup.md."""

import shutil

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.restore.conftest import Platform, wait_for
from tests.support.commands import run
from tests.support.lake_answers import view_rows
from tests.support.lake_views import compacted
from tests.support.published import command
from writetime.clients.kafka import client_config, end_offsets, topic_names
from writetime.lake.table import open_table
from writetime.landing.following import LandedTables, OtherCluster
from writetime.wire.topic_names import changes_topic

pytestmark = pytest.mark.long


def by_id(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return sorted(rows, key=lambda row: str(row["id"]))


def test_the_state_of_an_agent_is_lost(platform: Platform) -> None:
    name = platform.table("agents")
    with platform.agent():
        platform.land(name)
    platform.write("DELETE FROM {ks}.agents WHERE id = 1", "UPDATE {ks}.agents SET v = 'later' WHERE id = 2")
    shutil.rmtree(platform.state_dir)
    with platform.agent("initial"):
        platform.land(name)


def test_kafka_is_lost(platform: Platform) -> None:
    name = platform.table("brokers")
    topic = changes_topic(name)
    with platform.agent():
        platform.land(name)
        run("publish", name)
        tables = LandedTables(platform.settings)
        tables.ask()
        # These are acknowledged, and never land.
        platform.write("DELETE FROM {ks}.brokers WHERE id = 1", "UPDATE {ks}.brokers SET v = 'later' WHERE id = 2")
        # An agent may publish a change twice.
        wait_for(lambda: sum(end_offsets(platform.settings, topic).values()) >= 12)
    platform.lose_kafka()
    with pytest.raises(OtherCluster, match="and this program again"):
        tables.ask()
    with platform.agent("always"):
        wait_for(lambda: topic in topic_names(platform.settings))
        wait_for(lambda: sum(end_offsets(platform.settings, topic).values()) >= 10)
        assert f"topic {topic} is not the one that was landed before" in command("land", name).stderr
        run("land", name, "--accept-gap")
        platform.land(name)
    assert len(platform.rows(name)) == 9
    assert f"`writetime publish {name} --new-topic all`" in command("publish", name).stderr
    run("publish", name, "--new-topic", "all")
    assert platform.replayed(name) == by_id(platform.rows(name))
    assert "0 events published" in run("publish", name)


def test_the_lake_is_lost(platform: Platform) -> None:
    name = platform.table("lakes")
    with platform.agent():
        platform.land(name)
        run("publish", name)
        shutil.copytree(platform.lake / name, platform.lake.parent / "backup")
        platform.write("UPDATE {ks}.lakes SET v = 'later' WHERE id = 2")
        platform.land(name)
        run("publish", name)
    # There is a backup.
    shutil.rmtree(platform.lake / name)
    shutil.copytree(platform.lake.parent / "backup", platform.lake / name)
    platform.land(name)
    assert f"`writetime rebuild {name} row_events`" in command("publish", name).stderr
    run("rebuild", name, "row_events")
    run("publish", name)
    assert platform.replayed(name) == by_id(platform.rows(name))
    # The lake is missing, and Kafka has all changes, or no longer has them.
    shutil.rmtree(platform.lake / name)
    platform.land(name)
    shutil.rmtree(platform.lake / name)
    topic = changes_topic(name)
    admin = AdminClient(client_config(platform.settings))
    ends = [TopicPartition(topic, p, end) for p, end in end_offsets(platform.settings, topic).items()]
    for deleted in admin.delete_records(ends).values():
        deleted.result(15)
    assert f"`writetime land {name} --accept-gap`" in command("land", name).stderr
    run("backfill", name, *run("snapshot", name).split())
    run("land", name, "--accept-gap")
    platform.land(name)
    run("publish", name)
    assert platform.replayed(name) == by_id(platform.rows(name))


def test_a_part_of_a_table_is_lost(platform: Platform) -> None:
    name = platform.table("parts")
    with platform.agent():
        platform.land(name)
        run("publish", name)
        run("maintain", name)
        wanted = platform.rows(name)
        shutil.rmtree(platform.lake / name / "state")
        assert f"`writetime rebuild {name}`" in command("view", name).stderr
        run("rebuild", name, "state")
        assert platform.rows(name) == wanted
        shutil.rmtree(platform.lake / name / "view")
        run("rebuild", name, "view")
        assert by_id(view_rows(compacted(open_table(platform.settings, name)))) == by_id(wanted)
        shutil.rmtree(platform.lake / name / "row_events")
        platform.write("UPDATE {ks}.parts SET v = 'later' WHERE id = 2")
        platform.land(name)
        run("publish", name)
    assert platform.replayed(name) == by_id(platform.rows(name))

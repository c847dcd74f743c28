"""The counts of each stage of the demo: the numbers that must add up, and those that pass between its stations."""

from collections.abc import Mapping

from demo import enrichment, figures
from demo.dagster_run import RunResult
from demo.report import Stage, Station, Sum
from writetime.core.config import Settings
from writetime.core.counts import pluralize as counted
from writetime.lake.table import open_table
from writetime_dagster.assets.naming import key_of


def ingested(replayed: RunResult, ingest: list[RunResult], rows_added: int, broken: int) -> Stage:
    """Return the outcome of the events; `broken` is the number of messages that are not events."""
    flights = replayed.metadata["sources/flights"]
    events = [run.metadata["ingest/user_events"] for run in ingest]
    stored, duplicates, dead = (sum(e[f"events_{what}"] for e in events) for what in ("stored", "duplicate", "dead"))
    letters = sum(run.metadata["ingest/dead_letters"]["rows_appended"] for run in ingest)
    acknowledged = flights["events_acknowledged"]
    return Stage(
        "ingest",
        [
            Sum((flights["events_sent"], "events sent over HTTP"), [(acknowledged, "acknowledged")]),
            Sum(
                (acknowledged + broken, "taken"),
                [(stored, "stored"), (duplicates, "duplicates"), (dead, "dead")],
            ),
            Sum((rows_added, "new rows by CQL"), [(stored, "stored")]),
            Sum((letters, "new dead letters in the lake"), [(dead, "dead")]),
        ],
        f"{counted(flights['calls'], 'call')}, {flights['calls_repeated']} made twice; "
        + counted(broken, "broken message"),
        [
            [
                Station("clients", "post real flights of 2013 as events, some calls twice", "sources/flights"),
                Station(
                    "writetime serve",
                    "answers 202 once the brokers have an event",
                    "sources/user_events_topic",
                    (flights["events_sent"], "events"),
                ),
                Station(
                    "job ingest",
                    "discards duplicates, and sets aside messages that are not events",
                    "ingest/user_events",
                    (acknowledged + broken, "messages"),
                ),
                Station("table user_events", "has each event once", "ingest/user_events", (stored, "new rows")),
            ]
        ],
    )


def worked(replayed: RunResult, account: enrichment.Account, broken: int) -> Stage:
    """Return the outcome of the work items; `broken` is the number of items that are not flights."""
    enqueued = replayed.metadata["sources/flight_items"]["items_enqueued"] + broken
    return Stage(
        "work queue",
        [
            Sum((enqueued, "enqueued"), [(account.enriched, "enriched"), (account.dead, "dead")]),
            Sum((account.items, "items by CQL"), [(enqueued, "enqueued")]),
        ],
        f"{account.with_plane:,} with their plane, {account.with_weather:,} with the weather",
        [
            [
                Station("clients", "post the same flights as items of work", "sources/flight_items"),
                Station("work queue", "keeps each item in the database", "workqueue/event_queue", (enqueued, "items")),
                Station(
                    "writetime work",
                    "adds plane and weather, and gives up items that are not flights",
                    "workqueue/completed_events",
                    (account.enriched, "enriched"),
                ),
            ]
        ],
    )


def replayed(boarded: RunResult, counted: figures.Figures) -> Stage:
    """Return the outcome of the batches; the figures are those of the database."""
    batches, applied = boarded.metadata["demo/flight_batches"], boarded.metadata["demo/board"]
    on_board = sum(counted.on_board.values())
    return Stage(
        "replay queue",
        [
            Sum(
                (batches["flights_in_queue"], "flights in the queue"),
                [(on_board, "on the board"), (counted.cancelled, "cancelled")],
            ),
            Sum((batches["batches"], "batches published"), [(applied["batches"], "applied")]),
        ],
        flows=[
            [
                Station("publisher", "publishes enriched flights in their order", "demo/flight_batches"),
                Station(
                    "replay queue",
                    "keeps batches, numbered without gaps, to be read again",
                    "queues/flights",
                    (batches["flights_in_queue"], "flights"),
                ),
                Station(
                    "table flights",
                    "is the departures board; a write time is the batch's time plus the flight's position in the batch",
                    "demo/board",
                    (on_board, "rows"),
                ),
            ]
        ],
    )


def followed_table(
    settings: Settings, name: str, snapshot: list[RunResult], caught_up: RunResult, verify: RunResult
) -> Stage:
    """Return the outcome of the changes of a table."""

    def asset(part: str) -> str:
        return key_of(name, part).to_user_string()

    landed, view = caught_up.metadata[asset("changes")], caught_up.metadata[asset("view")]
    proof = verify.check_metadata[f"{asset('view')}: rows_are_those_of_the_database"]
    rows = view["dagster/row_count"]
    events = _events(settings, name)
    published = caught_up.metadata[asset("row_topic")]["events_published"]
    of_kinds = [(caught_up.metadata[asset("row_events")][f"events_{k}"], k) for k in ("create", "update", "delete")]
    note = f"{counted(landed['changes_landed'], 'change', ',')} captured, {landed['changes_not_landed']:,} waiting"
    if snapshot:
        note += f"; {counted(snapshot[-1].metadata[asset('backfill')]['sstables'], 'SSTable')} of a snapshot"
    return Stage(
        name.partition(".")[2],
        [
            Sum((rows, "rows in the view"), [(proof["rows_in_the_database"], "in the database")]),
            Sum(
                (events.get("CREATE", 0), "rows created"), [(rows, "in the view"), (events.get("DELETE", 0), "deleted")]
            ),
            Sum((published, "row events published"), of_kinds),
        ],
        note,
        [
            [
                Station(f"table {name.partition('.')[2]}", "logs its changes", asset("table")),
                Station(
                    "writetime agent",
                    "reads the log, and publishes each change to Kafka",
                    asset("topic"),
                    (landed["changes_landed"], "new changes"),
                ),
                Station(
                    "row events", "are CREATE, UPDATE and DELETE of rows", asset("row_topic"), (published, "new events")
                ),
            ],
            [
                Station("lake", "merges changes and snapshots, by their write times", asset("state")),
                Station("view", "has the live rows, like the database", asset("view"), (rows, "rows")),
                Station(
                    "verify",
                    "compares the view with the rows that the database returns",
                    asset("view"),
                    (proof["rows_in_the_database"], "rows by CQL"),
                ),
            ],
        ],
    )


def _events(settings: Settings, name: str) -> Mapping[str, int]:
    """Count the row events of a table by kind, over all runs."""
    kinds = open_table(settings, name).row_events.read(["kind"])
    return {row["values"]: row["counts"] for row in kinds["kind"].value_counts().to_pylist()}

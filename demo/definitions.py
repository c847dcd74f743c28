"""The demo's code location: the platform, the flights that feed it, and the departures board that it feeds."""

from dagster import Definitions

from demo import assets, board, published
from writetime.core import config
from writetime_dagster.assets import ingest, tables, workqueue
from writetime_dagster.assets.naming import documented
from writetime_dagster.assets.wiring import platform

settings = config.load()

defs = Definitions.merge(
    platform(
        settings,
        upstream={ingest.HTTP_EVENTS: [assets.FLIGHTS], workqueue.EVENT_QUEUE: [assets.FLIGHT_ITEMS]},
        publishers={published.QUEUE: assets.BATCHES},
        writers={board.TABLE: tables.Writer(assets.BOARD, "replay")},
    ),
    documented(
        Definitions(
            assets=[
                assets.replayed_flights,
                assets.flight_items,
                assets.flight_batches,
                assets.board(settings.replay.queues),
            ],
            jobs=[assets.replay_flights_job, assets.board_job],
        ),
        settings,
    ),
)

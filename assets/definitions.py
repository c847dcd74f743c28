"""The code location: wiring only."""

from dagster import Definitions, in_process_executor

from assets import board, capture, demo, ingest, replay, runs, segments, tables, workqueue
from assets.naming import documented
from resources import DatabaseResource, KafkaResource, LakeResource, SparkResource, ZooKeeperResource
from writetime.core import config
from writetime.demo import board as departures
from writetime.demo import published

settings = config.load()
# What writes the tables of the platform's own, so that no edge is missing where they are followed.
own = {
    settings.ingest.table: tables.Writer(ingest.USER_EVENTS, "ingest"),
    "queue_items": tables.Writer(workqueue.EVENT_QUEUE, "workqueue"),
    departures.TABLE: tables.Writer(board.BOARD, "replay"),
}

# What names tables, queues and owners is read when this is loaded; all other settings when a run starts.
defs = Definitions.merge(
    tables.definitions({f"{settings.cassandra.keyspace}.{name}": writer for name, writer in own.items()}),
    documented(
        Definitions.merge(
            replay.definitions(settings.replay.queues, {published.QUEUE: board.BATCHES}),
            segments.definitions,
            Definitions(
                assets=[
                    demo.flights,
                    demo.flight_items,
                    board.flight_batches,
                    board.board(settings.replay.queues),
                    ingest.http_events,
                    ingest.user_events_topic,
                    ingest.user_events,
                    ingest.dead_letter_topic,
                    ingest.dead_letters,
                    capture.commit_logs,
                    capture.agents,
                    workqueue.event_queue,
                    workqueue.completed_events,
                ],
                asset_checks=[
                    ingest.lag_is_far_from_retention,
                    capture.no_agent_is_held_up,
                    workqueue.no_item_is_lost,
                    workqueue.no_work_is_stuck,
                    workqueue.lake_has_what_is_completed,
                ],
                jobs=[
                    ingest.ingest_job,
                    ingest.ingest_lag_job,
                    ingest.dead_letters_job,
                    demo.replay_flights_job,
                    board.board_job,
                    capture.agents_job,
                    workqueue.completed_events_job,
                    workqueue.queue_health_job,
                    workqueue.queue_audit_job,
                    workqueue.drain_queue,
                ],
                sensors=[
                    ingest.user_events_lag,
                    workqueue.stuck_work,
                    runs.failed_runs,
                    runs.finished_runs,
                    runs.canceled_runs,
                ],
                schedules=[
                    ingest.ingest_schedule,
                    ingest.ingest_lag_schedule,
                    ingest.dead_letters_schedule,
                    capture.agents_schedule,
                    *workqueue.schedules,
                ],
            ),
        ),
        settings.alerts.owners,
    ),
    Definitions(
        resources={
            "spark": SparkResource(),
            "database": DatabaseResource(),
            "kafka": KafkaResource(),
            "zookeeper": ZooKeeperResource(),
            "lake": LakeResource(),
        },
        executor=in_process_executor,
    ),
)

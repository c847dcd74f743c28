"""The code location: wiring only."""

from dagster import Definitions, in_process_executor

from assets import automation, capture, demo, ingest, lake, replay, rows, segments, tables, workqueue
from resources import DatabaseResource, KafkaResource, LakeResource, SparkResource, ZooKeeperResource
from writetime import config

defs = Definitions.merge(
    # What names the queues is read when this is loaded; all other settings when a run starts.
    replay.definitions(config.load().replay.queues),
    segments.definitions,
    Definitions(
        assets=[
            demo.flights,
            demo.flight_items,
            ingest.http_events,
            ingest.user_events_topic,
            ingest.user_events,
            ingest.dead_letter_topic,
            ingest.dead_letters,
            lake.snapshots,
            capture.commit_logs,
            capture.changes_topics,
            capture.landed_changes,
            lake.changes,
            lake.lake_state,
            lake.lake_view,
            rows.row_events,
            rows.row_topic,
            workqueue.event_queue,
            workqueue.completed_events,
        ],
        asset_checks=[
            ingest.lag_is_far_from_retention,
            lake.rows_are_those_of_the_database,
            workqueue.no_item_is_lost,
            workqueue.no_work_is_stuck,
        ],
        jobs=[
            automation.ingest_job,
            automation.dead_letters_job,
            automation.replay_flights_job,
            tables.backfill_job,
            capture.land_job,
            capture.agents_job,
            tables.lake_job,
            tables.rows_job,
            tables.verify_job,
            tables.maintain_job,
            workqueue.completed_events_job,
            workqueue.queue_health_job,
            workqueue.drain_queue,
        ],
        sensors=[automation.user_events_lag, capture.captured_changes, workqueue.stuck_work],
        schedules=[
            automation.ingest_schedule,
            automation.dead_letters_schedule,
            capture.agents_schedule,
            *tables.schedules,
        ],
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

"""The code location: wiring only."""

from dagster import Definitions, in_process_executor

from assets import automation, demo, ingest, lake
from resources import DatabaseResource, KafkaResource, LakeResource, SparkResource, ZooKeeperResource

defs = Definitions(
    assets=[
        demo.flights,
        ingest.http_events,
        ingest.user_events_topic,
        ingest.user_events,
        ingest.dead_letter_topic,
        ingest.dead_letters,
        lake.snapshots,
        lake.changes,
        lake.lake_state,
        lake.lake_view,
    ],
    asset_checks=[ingest.lag_is_far_from_retention],
    jobs=[
        automation.ingest_job,
        automation.dead_letters_job,
        automation.replay_flights_job,
        automation.backfill_job,
        automation.lake_job,
    ],
    sensors=[automation.user_events_lag],
    schedules=[automation.ingest_schedule, automation.dead_letters_schedule],
    resources={
        "spark": SparkResource(),
        "database": DatabaseResource(),
        "kafka": KafkaResource(),
        "zookeeper": ZooKeeperResource(),
        "lake": LakeResource(),
    },
    executor=in_process_executor,
)

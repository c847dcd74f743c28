"""What runs by itself: the lag sensor and the schedule of ingest, and the jobs that they start."""

import json

from dagster import (
    AssetSelection,
    DefaultScheduleStatus,
    DefaultSensorStatus,
    RunRequest,
    ScheduleDefinition,
    SensorEvaluationContext,
    SkipReason,
    define_asset_job,
    in_process_executor,
    sensor,
)

from assets import demo, ingest
from resources import KafkaResource
from writetime.errors import WritetimeError

ingest_job = define_asset_job(
    "ingest",
    AssetSelection.assets(ingest.USER_EVENTS, ingest.DEAD_LETTERS),
    description="Store what is in the topic, check it, commit it, and bring the dead letters to the lake.",
    executor_def=in_process_executor,
)

replay_flights_job = define_asset_job(
    "replay_flights",
    AssetSelection.assets(demo.FLIGHTS),
    description="Post real flights of 2013 to the HTTP ingress (`writetime serve` must be running).",
    executor_def=in_process_executor,
)


@sensor(
    job=ingest_job,
    minimum_interval_seconds=30,
    default_status=DefaultSensorStatus.STOPPED,
    description="Starts the job `ingest` when the topic has messages that are not stored. Stays quiet while a "
    "`writetime sink` does the work.",
)
def user_events_lag(context: SensorEvaluationContext, kafka: KafkaResource) -> RunRequest | SkipReason:
    """Compare the ends of the topic with the offsets of the group; the ends name the run, so it is started once."""
    ingest_settings = kafka.settings.ingest
    try:
        state = kafka.state(ingest_settings.topic, ingest_settings.group)
        if state.total_lag == 0:
            return SkipReason(f"{ingest_settings.topic} has no messages to store")
        if kafka.group_is_live(ingest_settings.group):
            return SkipReason(
                f"a `writetime sink` is storing the {state.total_lag} messages of {ingest_settings.topic}"
            )
    except WritetimeError as e:
        return SkipReason(f"the lag cannot be seen: {e}")
    ends = json.dumps(state.ends, sort_keys=True)
    context.update_cursor(ends)
    return RunRequest(run_key=ends, tags={"writetime/lag": str(state.total_lag)})


ingest_schedule = ScheduleDefinition(
    job=ingest_job,
    cron_schedule="*/15 * * * *",
    default_status=DefaultScheduleStatus.STOPPED,
    description="Drains the topic every quarter of an hour; the sensor does it sooner.",
)

"""What runs by itself: the lag sensor and the schedule of ingest, and the jobs that they start."""

from dagster import (
    AssetSelection,
    DagsterRunStatus,
    DefaultScheduleStatus,
    DefaultSensorStatus,
    RunRequest,
    RunsFilter,
    ScheduleDefinition,
    SensorEvaluationContext,
    SkipReason,
    define_asset_job,
    in_process_executor,
    schedule,
    sensor,
)

from assets import demo, ingest
from resources import KafkaResource
from writetime.errors import WritetimeError

# What a run is tagged with that works on one table.
TABLE_TAG = "writetime/table"

UNFINISHED = [
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]

ingest_job = define_asset_job(
    "ingest",
    AssetSelection.assets(ingest.USER_EVENTS, ingest.DEAD_LETTERS)
    | AssetSelection.checks(ingest.lag_is_far_from_retention),
    description="Store what is in the topic, check it, commit it, and bring the dead letters to the lake.",
    executor_def=in_process_executor,
)

replay_flights_job = define_asset_job(
    "replay_flights",
    AssetSelection.assets(demo.FLIGHTS, demo.FLIGHT_ITEMS),
    description="Post real flights of 2013 to the HTTP ingress (`writetime serve` must be running), and enqueue them.",
    executor_def=in_process_executor,
)


dead_letters_job = define_asset_job(
    "dead_letters",
    AssetSelection.assets(ingest.DEAD_LETTERS),
    description="Bring the dead letters to the lake, also those of a `writetime sink`.",
    executor_def=in_process_executor,
)


@sensor(
    job=ingest_job,
    minimum_interval_seconds=30,
    default_status=DefaultSensorStatus.STOPPED,
    description="Starts the job `ingest` when the topic has messages that are not stored. Stays quiet while a run of "
    "it is under way, or a `writetime sink` does the work.",
)
def user_events_lag(context: SensorEvaluationContext, kafka: KafkaResource) -> RunRequest | SkipReason:
    """Ask for a run while there is lag, also after a run that failed or took only a part."""
    if context.instance.get_runs(RunsFilter(job_name=ingest_job.name, statuses=UNFINISHED), limit=1):
        return SkipReason("a run of the job `ingest` is under way")
    settings = kafka.settings.ingest
    try:
        state = kafka.state(settings.topic, settings.group)
        if state.total_lag == 0:
            return SkipReason(f"{settings.topic} has no messages to store")
        if kafka.group_is_live(settings.group):
            return SkipReason(f"a `writetime sink` is storing the {state.total_lag} messages of {settings.topic}")
    except WritetimeError as e:
        return SkipReason(f"the lag cannot be seen: {e}")
    return RunRequest(tags={"writetime/lag": str(state.total_lag)})


@schedule(
    job=ingest_job,
    cron_schedule="*/15 * * * *",
    default_status=DefaultScheduleStatus.STOPPED,
    description="Drains the topic every quarter of an hour; the sensor does it sooner.",
)
def ingest_schedule(kafka: KafkaResource) -> RunRequest | SkipReason:
    """Ask for a run, unless a `writetime sink` does the work."""
    if kafka.group_is_live(kafka.settings.ingest.group):
        return SkipReason("a `writetime sink` is storing the events")
    return RunRequest()


dead_letters_schedule = ScheduleDefinition(
    job=dead_letters_job,
    cron_schedule="5-59/15 * * * *",
    default_status=DefaultScheduleStatus.STOPPED,
    description="Brings new dead letters to the lake.",
)

"""Segments: archives of the nodes' commit logs -> the topics `changes.<keyspace>.<table>`.

This module has the asset that publishes folders of segments, and the sensor that starts it.
`writetime.capture.archives` publishes the segments. The agents follow live nodes, and need no asset.
"""

from pathlib import Path

import dagster as dg
from pydantic import Field

from writetime.capture.archives import checkpoint_of, publish_segments, unpublished
from writetime.core.errors import WritetimeError
from writetime.lake.spark_tasks import in_spark, tasks_at_once
from writetime_dagster.assets.automation import asset_job, failed_lately, is_under_way, sensor_of
from writetime_dagster.assets.builders import written_asset
from writetime_dagster.assets.capture import COMMIT_LOGS
from writetime_dagster.assets.checks import from_faults
from writetime_dagster.resources import KafkaResource, SparkResource

PUBLISHED_SEGMENTS = dg.AssetKey(["capture", "published_segments"])


class SegmentsConfig(dg.Config):
    """The segments to publish."""

    paths: list[str] = Field(
        default=[],
        description="Folders of segments, each of one node: local or URLs; default: capture.segments.",
    )
    checkpoint: str | None = Field(
        default=None, description="The folder of their progress; default: `segments` in capture.state_dir."
    )


@written_asset(
    PUBLISHED_SEGMENTS,
    deps=[COMMIT_LOGS],
    group_name="capture",
    kinds={"spark", "kafka"},
    pool="published_segments",
    checks={
        "every_segment_is_published": "No segment of the checkpoint has changes that are not published; the reasons "
        "are shown."
    },
)
def published_segments(config: SegmentsConfig, spark: SparkResource, kafka: KafkaResource) -> dg.MaterializeResult:
    """The changes in folders of commit log segments, in the topics of the captured tables, each at least once.

    A run publishes the segments that the folders hold when it starts and that the checkpoint does not have. After a
    failure, run it again.
    """
    settings, session = kafka.settings, spark.spark_session
    paths = config.paths or settings.capture.segments
    if not paths:
        raise WritetimeError("no folder of segments is named: set capture.segments, or name paths in the run's config")
    checkpoint = Path(config.checkpoint) if config.checkpoint else checkpoint_of(settings)
    report = publish_segments(
        *(settings, paths, checkpoint),
        run=in_spark(session),
        tasks=tasks_at_once(session),
    )
    return dg.MaterializeResult(
        metadata={
            "segments": report.segments,
            "mutations": report.mutations,
            "changes": report.changes.total(),
            "by_table": dg.MetadataValue.json(dict(report.changes)),
            "growing": dg.MetadataValue.json(report.growing),
        },
        check_results=[
            from_faults(
                [f"{segment}: {reason}" for segment, reason in report.faults.items()],
                {"faults": dg.MetadataValue.json(report.faults)},
            )
        ],
    )


publish_segments_job = asset_job(
    "publish_segments",
    dg.AssetSelection.assets(PUBLISHED_SEGMENTS),
    description="Publish the changes in folders of commit log segments: `capture.segments`, or the `paths` of the run.",
)


@sensor_of(
    60,
    "Capture: starts the job `publish_segments` when the folders of `capture.segments` have unpublished segments, by "
    "their listing, or one of the folders cannot be listed, which the run then reports.",
    fault="the checkpoint cannot be read",
    job=publish_segments_job.name,
)
def new_segments(context: dg.SensorEvaluationContext, kafka: KafkaResource) -> dg.RunRequest | dg.SkipReason:
    """Compare the folders with the checkpoint."""
    if is_under_way(context.instance, publish_segments_job.name):
        return dg.SkipReason("a run of the job `publish_segments` is under way")
    if failed_lately(context.instance, publish_segments_job.name):
        return dg.SkipReason(
            "the last run of the job `publish_segments` failed; it is retried 15 minutes after its end"
        )
    settings = kafka.settings
    if not settings.capture.segments:
        return dg.SkipReason("capture.segments names no folder")
    new, unlisted = unpublished(settings.capture.segments, checkpoint_of(settings))
    # A run publishes the other folders, and reports the fault.
    if not new and not unlisted:
        return dg.SkipReason("all segments are published")
    return dg.RunRequest(tags={"writetime/segments": str(len(new))})


definitions = dg.Definitions(assets=[published_segments], jobs=[publish_segments_job], sensors=[new_segments])

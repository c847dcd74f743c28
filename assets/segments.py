"""Segments: archives of the nodes' commit logs -> the topics `changes.<keyspace>.<table>`.

What belongs here: the asset that publishes folders of segments, and its job. Not here: the agents that follow nodes,
and how segments are published (`writetime.capture.archives`).
"""

from pathlib import Path

from dagster import (
    AssetCheckResult,
    AssetCheckSpec,
    AssetKey,
    AssetSelection,
    Config,
    Definitions,
    MaterializeResult,
    MetadataValue,
    asset,
    define_asset_job,
    in_process_executor,
)
from pydantic import Field

from assets.capture import COMMIT_LOGS
from assets.failures import by_kind
from resources import KafkaResource, SparkResource
from writetime.capture.archives import publish_segments
from writetime.lake.spark import in_spark

PUBLISHED_SEGMENTS = AssetKey(["capture", "published_segments"])


class SegmentsConfig(Config):
    """Which segments are published."""

    paths: list[str] = Field(description="Folders of segments, each of one node: local ones or URLs.")
    checkpoint: str | None = Field(
        default=None, description="Where is kept how far they are; by default `segments` in capture.state."
    )


@asset(
    key=PUBLISHED_SEGMENTS,
    deps=[COMMIT_LOGS],
    group_name="capture",
    kinds={"spark", "kafka"},
    pool="published_segments",
    check_specs=[
        AssetCheckSpec(
            "every_segment_is_published",
            asset=PUBLISHED_SEGMENTS,
            description="No segment of the checkpoint has changes that are not published; the reasons are told.",
        )
    ],
)
@by_kind()
def published_segments(config: SegmentsConfig, spark: SparkResource, kafka: KafkaResource) -> MaterializeResult:
    """The changes in folders of commit log segments, in the topics of the captured tables, each at least once.

    A run publishes what the folders hold when it starts and the checkpoint does not have; one that fails is run again.
    """
    settings, session = kafka.settings, spark.spark_session
    checkpoint = Path(config.checkpoint) if config.checkpoint else settings.capture.state / "segments"
    report = publish_segments(
        *(settings, config.paths, checkpoint),
        run=in_spark(session),
        tasks=session.sparkContext.defaultParallelism,
    )
    return MaterializeResult(
        metadata={
            "segments": report.segments,
            "mutations": report.mutations,
            "changes": report.changes.total(),
            "by_table": MetadataValue.json(dict(report.changes)),
            "growing": MetadataValue.json(report.growing),
        },
        check_results=[
            AssetCheckResult(
                check_name="every_segment_is_published",
                passed=not report.faults,
                metadata={"faults": MetadataValue.json(report.faults)},
            )
        ],
    )


definitions = Definitions(
    assets=[published_segments],
    jobs=[
        define_asset_job(
            "publish_segments",
            AssetSelection.assets(PUBLISHED_SEGMENTS),
            description="Publish the changes in folders of commit log segments.",
            executor_def=in_process_executor,
        )
    ],
)

"""The Dagster definitions of the whole platform, and those of its tables alone.

This module lists the stages. The code location (`writetime_dagster.assets.definitions`) and the component
(`writetime_dagster.assets.component`) load the settings and call it.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import dagster as dg

from writetime.core.config import Settings
from writetime_dagster.assets import capture, ingest, replay, runs, segments, tables, upkeep, workqueue
from writetime_dagster.assets.automation import switched, with_rounds
from writetime_dagster.assets.naming import documented, with_specs
from writetime_dagster.resources import DatabaseResource, KafkaResource, LakeResource, SparkResource, ZooKeeperResource


def platform(
    settings: Settings,
    *,
    upstream: Mapping[dg.AssetKey, Sequence[dg.AssetKey]] | None = None,
    publishers: Mapping[str, dg.AssetKey] | None = None,
    writers: Mapping[str, tables.Writer] | None = None,
) -> dg.Definitions:
    """Return the definitions of the platform.

    The names of tables, queues and owners are read from these settings. A run reads all other settings when it starts.

    Args:
        settings: the settings of the installation.
        upstream: assets of other code that the platform's assets depend on.
        publishers: the asset that publishes to a replay queue, by the queue's name.
        writers: the asset that writes a table, by the table's name without its keyspace.
    """
    # The assets that write the platform's own tables, so that no edge is missing if these tables are followed.
    own = {
        settings.ingest.table: tables.Writer(ingest.USER_EVENTS, "ingest"),
        "queue_items": tables.Writer(workqueue.EVENT_QUEUE, "workqueue"),
        **(writers or {}),
    }

    def depend(spec: dg.AssetSpec) -> dg.AssetSpec:
        return spec.merge_attributes(deps=(upstream or {}).get(spec.key, ()))

    stages = dg.Definitions.merge(
        tables.definitions(settings, {f"{settings.cassandra.keyspace}.{name}": writer for name, writer in own.items()}),
        with_specs(
            documented(
                dg.Definitions.merge(
                    capture.definitions,
                    segments.definitions,
                    ingest.definitions,
                    workqueue.definitions,
                    replay.definitions(settings.replay.queues, publishers or {}),
                ),
                settings,
            ),
            depend,
        ),
        upkeep.definitions(settings.replay.queues),
        _shared(),
        dg.Definitions(resources={"zookeeper": ZooKeeperResource()}, executor=dg.in_process_executor),
    )
    return switched(with_rounds(stages), settings)


def of_tables(
    settings: Settings, only: Collection[str] | None = None, settings_file: Path | None = None
) -> dg.Definitions:
    """Return the definitions of the followed tables and of their capture. A code location with other assets can use
    them, too.

    Steps outside the jobs use the executor of the code location.

    Args:
        settings: the settings of the installation.
        only: the names of the tables, as keyspace.table; None for all tables that the settings follow.
        settings_file: the file that runs read, by default that of `config_path`.
    """
    own = documented(dg.Definitions.merge(capture.definitions, segments.definitions), settings)
    stages = dg.Definitions.merge(tables.definitions(settings, {}, only), own, _shared(settings_file))
    return switched(with_rounds(stages), settings)


def _shared(settings_file: Path | None = None) -> dg.Definitions:
    """Return the resources that all stages use, and the sensors that report ended runs."""
    file = None if settings_file is None else str(settings_file)
    return dg.Definitions(
        resources={
            "spark": SparkResource(settings_file=file),
            "database": DatabaseResource(settings_file=file),
            "kafka": KafkaResource(settings_file=file),
            "lake": LakeResource(settings_file=file),
        },
        sensors=list(runs.sensors(settings_file).values()),
    )

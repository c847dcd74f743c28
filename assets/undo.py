"""The jobs `plan_undo` and `apply_undo`, which undo the writes of an interval to a table."""

import dagster as dg
from pydantic import Field

from writetime.core.instants import parse_instant
from writetime.lake.table import open_table
from writetime.undo.applying import apply_plan
from writetime.undo.damage import Interval
from writetime.undo.plan import examples, folder_of, make_plan, read_plan
from writetime_dagster.assets.automation import step_job
from writetime_dagster.assets.failures import retried
from writetime_dagster.assets.naming import key_of
from writetime_dagster.resources import DatabaseResource, LakeResource, SparkResource


class UndoPlanConfig(dg.Config):
    """The table, the interval, and the rows and columns."""

    table: str = Field(description="The table of the lake, as keyspace.table.")
    first: str = Field(description="The time before the damage, in ISO 8601, or microseconds since 1970.")
    last: str = Field(description="The time of the last damaging write.")
    where: str | None = Field(
        default=None, description="A condition in SQL: only rows that meet it, as they were or as they are."
    )
    columns: list[str] | None = Field(default=None, description="Only these columns.")


class UndoConfig(dg.Config):
    """The table, the plan and the rate."""

    table: str = Field(description="The table of the lake, as keyspace.table.")
    plan: str = Field(description="The id of a plan, from a run of the job `plan_undo`.")
    rows_per_second: int = Field(default=1000, description="The most rows to write per second.")


def undo_jobs() -> list[dg.JobDefinition]:
    """Return the jobs. They have no schedules: each run needs its configuration."""

    @dg.op(description="Compares the table with what it would be without the interval, and writes the plan.")
    @retried
    def write_plan(
        context: dg.OpExecutionContext, config: UndoPlanConfig, spark: SparkResource, lake: LakeResource
    ) -> None:
        table = open_table(lake.settings, config.table)
        interval = Interval(parse_instant(config.first), parse_instant(config.last))
        plan = make_plan(table, interval, where=config.where, columns=config.columns, run=spark.run)
        shown = examples(table, plan)
        # A bar would begin another column.
        lines = [" | ".join(text.replace("|", "\\|") for text in row.values()) for row in shown]
        head = [" | ".join(shown[0]), " | ".join("---" for _ in shown[0])] if shown else []
        context.log_event(
            dg.AssetMaterialization(
                key_of(config.table, "undo_plan"),
                metadata={
                    "plan": plan.id,
                    **plan.counts,
                    "whole_rows": plan.whole_rows,
                    "folder": dg.MetadataValue.path(folder_of(table, plan.id).address),
                    "examples": dg.MetadataValue.md("\n".join([*head, *lines])),
                },
            )
        )

    @dg.op(description="Writes the cells of a plan to the database. A cell that was written after it is left alone.")
    @retried
    def write_cells(
        context: dg.OpExecutionContext, config: UndoConfig, lake: LakeResource, database: DatabaseResource
    ) -> None:
        table = open_table(lake.settings, config.table)
        plan = read_plan(table, config.plan)
        written = apply_plan(database.settings_with(lake), table, plan, config.rows_per_second)
        context.add_output_metadata({"rows": written, "plan": plan.id})

    return [
        step_job("plan_undo", "Plan to undo the writes of an interval to a table.", [write_plan]),
        step_job("apply_undo", "Apply a plan of the job `plan_undo`.", [write_cells]),
    ]

"""`writetime undo KS.TABLE`."""

import click

from writetime.cli.text_tables import print_table
from writetime.core import config
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError
from writetime.core.instants import parse_instant
from writetime.lake.table import LakeTable, open_table
from writetime.undo.applying import apply_plan
from writetime.undo.damage import ADDED, DELETED, KINDS, OVERWRITTEN, WRITTEN_SINCE, Interval
from writetime.undo.plan import UndoPlan, examples, folder_of, make_plan, read_plan

_TEXTS = {
    OVERWRITTEN: "overwritten: get their earlier values back",
    DELETED: "deleted: come back",
    ADDED: "added: are deleted",
    WRITTEN_SINCE: "written again since: are left alone",
}


@click.command()
@click.argument("table", metavar="KS.TABLE")
@click.option("--from", "first", metavar="T1", help="A time before the damage, such as 2026-11-24T09:00:00Z.")
@click.option("--to", "last", metavar="T2", help="The time of the last damaging write, or a later one.")
@click.option("--where", help="Only rows that meet this condition in SQL, as they were or as they are.")
@click.option("--columns", metavar="A,B", help="Only these columns.")
@click.option("--apply", "plan_id", metavar="PLAN", help="Write the cells of this plan to the database.")
@click.option("--rate", type=click.IntRange(1), default=1000, show_default=True, help="Most rows to write per second.")
def undo(
    *,
    table: str,
    first: str | None,
    last: str | None,
    where: str | None,
    columns: str | None,
    plan_id: str | None,
    rate: int,
) -> None:
    """Undo the writes and deletions after T1 and up to T2, except for cells that were written again since.

    With --from and --to, it makes a plan, and does not change the database. With --apply PLAN, it writes the cells of
    the plan. A cell that was written after the interval, or after the plan, is left alone. Run it again if it ends
    early.
    """
    lake = open_table(settings := config.load(), table)
    if plan_id is not None:
        if first or last or where or columns:
            raise WritetimeError("--apply takes a plan as it is: name no --from, --to, --where or --columns")
        plan = read_plan(lake, plan_id)
        written = apply_plan(settings, lake, plan, rate)
        inverse = plan.inverse
        click.echo(f"{table}: {pluralize(written, 'row')} written, and the plan {plan.id} is applied")
        click.echo(f"to take this back: writetime undo {table} --from {inverse.first} --to {inverse.last}", err=True)
        return
    if first is None or last is None:
        raise WritetimeError("name the interval with --from and --to, or a plan with --apply")
    interval = Interval(parse_instant(first), parse_instant(last))
    chosen = None if columns is None else [name.strip() for name in columns.split(",")]
    _show(lake, make_plan(lake, interval, where=where, columns=chosen))


def _show(table: LakeTable, plan: UndoPlan) -> None:
    for kind in KINDS:
        click.echo(f"{plan.counts[kind]:>10} {_TEXTS[kind]}")
    if plan.whole_rows:
        click.echo(f"of those that were added, {plan.whole_rows} are whole rows")
    if not plan.files:
        return
    if shown := examples(table, plan):
        print_table(list(shown[0]), [list(cell.values()) for cell in shown])
    click.echo(f"all cells: {folder_of(table, plan.id).address}/*.parquet")
    if plan.cells:
        click.echo(f"to apply: writetime undo {plan.table} --apply {plan.id}")

"""Compare the fold of partial updates with DuckDB, Polars and Spark SQL, and print one table.

python -m bench.merge [--updates 10000000] [--per-key 3 --per-key 30] [--columns 1] [--passes 2]
"""

import tempfile
from pathlib import Path

import click

from bench.merge import data, ways

OURS = "Writetime, fold"
# The least multiple of the fold's CPU that peers must use.
TARGETS = {"DuckDB, arg_max": 0.5, "Polars, group_by": 0.5, "Spark SQL, max(struct)": 4}


@click.command()
@click.option("--updates", default=10_000_000, show_default=True, help="Partial updates.")
@click.option("--per-key", default=(3, 30), show_default=True, multiple=True, help="Updates of each key, on average.")
@click.option("--columns", default=1, show_default=True, help="Columns, of five, that each update writes.")
@click.option("--passes", default=2, show_default=True, help="Passes of each way; the best one counts.")
def main(updates: int, per_key: tuple[int, ...], columns: int, passes: int) -> None:
    """Find the latest cells of the same files in all ways, and check that the results are equal."""
    spark = ways.session()
    known = {
        OURS: ways.Alone("fold"),
        "DuckDB, arg_max": ways.Alone("duckdb"),
        "Polars, group_by": ways.Alone("polars"),
        "Writetime, fold in Spark tasks": ways.InSpark(spark, ways.fold_in_spark),
        "Spark SQL, max(struct)": ways.InSpark(spark, ways.spark_sql),
    }
    try:
        with tempfile.TemporaryDirectory() as name:
            lake = Path(name) / "warm-up"
            data.write(lake, data.WARM_UP, 3, columns)
            for way in known.values():
                if isinstance(way, ways.InSpark):
                    ways.measure(way, lake, passes=1)
            for number in per_key:
                lake = Path(name) / str(number)
                size = data.write(lake, updates, number, columns)
                print(f"{updates:,} updates of {columns} columns, {number} per key: {size >> 20:,} MiB of changes")
                print(f"  {'':32}{'CPU s':>8}{'wall s':>8}{'peak MiB':>10}{'times':>8}{'target':>8}")
                results: dict[str, ways.Result] = {}
                for title, way in known.items():
                    results[title] = result = ways.measure(way, lake, passes)
                    ours = results[OURS]
                    if result.answer != ours.answer:
                        raise RuntimeError(f"{title} found {result.answer}, and {OURS} {ours.answer}")
                    memory = f"{result.memory >> 20:,}" if result.memory else ""
                    print(
                        f"  {title:32}{result.cpu:>8.1f}{result.wall:>8.1f}{memory:>10}{result.cpu / ours.cpu:>8.2f}"
                        f"{TARGETS.get(title, ''):>8}",
                        flush=True,
                    )
    finally:
        spark.stop()


if __name__ == "__main__":
    main()

"""`writetime view`, `maintain` and `rebuild`, and the printing of values."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from tests.support.made import add, batch, new_table, settings_at, write
from tests.support.settings import write_settings
from writetime.cli.main import main
from writetime.cli.storage import write_changes
from writetime.cli.text_tables import print_table
from writetime.cli.view import filtered
from writetime.core.printing import json_line
from writetime.delta.parquet import PARTITION
from writetime.lake.table import LakeTable
from writetime.schema.cql import parse_table

pytestmark = pytest.mark.slow


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LakeTable:
    write_settings(settings_at(tmp_path), tmp_path / "writetime.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    table = new_table(tmp_path)
    for number in range(6):
        add(table, [write(i, number % 3, 5_000_000 * number, v=f"v{number}") for i in range(4)], number)
    return table


def run(*arguments: str) -> Result:
    return CliRunner(catch_exceptions=False).invoke(main, list(arguments))


def test_view(table: LakeTable) -> None:
    lines = run("view", "shop.items", "--format", "jsonl", "--where", "id = 2 AND v LIKE 'v%'").stdout.splitlines()
    assert [orjson.loads(line) for line in lines] == [{"id": 2, "n": n, "v": f"v{n + 3}", "w": None} for n in range(3)]
    before = run("view", "shop.items", "--format", "jsonl", "--as-of", "1970-01-01T00:00:11Z").stdout.splitlines()
    assert sorted({orjson.loads(line)["v"] for line in before}) == ["v0", "v1", "v2"]
    head, *rows = run("view", "shop.items").stdout.splitlines()
    assert head.split() == ["id", "n", "v", "w"]
    assert len(rows) == 12
    wrong = run("view", "shop.items", "--where", "nothing = 1")
    assert wrong.exit_code == 1
    assert "--where 'nothing = 1'" in wrong.output
    assert "has no changes" in run("view", "shop.none").output


def test_a_look_up_imports_neither_pandas_nor_scipy(table: LakeTable) -> None:
    assert table.name == "shop.items"
    command = ["-X", "importtime", "-m", "writetime", "view", table.name, "--where", "id = 2 AND n = 1"]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1].split() == ["2", "1", "v4"]
    # An attempt is listed, too, so these are modules within the packages.
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert imported & {"numba.core.dispatcher", "pandas.core.api", "scipy._lib._util"} == {"numba.core.dispatcher"}


def test_maintain_and_rebuild(table: LakeTable) -> None:
    wanted = run("view", "shop.items", "--format", "jsonl").stdout
    assert f" {len(table.changes.load().files)} files folded" in run("maintain", "shop.items").stdout
    assert " 0 files folded" in run("maintain", "shop.items").stdout
    assert run("view", "shop.items", "--format", "jsonl").stdout == wanted
    levels = {file.path for file in table.state.load().files}
    assert "12 rows" in run("rebuild", "shop.items").stdout
    assert not levels & {file.path for file in table.state.load().files}
    assert run("view", "shop.items", "--format", "jsonl").stdout == wanted
    assert table.view.read([PARTITION]).num_rows == 12


def test_rows_are_lines_and_values_are_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name", "n"], [["[red]x", ":smile:"], ["東", "y" * 300], ["a\nb\x1b[2J", ""]])
    assert capsys.readouterr().out.splitlines() == [
        "name         n",
        "[red]x       :smile:",
        f"東           {'y' * 300}",
        r"a\nb\x1b[2J",
    ]


def test_values_as_json() -> None:
    rows = pa.table(
        {
            "day": pa.array([-(1 << 31)], pa.int32()).cast(pa.date32()),
            "at": pa.array([9_223_372_036_854_775_000], pa.int64()).cast(pa.timestamp("us", "UTC")),
            "blob": [b"\x00\xff"],
            "texts": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())),
            "days": pa.array([[(0, [1])]], pa.map_(pa.date32(), pa.list_(pa.int8()))),
            "udt": [{"a": None, "b": 1.5}],
            "nothing": pa.nulls(1, pa.int32()),
        }
    )
    found: dict[str, Any] = orjson.loads(json_line({name: rows[name][0] for name in rows.column_names}))
    assert found == {
        "day": "-5877641-06-23",
        "at": "294247-01-10T04:00:54.775000Z",
        "blob": "0x00ff",
        "texts": {"a": 1},
        "days": [["1970-01-01", [1]]],
        "udt": {"a": None, "b": 1.5},
        "nothing": None,
    }


def test_numbers_that_are_not_finite_are_texts() -> None:
    """Nested, and as keys, of any width; finite values are still numbers."""
    odd = [float("nan"), float("inf"), float("-inf"), -0.0, 5e-324, None]
    doubles = pa.array(odd, pa.float64())
    floats = doubles.cast(pa.float32())
    rows = {
        "d": doubles,
        "f": floats,
        "l": pa.ListArray.from_arrays([0, *[6] * 6], doubles),
        "m": pa.MapArray.from_arrays([0, 1, 2, 3, 4, 5, 5], doubles.slice(0, 5), floats.slice(0, 5)),
        "t": pa.StructArray.from_arrays([floats, pa.nulls(6, pa.int32())], ["_1", "_2"]),
    }
    found = [orjson.loads(json_line({n: a[i] for n, a in rows.items()})) for i in range(6)]
    texts = ["NaN", "Infinity", "-Infinity"]
    assert [row["d"] for row in found] == [*texts, 0, 5e-324, None]
    assert [row["f"] for row in found] == [row["t"]["_1"] for row in found] == [*texts, 0, 0, None]
    assert str(found[3]["d"]) == "-0.0"
    assert found[0]["l"] == [*texts, 0, 5e-324, None]
    assert [row["m"] for row in found][:3] == [[[text, text]] for text in texts]
    assert found[0]["t"] == {"_1": "NaN", "_2": None}
    assert orjson.loads(json_line({"t": rows["t"][0], "n": pa.scalar(None)}, nulls=False)) == {"t": {"_1": "NaN"}}


def test_changes_as_json(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """Dates beyond Python's, and numbers that are not finite."""
    schema = parse_table("CREATE TABLE shop.items (id int, n int, v date, w set<double>, PRIMARY KEY (id, n))")
    row = write(1, 1, 5)
    row["w"] = {"elements": [{"path": float("nan"), "write_time": 5, "tombstone": False}]}
    changes = batch([row], schema)
    day = pa.array([(1 << 31) - 1], pa.int32()).cast(pa.date32())
    cell = changes.schema.field("v").type
    parts = [day if f.name == "value" else pa.nulls(1, f.type) for f in cell]
    index = changes.schema.get_field_index("v")
    changes = changes.set_column(index, changes.schema.field("v"), pa.StructArray.from_arrays(parts, fields=list(cell)))
    write_changes(iter([(schema, changes)]), [schema], None, None, stats=False)
    found = orjson.loads(capsysbinary.readouterr().out)
    assert found["v"] == {"value": "5881580-07-11"}
    assert found["w"] == {"elements": [{"path": "NaN", "write_time": 5, "tombstone": False}]}
    assert "marker" in found
    assert "tombstone" not in found


def test_a_condition_leaves_values_unchanged() -> None:
    days = pa.array([-(1 << 31), (1 << 31) - 1, None], pa.int32()).cast(pa.date32())
    rows = pa.table({"id": [1, 2, 3], "day": days, "small": pa.array([1, 2, 3], pa.int8())})
    assert filtered(rows, "id >= 2").equals(rows.slice(1))
    assert filtered(rows.slice(0, 0), "id >= 2").num_rows == 0

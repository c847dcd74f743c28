"""Data from simple tables, compared with `sstabledump` of the same files."""

from typing import Any

from tests.storage import handmade
from tests.storage.written import Written, handmade_changes
from tests.support import oracle


def dumped(written: Written, table: str) -> list[dict[str, Any]]:
    _, (location,) = written.handmade(table)
    return oracle.dumped(location.path("Data.db"))


def deletion(info: dict[str, str]) -> dict[str, int]:
    return {"write_time": int(info["marked_deleted"]), "deletion_time": int(info["local_delete_time"])}


def test_wide_partitions_match_sstabledump(written: Written) -> None:
    wanted: list[Any] = []
    for partition in dumped(written, "wide"):
        key = int(partition["partition"]["key"][0])
        wanted.append((key, "partition_tombstone", deletion(partition["partition"]["deletion_info"])))
        for row in partition["rows"]:
            match row["type"]:
                case "static_block":
                    (cell,) = row["cells"]
                    wanted.append((key, "static", cell["value"], int(cell["tstamp"])))
                case "row":
                    (cell,) = row["cells"]
                    wanted.append((key, *row["clustering"], cell["value"], int(row["liveness_info"]["tstamp"])))
                case _:
                    if "end" in row:
                        wanted.append((key, "range_tombstone", deletion(row["end"]["deletion_info"])))
    found: list[Any] = []
    for change in handmade_changes(written, "wide"):
        match change["kind"]:
            case "row":
                cell = change["v"]
                assert cell["write_time"] == change["marker"]["write_time"]
                found.append((change["k"], change["c"], change["d"], cell["value"], cell["write_time"]))
            case "static":
                found.append((change["k"], "static", change["s"]["value"], change["s"]["write_time"]))
            case kind:
                found.append((change["k"], kind, change["tombstone"]))
    assert found == wanted


def test_times_match_sstabledump(written: Written) -> None:
    """Of a cell that has the row's times it prints none; and no value that is comparable of every type."""
    found = {change["k"]: change for change in handmade_changes(written, "plain")}
    for partition in dumped(written, "plain"):
        change = found.pop(int(partition["partition"]["key"][0]))
        (row,) = partition["rows"]
        liveness = row["liveness_info"]
        times = int(liveness["tstamp"]), liveness.get("ttl"), int(liveness["expires_at"]) if "ttl" in liveness else None
        assert tuple(change["marker"].values()) == times
        wanted: dict[str, list[Any]] = {}
        for cell in row["cells"]:
            entry = deletion(cell["deletion_info"]) if "deletion_info" in cell else times
            wanted.setdefault(cell["name"], []).append(entry)
        cells: dict[str, list[Any]] = {}
        for name in handmade.plain_columns():
            column = change[name]
            if column and name in handmade.COMPLEX:
                cells[name] = [column["tombstone"]]
            for cell in (column["elements"] if name in handmade.COMPLEX else [column]) if column else []:
                cells.setdefault(name, []).append((cell["write_time"], cell["ttl"], cell["deletion_time"]))
        assert cells == wanted
    assert not found

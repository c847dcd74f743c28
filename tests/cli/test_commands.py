"""The errors of the command line."""

from pathlib import Path

import pytest
from cassandra import InvalidRequest, OperationTimedOut, Unauthorized, Unavailable
from cassandra.cluster import NoHostAvailable
from cassandra.protocol import OverloadedErrorMessage
from click.testing import CliRunner

from writetime.cli.main import main
from writetime.ingest import event_sink

FAULTS = [
    OperationTimedOut(),
    Unavailable("not enough replicas"),
    NoHostAvailable("no host", {"127.0.0.1": OperationTimedOut()}),
    OverloadedErrorMessage(0x1001, "shutting down", []),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_a_database_that_does_not_answer_is_one_line(fault: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object) -> None:
        raise fault

    monkeypatch.setattr(event_sink, "run", run)
    answer = CliRunner().invoke(main, ["sink"])
    assert answer.exit_code == 1
    assert answer.output.startswith("Error: the database at 127.0.0.1 did not answer (")
    assert len(answer.output.splitlines()) == 1


def test_a_right_that_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object) -> None:
        raise Unauthorized("User wt has no CREATE permission on <all keyspaces>")

    monkeypatch.setattr(event_sink, "run", run)
    answer = CliRunner().invoke(main, ["sink"])
    assert answer.exit_code == 1
    [line] = answer.output.splitlines()
    assert line.startswith("Error: User wt has no CREATE permission on <all keyspaces>: the role")


@pytest.mark.parametrize(
    "command", [["commitlog", "."], ["sstable", "."], ["backfill", "shop.orders", "."]], ids=lambda c: c[0]
)
@pytest.mark.parametrize("schema", ["missing.cql", "."])
def test_a_schema_that_is_not_a_file_is_named(command: list[str], schema: str) -> None:
    answer = CliRunner().invoke(main, [*command, "--schema", schema])
    assert answer.exit_code == 2
    assert f"Invalid value for '--schema': File '{schema}'" in answer.output


def test_an_error_of_a_path_is_one_line(tmp_path: Path) -> None:
    schema = tmp_path / "schema.cql"
    schema.write_text("CREATE TABLE a.b (id int PRIMARY KEY) WITH ID = 0e0cbf80-7a4d-11f1-8a5c-000000000001")
    output = tmp_path / "none" / "changes.parquet"
    answer = CliRunner().invoke(main, ["commitlog", str(tmp_path), "--schema", str(schema), "--output", str(output)])
    assert answer.exit_code == 1
    [line] = answer.output.splitlines()
    assert line.startswith("Error: ")
    assert str(output) in line


def test_a_wrong_statement_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object) -> None:
        raise InvalidRequest("no such column")

    monkeypatch.setattr(event_sink, "run", run)
    assert isinstance(CliRunner().invoke(main, ["sink"]).exception, InvalidRequest)

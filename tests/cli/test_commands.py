"""How the shell command shows errors."""

import pytest
from cassandra import InvalidRequest, OperationTimedOut, Unavailable
from cassandra.cluster import NoHostAvailable
from cassandra.protocol import OverloadedErrorMessage
from click.testing import CliRunner

from writetime.cli.main import main
from writetime.ingest import sink

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

    monkeypatch.setattr(sink, "run", run)
    answer = CliRunner().invoke(main, ["sink"])
    assert answer.exit_code == 1
    assert answer.output.startswith("Error: the database did not answer (")
    assert len(answer.output.splitlines()) == 1


def test_a_wrong_statement_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object) -> None:
        raise InvalidRequest("no such column")

    monkeypatch.setattr(sink, "run", run)
    assert isinstance(CliRunner().invoke(main, ["sink"]).exception, InvalidRequest)

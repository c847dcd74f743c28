"""A lake in an object store that refuses access, such as without credentials. No server is needed."""

from pathlib import Path

import deltalake
import pytest
from click.testing import CliRunner

from writetime.cli.main import main
from writetime.core.config import load
from writetime.delta.storage import Storage
from writetime.lake.followed_tables import followed_tables
from writetime.servers.process import free_port

# As delta-rs 1.6 says it where AWS_ACCESS_KEY_ID is missing.
_REFUSED = (
    "Operation not supported\n          \x1b[31m\u21b3\x1b[0m an error occurred while loading credentials\n"
    "           \x1b[31m\u21b3\x1b[0m failed to load IMDS session token\n"
)


@pytest.fixture(autouse=True)
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "writetime.toml").write_text('[tables.shop.orders]\n[lake]\npath = "s3a://company/lake"\n')
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    # No database and no broker answer.
    monkeypatch.setenv("WRITETIME_CASSANDRA__PORT", str(free_port()))
    monkeypatch.setenv("WRITETIME_KAFKA__BOOTSTRAP_SERVERS", f"127.0.0.1:{free_port()}")

    def refuse(*_: object) -> bool:
        raise OSError(_REFUSED)

    monkeypatch.setattr(Storage, "filesystem", refuse)
    monkeypatch.setattr(deltalake.DeltaTable, "is_deltatable", refuse)


@pytest.mark.parametrize("command", ["view", "maintain", "verify", "row-events", "publish", "rebuild"])
def test_a_command_names_the_reason_in_one_line(command: str) -> None:
    answer = CliRunner(catch_exceptions=False).invoke(main, [command, "shop.orders"])
    assert answer.exit_code == 1
    assert answer.stderr == (
        "Error: s3a://company/lake/shop.orders/changes cannot be opened with lake.storage_options: Operation not "
        "supported: an error occurred while loading credentials: failed to load IMDS session token\n"
    )


def test_no_entry_is_refused_because_of_the_store() -> None:
    """Its schema is then unknown, and runs report the fault."""
    found, refused_entries = followed_tables(load())
    assert [(table.name, table.schema) for table in found] == [("shop.orders", None)]
    assert refused_entries == []

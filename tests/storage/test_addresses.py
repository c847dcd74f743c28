"""Addresses of files in a folder: a task has only the address, and opens the same file."""

import logging
import traceback
from pathlib import Path
from typing import Any

import fsspec
import pytest
from click.testing import CliRunner
from pyarrow import fs

from writetime.cli.main import main
from writetime.core.errors import Transient, WritetimeError, reason_of, without_passwords
from writetime.core.logs import JsonLines, TextLines
from writetime.storage.folders import Folder
from writetime.storage.locations import without_secrets

ODD_NAMES = ("my backup", "100%", "a%20b", "why?", "no#1", "a+b", "Größe", "2026-05-01T12:00:00")
# None of them is asked for anything.
PLACES = (
    "s3://bucket/of/nodes?region=eu-central-1&endpoint_override=localhost:9",
    "s3://bucket?region=eu-central-1",
    "gs://anonymous@bucket/of",
    "abfss://container@account.dfs.core.windows.net/of/nodes",
    "abfss://account.blob.core.windows.net/container/of",
    "memory://of/nodes",
    "file:///of/nodes/",
    "file:///my%20backups",
)


@pytest.mark.parametrize("address", PLACES)
@pytest.mark.parametrize("name", ODD_NAMES)
def test_the_address_of_a_path_leads_to_it(address: str, name: str) -> None:
    place = Folder.at(address)
    for folder in (place, place.below(name), place.below("node", name), place.below(name).below("x.db")):
        again = Folder.at(folder.address)
        assert again.path == folder.path
        assert type(again.filesystem) is type(place.filesystem)
        assert Folder.at(again.address_of(place.path)).path == place.path


def test_a_folder_with_an_odd_name(tmp_path: Path) -> None:
    for name in ODD_NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.db").write_text(name)
    for address in (str(tmp_path), tmp_path.as_uri()):
        place = Folder.at(address)
        for name in place.folders():
            assert Folder.at(place.below(name).address).read("x.db").decode() == name


def test_the_host_of_an_address_stays() -> None:
    """HDFS needs libraries of Java, so its file system is not opened here."""
    place = Folder("hdfs://namenode:8020/backups", fs.LocalFileSystem(), "/backups")
    assert place.below("node-1").address == "hdfs://namenode:8020/backups/node-1"


@pytest.mark.parametrize(
    ("address", "kept"),
    [
        ("s3://key:secret@bucket/of/x.db?region=eu-central-1", "s3://key@bucket/of/x.db"),
        (
            "abfss://container:key@account.dfs.core.windows.net/x.db",
            "abfss://container@account.dfs.core.windows.net/x.db",
        ),
        ("abfss://container@account/x.db?sas_token=secret", "abfss://container@account/x.db"),
        ("sftp://user:a@b@host:22/x.db", "sftp://user@host:22/x.db"),
        ("s3://key:a/b@bucket/x.db", "s3://key@bucket/x.db"),
        ("hdfs://namenode:8020/x.db", "hdfs://namenode:8020/x.db"),
        ("file:///my%20backups/x.db", "file:///my%20backups/x.db"),
        ("/my backups/a:b@c?d.db", "/my backups/a:b@c?d.db"),
    ],
)
def test_secrets_of_an_address_are_not_kept(address: str, kept: str) -> None:
    assert without_secrets(address) == kept


@pytest.mark.parametrize("address", ["sftp://user:secret@127.0.0.1:1/x", "unknown://user:secret@host/x"])
def test_a_place_that_cannot_be_opened_shows_no_password(address: str) -> None:
    """Dagster stores the context of an error, too."""
    with pytest.raises((ImportError, ValueError)) as refused:
        Folder.at(address)
    assert "secret@" not in "".join(traceback.format_exception(refused.value))


class _Web(fsspec.AbstractFileSystem):
    """Paths in it are whole addresses, as in fsspec's own file system of HTTP. It answers with an error."""

    protocol = "web"
    fault: type[OSError] = FileNotFoundError

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path

    def info(self, path: str, **_: Any) -> Any:
        raise self.fault(2, "cannot be read", path)

    def ls(self, path: str, detail: bool = True, **_: Any) -> Any:
        del detail
        raise self.fault(2, "cannot be read", path)


@pytest.mark.parametrize("fault", [FileNotFoundError, PermissionError, ConnectionResetError])
@pytest.mark.parametrize("command", [["sstable"], ["commitlog", "--schema", "items.cql"], ["backfill", "shop.items"]])
def test_a_command_shows_no_password(
    command: list[str],
    fault: type[OSError],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of an address whose file system names it in each error."""
    monkeypatch.chdir(tmp_path)
    schema = "CREATE TABLE shop.items (id int PRIMARY KEY) WITH ID = 5a1c395e-b41f-11e5-9f22-ba0be0483c18"
    Path("items.cql").write_text(schema)
    fsspec.register_implementation("web", _Web, clobber=True)
    monkeypatch.setattr(_Web, "fault", fault)
    found = CliRunner().invoke(main, [*command, "web://user:hidden@host/of/nodes?sig=hidden"])
    assert found.exit_code
    assert "web://user" in found.output or "web://user" in str(found.exception)
    assert "hidden" not in found.output + caplog.text + reason_of(found.exception or OSError())


def test_no_error_and_no_line_of_a_log_has_a_password() -> None:
    for text, shown in (
        ("GET https://user:a@b@host:80/x?sig=b&part=2: 403", "GET https://user@host:80/x?sig=***&part=2: 403"),
        ('"s3://key:a@bucket" and s3://b/x?secret_key=b', '"s3://key@bucket" and s3://b/x?secret_key=***'),
        ("s3://key:a/b+c@bucket/d@e: 403", "s3://key@bucket/d@e: 403"),
        ("web://h/x?sas=b&pwd=c&part=2", "web://h/x?sas=***&pwd=***&part=2"),
        ("http://[::1]:80/a@b and http://h:80, c@d", "http://[::1]:80/a@b and http://h:80, c@d"),
        ("http://host:8081/subjects/a@b?deleted=true", "http://host:8081/subjects/a@b?deleted=true"),
        ("the key of a:b@c", "the key of a:b@c"),
    ):
        assert without_passwords(text) == shown
        assert str(WritetimeError(text)) == str(Transient(text)) == shown
        assert reason_of(OSError(text)) == f"OSError: {shown}"
        for lines in (TextLines(), JsonLines()):
            try:
                raise OSError(text)
            except OSError as e:
                record = logging.LogRecord("x", logging.ERROR, "x.py", 1, "%s", (text,), (OSError, e, None))
            line = lines.format(record).replace("\\", "")
            assert line.count(shown) == 2
            assert shown == text or text not in line

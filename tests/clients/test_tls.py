"""The files of certificates and keys that the settings name."""

from pathlib import Path

import pytest

from writetime.clients.tls import files_of
from writetime.core.config import Ingest
from writetime.core.server_settings import Cassandra, SchemaRegistry, SettingsSection, ZooKeeper

AUTHORITY, CERTIFICATE, KEY = "tls_ca_file", "tls_certificate_file", "tls_key_file"


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (Cassandra, {AUTHORITY, CERTIFICATE, KEY}),
        (ZooKeeper, {AUTHORITY, CERTIFICATE, KEY}),
        (SchemaRegistry, {AUTHORITY}),
        (Ingest, {CERTIFICATE, KEY}),
    ],
)
def test_the_files_of_each_section(kind: type[SettingsSection], names: set[str]) -> None:
    assert files_of("s", kind()) == {}
    files = {name: Path("/certificates") / name for name in names}
    assert files_of("s", kind.model_validate(files)) == {f"s.{name}": file for name, file in files.items()}

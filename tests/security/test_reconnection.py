"""A session goes on once logins and certificates are accepted again, without a new start of its program."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cassandra.cluster import Session

from tests.security.conftest import PERMISSIONS, SECRETS, USER, Secured
from tests.security.logins import change_password, end_connections, restore_password
from tests.security.servers import Identity, SecuredCassandra, Stores, grant, issue
from writetime.clients import database
from writetime.clients.database import DRIVER_FAULTS
from writetime.core.config import Settings
from writetime.core.server_settings import Cassandra
from writetime.core.waiting import wait_until
from writetime.runtime.nodetool import nodetool

pytestmark = pytest.mark.long

AGAIN_SECONDS = 60.0


def answers(session: Session) -> bool:
    try:
        return bool(session.execute("SELECT release_version FROM system.local").one())
    except DRIVER_FAULTS:
        return False


@pytest.fixture
def node(secured: Secured) -> SecuredCassandra:
    found = secured.servers[0]
    assert isinstance(found, SecuredCassandra)
    return found


@pytest.fixture
def own(secured: Secured, tmp_path: Path) -> Settings:
    """Settings of our user with its own copies of the files."""
    cassandra = secured.settings.cassandra
    files = {}
    for name in ("tls_ca_file", "tls_certificate_file", "tls_key_file"):
        files[name] = shutil.copy(getattr(cassandra, name), tmp_path / name)
    changed = Cassandra.model_validate(cassandra.model_dump() | files | {"request_timeout_seconds": 5.0})
    return secured.settings.model_copy(update={"cassandra": changed})


def forbid(admin: Session) -> None:
    admin.execute(f"ALTER ROLE {USER} WITH LOGIN = false")


def allow(admin: Session) -> None:
    admin.execute(f"ALTER ROLE {USER} WITH LOGIN = true")


def drop(admin: Session) -> None:
    admin.execute(f"DROP ROLE {USER}")


def make_again(admin: Session) -> None:
    grant(admin, USER, SECRETS["cassandra"], [*PERMISSIONS, "ALL ON KEYSPACE writetime"])


LOGINS = {"password": (change_password, restore_password), "login": (forbid, allow), "role": (drop, make_again)}


@pytest.mark.parametrize("refusal", LOGINS)
def test_a_session_goes_on_after_refused_logins(
    secured: Secured, own: Settings, node: SecuredCassandra, refusal: str
) -> None:
    refuse, accept = LOGINS[refusal]
    with database.connect(own) as session:
        with database.connect(secured.admin) as admin:
            refuse(admin)
            end_connections(node)
        assert not wait_until(lambda: answers(session), 5.0)
        with database.connect(secured.admin) as admin:
            accept(admin)
        assert wait_until(lambda: answers(session), AGAIN_SECONDS)


@contextmanager
def certificate_of(node: SecuredCassandra, authority: Identity, trusts: Identity) -> Iterator[None]:
    """Let the node have a certificate of another authority for a while."""
    stores = Stores(node.folder, authority)
    # Clients keep their certificates.
    Stores(node.folder / "..", trusts)
    shutil.copy(node.folder / ".." / "trusted.p12", stores.trusted)
    nodetool(node.jmx_port, "reloadssl")
    end_connections(node)
    try:
        yield
    finally:
        Stores(node.folder, trusts)
        nodetool(node.jmx_port, "reloadssl")
        end_connections(node)


def test_a_session_goes_on_after_a_certificate_of_another_authority(
    secured: Secured, own: Settings, node: SecuredCassandra
) -> None:
    with database.connect(own) as session:
        with certificate_of(node, issue("other"), secured.authority):
            assert not wait_until(lambda: answers(session), 5.0)
        assert wait_until(lambda: answers(session), AGAIN_SECONDS)


def test_a_session_goes_on_with_a_new_authority(
    secured: Secured, own: Settings, node: SecuredCassandra, tmp_path: Path
) -> None:
    other = issue("other")
    ca_file = own.cassandra.tls_ca_file
    assert ca_file is not None
    old = ca_file.read_bytes()
    with database.connect(own) as session:
        with certificate_of(node, other, secured.authority):
            assert not wait_until(lambda: answers(session), 5.0)
            for content in (b"", b"no certificate", other.pem()[0]):
                ca_file.write_bytes(content)
            assert wait_until(lambda: answers(session), AGAIN_SECONDS)
        ca_file.write_bytes(old)
        assert wait_until(lambda: answers(session), AGAIN_SECONDS)


def test_a_session_goes_on_with_a_new_certificate_of_its_own(
    secured: Secured, own: Settings, node: SecuredCassandra
) -> None:
    certificate, key = own.cassandra.tls_certificate_file, own.cassandra.tls_key_file
    assert certificate is not None
    assert key is not None
    with database.connect(own) as session:
        for authority, is_accepted in ((issue("other"), False), (secured.authority, True)):
            for file, content in zip((certificate, key), issue("client", authority).pem(), strict=True):
                file.write_bytes(content)
            end_connections(node)
            assert wait_until(lambda: answers(session), AGAIN_SECONDS if is_accepted else 5.0) is is_accepted

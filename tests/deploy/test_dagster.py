"""Dagster's three containers as processes with a Postgres, by the commands, files and probes of the compose file."""

import shutil
from pathlib import Path

import pytest
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteRepositoryOrigin
from dagster._grpc.client import DagsterGrpcClient
from dagster._grpc.types import ListRepositoriesResponse
from dagster._serdes import deserialize_value

from tests.deploy.files import CONTAINERS, compose
from tests.deploy.processes import Container, environment, running
from tests.support import read_only
from tests.support.postgres import Postgres
from writetime.servers.process import free_port

NAMES = ("dagster-code", "dagster-daemon", "dagster-webserver")


def definitions(port: int) -> str:
    """The definitions of the code location, as the web server reads them."""
    client = DagsterGrpcClient(host="127.0.0.1", port=port)
    listed = deserialize_value(client.list_repositories(), ListRepositoriesResponse)
    [name] = [symbol.repository_name for symbol in listed.repository_symbols]
    location = GrpcServerCodeLocationOrigin(host="127.0.0.1", port=port)
    return client.external_repository(RemoteRepositoryOrigin(location, name), defer_snapshots=True)


@pytest.mark.skipif(not read_only.is_possible(), reason="needs Landlock, of Linux 6.2")
@pytest.mark.long_only("three processes load Dagster")
def test_dagster_starts_and_ends_as_in_its_containers(postgres: Postgres, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "tmp").mkdir(parents=True)
    (home / "dagster").mkdir()
    shutil.copy(CONTAINERS / compose()["configs"]["instance"]["file"], home / "dagster/dagster.yaml")
    code, web = str(free_port()), str(free_port())
    driver = postgres.url.replace("postgresql", "postgresql+psycopg2")
    workspace = (CONTAINERS / "workspace.yaml").read_text()
    (home / "workspace.yaml").write_text(workspace.replace("dagster-code", "127.0.0.1").replace("4000", code))
    settings = home / "writetime.toml"
    shutil.copy(CONTAINERS / "writetime.toml", settings)
    own = environment(
        home,
        DAGSTER_HOME=str(home / "dagster"),
        WRITETIME_CONFIG=str(settings),
        WRITETIME_LAKE__PATH=str(home / "lake"),
    )
    replaced = {"4000": code, "3000": web, "/etc/writetime/workspace.yaml": str(home / "workspace.yaml")}
    replaced |= {"postgresql+psycopg2://dagster:${POSTGRES_PASSWORD:?}@postgres:5432/dagster": driver}
    with running((name, Container(name, home, own, replaced)) for name in NAMES) as found:
        with settings.open("a") as file:
            file.write("[tables.shop.orders]\n")
        assert "shop__orders__orders_view" not in definitions(int(code))
        DagsterGrpcClient(host="127.0.0.1", port=int(code)).reload_code(timeout=240)
        assert "shop__orders__orders_view" in definitions(int(code))
        # Dagster chooses their exit status.
        assert {name for name, container in found.items() if container.stop() < 0} == set()
    for container in found.values():
        container.assert_no_fault()

"""The requests to a REST catalog with a login, a warehouse and a prefix, as Polaris has them. No server is needed.

Oracle: the REST protocol (open-api/rest-catalog-open-api.yaml), by which the catalog of these tests answers.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support.iceberg_tables import AS_OF, MirroredTable
from writetime.core.errors import Transient
from writetime.delta.bucketed_table import BucketedTable
from writetime.iceberg import catalogs
from writetime.iceberg.catalogs import CatalogEntry
from writetime.iceberg.publication import IcebergTable

CONFIG, TOKENS = "GET /v1/config", "POST /v1/oauth/tokens"
NAMESPACE, TABLE = "GET /v1/one/namespaces/shop", "GET /v1/one/namespaces/shop/tables/items"
CREATE, COMMIT = "POST /v1/one/namespaces", "POST /v1/one/namespaces/shop/tables/items"


class PrefixedCatalog(ThreadingHTTPServer):
    """A catalog whose tables are below a prefix, and for a login only. It answers some requests never."""

    daemon_threads = True

    def __init__(self, *silent: str, namespaces: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.silent, self.namespaces = silent, namespaces
        self.requests: list[str] = []
        self.closed = threading.Event()

    @property
    def properties(self) -> dict[str, str]:
        """Those by which the tests reach it."""
        login = {"credential": "writer:secret", "scope": "PRINCIPAL_ROLE:ALL", "warehouse": "one"}
        return {"type": "rest", "uri": f"http://127.0.0.1:{self.server_port}", **login}

    def answer(self, request: str, query: dict[str, list[str]], body: str, login: str | None) -> tuple[int, Any]:
        """Return the status and the body of an answer."""
        if request == TOKENS:
            wanted = {"grant_type": ["client_credentials"], "scope": ["PRINCIPAL_ROLE:ALL"]}
            sent = parse_qs(body)
            is_known = sent == {**wanted, "client_id": ["writer"], "client_secret": ["secret"]}
            return (200, {"access_token": "a token", "token_type": "bearer"}) if is_known else (401, {})
        if login != "Bearer a token":
            return 401, {"error": {"message": "no token", "type": "NotAuthorized", "code": 401}}
        if request == CONFIG and query == {"warehouse": ["one"]}:
            return 200, {"defaults": {}, "overrides": {"prefix": "one"}}
        if request == CREATE or (request == NAMESPACE and self.namespaces):
            return 200, {"namespace": ["shop"], "properties": {}}
        if request == COMMIT:
            sent = json.loads(body)
            assert sent["requirements"] == [{"type": "assert-create"}]
            return 200, {"metadata-location": "file:///0.metadata.json", "metadata": self.made(sent["updates"])}
        return 404, {"error": {"message": "it does not exist", "type": "NoSuchTableException", "code": 404}}

    @staticmethod
    def made(updates: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the metadata of a table that was made by some updates."""
        by_action = {each["action"]: each for each in updates}
        schema = {**by_action["add-schema"]["schema"], "schema-id": 0}
        snapshots = [each["snapshot"] for each in updates if each["action"] == "add-snapshot"]
        return {
            "format-version": by_action["upgrade-format-version"]["format-version"],
            "table-uuid": by_action["assign-uuid"]["uuid"],
            "location": by_action["set-location"]["location"],
            "last-sequence-number": snapshots[-1]["sequence-number"],
            "last-updated-ms": snapshots[-1]["timestamp-ms"],
            "last-column-id": 99,
            "schemas": [schema],
            "current-schema-id": 0,
            "partition-specs": [{**by_action["add-spec"]["spec"], "spec-id": 0}],
            "default-spec-id": 0,
            "last-partition-id": 1000,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
            "snapshots": snapshots,
            "current-snapshot-id": snapshots[-1]["snapshot-id"],
            "next-row-id": 1000,
        }


class _Handler(BaseHTTPRequestHandler):
    def _answer(self) -> None:
        catalog = cast(PrefixedCatalog, self.server)
        parts = urlsplit(self.path)
        request = f"{self.command} {parts.path}"
        catalog.requests.append(request)
        if request in catalog.silent:
            catalog.closed.wait()
            return
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        status, found = catalog.answer(request, parse_qs(parts.query), body, self.headers.get("Authorization"))
        data = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = _answer

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@contextmanager
def running(catalog: PrefixedCatalog) -> Iterator[PrefixedCatalog]:
    thread = threading.Thread(target=catalog.serve_forever)
    thread.start()
    try:
        yield catalog
    finally:
        catalog.closed.set()
        catalog.shutdown()
        catalog.server_close()
        thread.join()


def entered(folder: Path, catalog: PrefixedCatalog) -> IcebergTable:
    table = MirroredTable.at(folder)
    table.commit()
    iceberg = IcebergTable(BucketedTable(table.storage), AS_OF, CatalogEntry(catalog.properties, ("shop", "items")))
    iceberg.publish()
    return iceberg


@pytest.mark.parametrize("namespaces", [True, False])
def test_a_table_is_registered_with_a_login_below_a_prefix(tmp_path: Path, *, namespaces: bool) -> None:
    """A namespace that exists is not created: the login may have no right to do so."""
    with running(PrefixedCatalog(namespaces=namespaces)) as catalog:
        iceberg = entered(tmp_path, catalog)
        iceberg.register()
        assert iceberg.is_registered
    created = [] if namespaces else [CREATE]
    assert [each for each in catalog.requests if each not in (TOKENS, CONFIG)] == [TABLE, NAMESPACE, *created, COMMIT]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("silent", [TOKENS, CONFIG, TABLE, COMMIT])
def test_each_request_ends(tmp_path: Path, silent: str) -> None:
    with patch.object(catalogs, "REQUEST_SECONDS", 0.5), running(PrefixedCatalog(silent)) as catalog:
        iceberg = entered(tmp_path, catalog)
        with pytest.raises(Transient, match=r"the Iceberg catalog does not register shop\.items"):
            iceberg.register()
    assert catalog.requests[-1] == silent

"""The audit against a service with OSV's API; OSV itself may be unreachable."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tools import audit

QUERIES_PER_CALL = 100
KNOWN: dict[tuple[str, str], list[list[str]]] = {}


class Osv(BaseHTTPRequestHandler):
    """Answers in pages, in the order of the queries."""

    def do_POST(self) -> None:
        queries = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
        body = json.dumps({"results": [self._result(query) for query in queries]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _result(self, query: dict[str, Any]) -> dict[str, Any]:
        pages = KNOWN.get((query["package"]["ecosystem"], query["package"]["name"]), [])
        page = int(query.get("page_token", 0))
        if page >= len(pages):
            return {}
        more = {"next_page_token": str(page + 1)} if page + 1 < len(pages) else {}
        return {"vulns": [{"id": i, "modified": "2026-01-01T00:00:00Z"} for i in pages[page]], **more}

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def osv(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Osv)
    threading.Thread(target=server.serve_forever).start()
    monkeypatch.setenv("OSV_URL", f"http://127.0.0.1:{server.server_port}/v1/querybatch")
    KNOWN.clear()
    yield
    server.shutdown()
    server.server_close()


def test_all_pinned_packages_are_checked() -> None:
    found = audit.packages()
    assert sum(line[:1].isalnum() for line in audit.LOCK.read_text().splitlines()) == sum(
        package.ecosystem == "PyPI" for package in found
    )
    assert any(package.name == "org.apache.kafka:kafka_2.13" for package in found)
    assert len(set(found)) == len(found)


@pytest.mark.usefixtures("osv")
def test_a_known_vulnerability_fails_unless_it_is_accepted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert audit.main(QUERIES_PER_CALL) == 0
    KNOWN["Maven", "org.apache.kafka:kafka_2.13"] = [["GHSA-jar"]]
    assert audit.main(QUERIES_PER_CALL) == 0
    (version,) = [package.version for package in audit.packages() if package.name == "org.apache.kafka:kafka_2.13"]
    assert f"known: org.apache.kafka:kafka_2.13 {version}: GHSA-jar" in capsys.readouterr().out
    KNOWN["PyPI", "orjson"] = [["GHSA-one"], ["PYSEC-two"]]
    assert audit.main(QUERIES_PER_CALL) == 1
    assert "GHSA-one, PYSEC-two" in capsys.readouterr().out
    accepted = tmp_path / "accepted.toml"
    accepted.write_text(
        "".join(f'[[accepted]]\nid = "{i}"\nreason = "r"\n' for i in ("GHSA-one", "PYSEC-two", "GHSA-old"))
    )
    monkeypatch.setattr(audit, "ACCEPTED", accepted)
    assert audit.main(QUERIES_PER_CALL) == 0
    assert "GHSA-old is accepted in accepted.toml" in capsys.readouterr().out


def test_a_missing_answer_is_reported(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSV_URL", "http://127.0.0.1:1/v1/querybatch")
    assert audit.main(QUERIES_PER_CALL) == 0
    assert "audit: NOT DONE" in capsys.readouterr().out

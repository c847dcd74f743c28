"""The errors of an object store's clients that are outages, with the texts of delta-rs 1.6 and pyarrow 26."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from types import SimpleNamespace

import deltalake
import pytest
from deltalake import exceptions

from writetime.core.errors import Transient, WritetimeError, reason_of
from writetime.core.outages import is_outage, kind_of
from writetime.delta.commits import put_new
from writetime.delta.storage import Storage
from writetime.lake.backfill import find_snapshots
from writetime.servers.process import free_port
from writetime.storage import locations
from writetime.storage.file_errors import StorageError

_CAUSE = "\n          \x1b[31m↳\x1b[0m "


def text_of(*causes: str) -> str:
    """The text of an error, as it is made for a terminal."""
    request = ("Kernel error -> Generic S3 error", "Error performing GET http://h/b/x in 105.9ms, max_retries")
    return _CAUSE.join([*request, *causes]) + "\n"


def text_of_pyarrow(error: str, details: str = "m") -> str:
    listing = "When listing objects under key 'x/' in bucket 'b'"
    return f"{listing}: AWS Error {error} during ListObjectsV2 operation: {details}"


_SENDING = ("2  - HTTP error", "error sending request")
_CONNECT = (*_SENDING, "client error (Connect)")
_STATUS = "2  - Server returned non-2xx status code"
OUTAGES = [
    text_of(*_SENDING, "operation timed out"),
    text_of(*_CONNECT, "dns error", "failed to lookup address information", "Name or service not known"),
    text_of(*_CONNECT, "tcp connect error", "Connection refused (os error 111)"),
    text_of(*_SENDING, "client error (SendRequest)", "Broken pipe (os error 32)"),
    text_of_pyarrow("NETWORK_CONNECTION", "curlCode: 7, Could not connect to server"),
    *map(text_of_pyarrow, ("INTERNAL_FAILURE", "SERVICE_UNAVAILABLE", "SLOW_DOWN", "THROTTLING", "REQUEST_TIMEOUT")),
    *(text_of_pyarrow(f"UNKNOWN (HTTP status {status})") for status in (429, 500, 503)),
    *(text_of(_STATUS, f"{status} Any", "hello") for status in (408, 429, 500, 503)),
]
FAULTS = [
    text_of(*_CONNECT, "invalid peer certificate", "UnknownIssuer"),
    *(text_of(_STATUS, f"{status} Any", "it timed out") for status in (301, 400, 403, 404)),
    text_of_pyarrow("NETWORK_CONNECTION", "curlCode: 60, SSL peer certificate or SSH remote key was not OK"),
    *map(text_of_pyarrow, ("ACCESS_DENIED", "NO_SUCH_BUCKET", "UNKNOWN (HTTP status 400)")),
]


@pytest.mark.parametrize("text", [*OUTAGES, *FAULTS])
def test_an_outage_of_the_store(text: str) -> None:
    assert is_outage(OSError(text)) == (text in OUTAGES)
    assert kind_of(exceptions.DeltaError(text)) == (Transient if text in OUTAGES else WritetimeError)


@pytest.mark.parametrize(("error", "kind"), [("SLOW_DOWN", Transient), ("ACCESS_DENIED", StorageError)])
def test_a_store_whose_region_is_not_known(
    error: str, kind: type[WritetimeError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For S3, its region is requested when an address is resolved."""

    def refuse(_: str) -> None:
        raise OSError(text_of_pyarrow(error))

    monkeypatch.setattr(locations, "fs", SimpleNamespace(FileSystem=SimpleNamespace(from_uri=refuse)))
    with pytest.raises(WritetimeError, match="s3://b/x cannot be reached: When listing") as raised:
        locations.resolve("s3://b/x")
    assert type(raised.value) is kind


def test_reports_have_no_colours_and_one_line() -> None:
    assert reason_of(OSError(OUTAGES[-1])) == (
        "OSError: Kernel error -> Generic S3 error: Error performing GET http://h/b/x in 105.9ms, max_retries: 2  - "
        "Server returned non-2xx status code: 503 Any: hello"
    )
    assert reason_of(WritetimeError("a\n b")) == "a\n b"


def test_a_store_that_is_gone() -> None:
    storage = store_at(free_port())
    with pytest.raises(OSError, match="Generic S3 error") as raised:
        deltalake.DeltaTable.is_deltatable(storage.address, dict(storage.options))
    assert is_outage(raised.value)
    address = f"s3://a:b@b/x?endpoint_override=127.0.0.1:{free_port()}&scheme=http&region=us-east-1"
    with pytest.raises(OSError, match="AWS Error NETWORK_CONNECTION") as raised:
        find_snapshots([address])
    assert is_outage(raised.value)


@contextmanager
def answering(status: int) -> Iterator[int]:
    """Let a store answer each PUT with a status; yield its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.mark.parametrize(("status", "kind"), [(503, Transient), (403, WritetimeError), (400, WritetimeError)])
def test_a_commit_that_the_store_does_not_take(status: int, kind: type[WritetimeError]) -> None:
    with answering(status) as port, pytest.raises(WritetimeError, match=r"1\.json cannot be written: ") as raised:
        put_new(store_at(port), "_delta_log/1.json", b"{}")
    assert type(raised.value) is kind
    assert "\n" not in str(raised.value)


def test_a_commit_that_the_store_has() -> None:
    with answering(412) as port:
        assert not put_new(store_at(port), "_delta_log/1.json", b"{}")


def store_at(port: int) -> Storage:
    options = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1", "max_retries": "1"}
    return Storage("s3://b/x", options | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ALLOW_HTTP": "true"})

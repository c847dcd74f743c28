"""Alerts by a webhook that answers in any way: the caller continues at once, and only an acceptance counts."""

import http.server
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from pydantic import SecretStr

from tests.support.waiting import wait_for
from tests.support.webhooks import receiving
from writetime.core import alerts, config
from writetime.core.config import Settings

Handler = http.server.BaseHTTPRequestHandler


def repeat(begin: bytes, part: bytes) -> Callable[[Handler], None]:
    def act(handler: Handler) -> None:
        handler.wfile.write(begin)
        while True:
            time.sleep(0.02)
            handler.wfile.write(part)

    return act


def status(code: int) -> Callable[[Handler], None]:
    def act(handler: Handler) -> None:
        handler.send_response(code)
        handler.send_header("Location", "/elsewhere")
        handler.end_headers()

    return act


def silence(handler: Handler) -> None:
    handler.rfile.read()


SLOW = {
    "nothing": silence,
    "a status byte by byte": repeat(b"", b"H"),
    "headers byte by byte": repeat(b"HTTP/1.1 200 OK\r\n", b"x"),
    "headers for ever": repeat(b"HTTP/1.1 200 OK\r\n", b"x: y\r\n"),
    "continue for ever": repeat(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
}
ENDLESS = repeat(b"HTTP/1.1 200 OK\r\n\r\n", bytes(1 << 16))


@contextmanager
def webhook(act: Callable[[Handler], None]) -> Iterator[tuple[Settings, list[str]]]:
    calls: list[str] = []

    class Receiver(Handler):
        def answer(self) -> None:
            calls.append(self.command)
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            act(self)
            self.close_connection = True

        do_GET = do_POST = answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    threading.Thread(target=server.serve_forever, args=(0.05,)).start()
    try:
        yield config.load(alerts={"webhook": f"http://127.0.0.1:{server.server_port}/hooks/token"}), calls
    finally:
        server.shutdown()
        server.server_close()


def is_sent(settings: Settings) -> bool:
    return alerts.send(settings, "a title", ["a line"]).result(30)


@pytest.mark.parametrize("how", SLOW)
def test_a_slow_receiver_does_not_stop_its_caller(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    monkeypatch.setattr(alerts, "TIMEOUT_SECONDS", 1.0)
    with webhook(SLOW[how]) as (settings, _):
        found = alerts.send(settings, "a title", ["a line"])
        assert not found.done()
        assert found.result(30) is False
        wait_for(lambda: "alert" not in [thread.name for thread in threading.enumerate()])
    assert "alerts.webhook does not take the alert" in caplog.text
    assert "token" not in caplog.text


@pytest.mark.parametrize("code", [300, 301, 302, 303, 304, 307, 308, 400, 404, 413, 500, 503])
def test_only_an_acceptance_counts(code: int, caplog: pytest.LogCaptureFixture) -> None:
    with webhook(status(code)) as (settings, calls):
        assert is_sent(settings) is False
    assert calls == ["POST"]
    assert f"status {code}" in caplog.text


@pytest.mark.parametrize("code", [200, 201, 202, 204])
def test_any_success_is_an_acceptance(code: int) -> None:
    with webhook(status(code)) as (settings, calls):
        assert is_sent(settings) is True
    assert calls == ["POST"]


def test_the_body_of_an_acceptance_may_be_endless() -> None:
    with webhook(ENDLESS) as (settings, _):
        assert is_sent(settings) is True


@pytest.mark.parametrize("url", ["file:///etc/hostname", "data:text/plain,ok", "ftp://127.0.0.1/x", "nonsense", ""])
def test_only_http_is_used(url: str) -> None:
    settings = config.load()
    there = settings.alerts.model_copy(update={"webhook": SecretStr(url)})
    assert is_sent(settings.model_copy(update={"alerts": there})) is False


def test_an_alert_arrives_whole() -> None:
    with receiving() as (url, posted):
        assert is_sent(config.load(alerts={"webhook": f"{url}token"})) is True
    assert posted == [{"text": "a title\n- a line", "title": "a title", "lines": ["a line"]}]

"""Sends alerts to operators: to the log, and to a webhook.

A webhook is a server of others, which may answer slowly, without an end, or with a redirect. So each call has its own
thread and a time limit, its answer's body is not read, and a redirect is not followed: `urllib` would repeat the call
as a GET without the alert.
"""

import http.client
import json
import logging
import socket
import threading
import urllib.request
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.error import HTTPError

from writetime.core.config import Settings

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 10.0
"""The time limit of a call, from its connection to the status of its answer."""


def send(settings: Settings, title: str, lines: Sequence[str], run_id: str | None = None) -> Future[bool]:
    """Log an alert, and post it as JSON with `text`, `title` and `lines` to `alerts.webhook`, if that is set. Return at
    once; the result is whether the webhook accepted it, within `TIMEOUT_SECONDS`, and True if there is none.

    An alert about a run of Dagster also has `url`, the page of the run, if `alerts.dagster_url` is set. A failed
    webhook is logged without its URL, which may hold a token.
    """
    base = settings.alerts.dagster_url
    link = {"url": f"{base.rstrip('/')}/runs/{run_id}"} if base and run_id else {}
    text = "\n".join([title, *(f"- {line}" for line in lines), *link.values()])
    log.error("%s", text)
    accepted: Future[bool] = Future()
    if settings.alerts.webhook is None:
        accepted.set_result(True)
        return accepted
    body = json.dumps({"text": text, "title": title, "lines": list(lines), **link}).encode()
    url = settings.alerts.webhook.get_secret_value()
    threading.Thread(target=lambda: accepted.set_result(_post(url, body)), name="alert", daemon=True).start()
    return accepted


def _post(url: str, body: bytes) -> bool:
    connections = _Connections()
    end = threading.Timer(TIMEOUT_SECONDS, connections.end)
    end.daemon = True
    end.start()
    try:
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        connections.opener().open(request, timeout=TIMEOUT_SECONDS).close()
        # Headers also end with the connection.
        if connections.ended:
            raise TimeoutError
        return True
    except Exception as e:
        log.error("alerts.webhook does not take the alert: %s", _reason(e, connections.ended))
        return False
    finally:
        end.cancel()
        connections.close()


def _reason(error: Exception, ended: bool) -> str:
    if ended:
        return f"no answer within {TIMEOUT_SECONDS:g} s"
    if not isinstance(error, HTTPError):
        return type(error).__name__
    redirect = 300 <= error.code < 400
    return f"status {error.code}" + (": it redirects, so set the address that it redirects to" if redirect else "")


class _Connections:
    """The connections of a call, which end it if they are closed."""

    def __init__(self) -> None:
        self.ended = False
        self._open: list[socket.socket] = []

    def end(self) -> None:
        """End the call, whatever it waits for."""
        self.ended = True
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close them after the call."""
        for each in self._open:
            each.close()

    def opener(self) -> urllib.request.OpenerDirector:
        """Return a client of HTTP and HTTPS only, with the proxies of the environment and without redirects."""
        found = urllib.request.OpenerDirector()
        plain, encrypted = urllib.request.HTTPHandler(), urllib.request.HTTPSHandler()
        for handler, kind in ((plain, http.client.HTTPConnection), (encrypted, http.client.HTTPSConnection)):
            handler.do_open = partial(self._do_open, handler.do_open, kind)  # type: ignore[method-assign]
        for handler in (
            *(plain, encrypted, urllib.request.ProxyHandler(), urllib.request.UnknownHandler()),
            *(urllib.request.HTTPErrorProcessor(), urllib.request.HTTPDefaultErrorHandler()),
        ):
            found.add_handler(handler)
        return found

    def _do_open(self, do_open: Any, kind: type[http.client.HTTPConnection], _: Any, *call: Any, **named: Any) -> Any:
        def connection(*arguments: Any, **options: Any) -> http.client.HTTPConnection:
            found = kind(*arguments, **options)
            found._create_connection = self._connect  # type: ignore[attr-defined]
            return found

        return do_open(connection, *call, **named)

    def _connect(self, *arguments: Any, **options: Any) -> socket.socket:
        found = socket.create_connection(*arguments, **options)
        # The encrypted connection takes the socket over.
        self._open.append(found.dup())
        if self.ended:
            self.end()
        return found

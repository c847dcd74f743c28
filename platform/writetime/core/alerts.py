"""Sends alerts to operators: to the log, and to a webhook."""

import http.client
import json
import logging
import urllib.request
from collections.abc import Sequence

from writetime.core.config import Settings

log = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 10.0


def send(settings: Settings, title: str, lines: Sequence[str], run_id: str | None = None) -> bool:
    """Log an alert, and post it as JSON with `text`, `title` and `lines` to `alerts.webhook`, if that is set. Return
    whether the webhook accepted it; True if there is none.

    An alert about a run of Dagster also has `url`, the page of the run, if `alerts.dagster_url` is set. A failed
    webhook is logged without its URL, which may hold a token.
    """
    base = settings.alerts.dagster_url
    link = {"url": f"{base.rstrip('/')}/runs/{run_id}"} if base and run_id else {}
    text = "\n".join([title, *(f"- {line}" for line in lines), *link.values()])
    log.error("%s", text)
    if settings.alerts.webhook is None:
        return True
    body = json.dumps({"text": text, "title": title, "lines": list(lines), **link}).encode()
    url, headers = settings.alerts.webhook.get_secret_value(), {"Content-Type": "application/json"}
    try:
        request = urllib.request.Request(url, body, headers)
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS):
            return True
    except (OSError, ValueError, http.client.HTTPException) as e:
        log.error("alerts.webhook does not take the alert: %s", type(e).__name__)
        return False

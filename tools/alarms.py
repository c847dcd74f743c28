"""Writes the alarms and the dashboard from `deploy/alarms.toml`: `python -m tools.alarms`.

It writes rules for Prometheus ("Alerting rules" in its documentation), a dashboard for Grafana ("Dashboard JSON
model"), and the table of alarms in docs/operations.md. A test checks that all three are current.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
LIST = ROOT / "deploy" / "alarms.toml"
RULES = ROOT / "deploy" / "prometheus-rules.yaml"
DASHBOARD = ROOT / "deploy" / "grafana-dashboard.json"
PAGE = ROOT / "docs" / "operations.md"
RUNBOOK = ROOT / "docs" / "runbook.md"
_RUNBOOK_URL = "https://github.com/writetime/writetime/blob/main/docs/runbook.md"
_BEGIN = "<!-- alarms, written by `python -m tools.alarms` -->"
_END = "<!-- end of the alarms -->"
# The width and height of a panel, in Grafana's grid of 24 columns.
_WIDTH, _HEIGHT, _COLUMNS = 8, 7, 3


def alarms() -> list[dict[str, str]]:
    """Return the alarms."""
    return tomllib.loads(LIST.read_text())["alarm"]


def panels() -> list[dict[str, str]]:
    """Return the panels, grouped by program."""
    return tomllib.loads(LIST.read_text())["panel"]


def rules() -> str:
    """Return the rules of Prometheus."""
    found = [
        {
            "alert": "Writetime" + "".join(word.capitalize() for word in re.findall(r"\w+", alarm["title"])),
            "expr": alarm["expr"],
            **({"for": alarm["for"]} if "for" in alarm else {}),
            "labels": {"severity": alarm.get("severity", "warning")},
            "annotations": {
                "summary": _plain(alarm["title"]),
                "description": "{{ $labels }} {{ $value }}" + (f": {_plain(alarm['note'])}" if "note" in alarm else ""),
                "runbook_url": f"{_RUNBOOK_URL}#{section(alarm['title'])}",
            },
        }
        for alarm in alarms()
    ]
    head = "# Written by `python -m tools.alarms` from alarms.toml.\n"
    return head + yaml.safe_dump({"groups": [{"name": "writetime", "rules": found}]}, sort_keys=False, width=120)


def dashboard() -> str:
    """Return the dashboard of Grafana: a row per program."""
    shown: list[dict[str, Any]] = []
    y = 0
    for program, group in groupby(panels(), lambda panel: panel["program"]):
        shown.append({"type": "row", "title": f"writetime {program}", "gridPos": _grid(0, y, 24, 1), "panels": []})
        own = list(group)
        for number, panel in enumerate(own):
            row, column = divmod(number, _COLUMNS)
            place = _grid(column * _WIDTH, y + 1 + row * _HEIGHT, _WIDTH, _HEIGHT)
            shown.append(_panel(panel, place))
        y += 1 + -(-len(own) // _COLUMNS) * _HEIGHT
    source = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    found = {
        "title": "Writetime",
        "uid": "writetime",
        "tags": ["writetime"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source]},
        "panels": [{"id": number, **panel} for number, panel in enumerate(shown, 1)],
    }
    return json.dumps(found, indent=2) + "\n"


def page(text: str) -> str:
    """Return docs/operations.md with the table of alarms."""
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return before + "\n".join([_BEGIN, "", *_table(), "", _END]) + after


def section(heading: str) -> str:
    """Return the anchor of a heading, as links name it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _table() -> Iterator[str]:
    yield "| alarm | when |"
    yield "| --- | --- |"
    for alarm in alarms():
        lasting = f" for {alarm['for']}" if "for" in alarm else ""
        note = f": {alarm['note']}" if "note" in alarm else ""
        expr = alarm["expr"].replace("|", r"\|")
        title = f"[{alarm['title']}]({RUNBOOK.name}#{section(alarm['title'])})"
        yield f"| {title} | `{expr}`{lasting}{note} |"


def _panel(panel: Mapping[str, str], place: Mapping[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${source}"}
    return {
        "type": "timeseries",
        "title": panel["title"],
        "datasource": source,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel["unit"], "min": 0}, "overrides": []},
        "targets": [{"refId": "A", "datasource": source, "expr": panel["expr"], "legendFormat": panel["legend"]}],
    }


def _grid(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _plain(text: str) -> str:
    return text.replace("`", "")


def main() -> None:
    """Write the files."""
    RULES.write_text(rules())
    DASHBOARD.write_text(dashboard())
    PAGE.write_text(page(PAGE.read_text()))


if __name__ == "__main__":
    main()

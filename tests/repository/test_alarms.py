"""The alarms, the dashboard and the table in docs/operations.md are written from one list."""

import json
import re
from pathlib import Path

import yaml

from tools import alarms
from writetime.capture import metrics

_SECTION = re.compile(r"(?m)^## (.*)$")


def test_the_files_are_those_of_the_list() -> None:
    remedy = "run `python -m tools.alarms`"
    assert alarms.RULES.read_text() == alarms.rules(), remedy
    assert alarms.DASHBOARD.read_text() == alarms.dashboard(), remedy
    assert alarms.PAGE.read_text() == alarms.page(alarms.PAGE.read_text()), remedy


def test_rules_are_those_of_prometheus() -> None:
    [group] = yaml.safe_load(alarms.RULES.read_text())["groups"]
    names = [rule["alert"] for rule in group["rules"]]
    assert len(set(names)) == len(names) == len(alarms.alarms())
    for rule in group["rules"]:
        assert re.fullmatch(r"[A-Za-z][A-Za-z0-9]*", rule["alert"])
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))
        assert rule["expr"].count("(") == rule["expr"].count(")")


def test_panels_do_not_overlap() -> None:
    panels = json.loads(alarms.DASHBOARD.read_text())["panels"]
    taken = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_the_runbook_names_each_kind_of_an_agents_errors() -> None:
    counted = re.compile(r'\b_?metrics\.error\("(\w+)"\)')
    sources = [path.read_text() for path in Path(metrics.__file__).parent.glob("*.py")]
    kinds = {*metrics._KINDS, "refused", "unexpected", *(kind for text in sources for kind in counted.findall(text))}
    text = alarms.RUNBOOK.read_text().partition("## agent has errors")[2].partition("\n## ")[0]
    assert [kind for kind in sorted(kinds) if f"`{kind}`" not in text] == []


def test_each_alarm_has_its_section_in_the_runbook() -> None:
    found = _SECTION.split(alarms.RUNBOOK.read_text())[1:]
    titles, texts = found[::2], found[1::2]
    assert titles == [alarm["title"] for alarm in alarms.alarms()]
    for title, text in zip(titles, texts, strict=True):
        assert re.findall(r"(?m)^\*(\w+):\*", text) == ["Means", "See", "Do", "Over"], title
    [group] = yaml.safe_load(alarms.RULES.read_text())["groups"]
    assert [rule["annotations"]["runbook_url"].partition("#")[2] for rule in group["rules"]] == [
        alarms.section(title) for title in titles
    ]

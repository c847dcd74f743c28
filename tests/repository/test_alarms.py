"""The alarms, the dashboard and the table in docs/operations.md are written from one list."""

import json
import re

import yaml

from tools import alarms

# Sections of documents, as their links name them.
_HEADING = re.compile(r"(?m)^#+ (.*)$")


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


def test_each_fault_has_its_section() -> None:
    for alarm in alarms.alarms():
        for page, section in re.findall(r"\]\(([\w.-]*)#([\w-]+)\)", alarm["fault"]):
            text = (alarms.PAGE.parent / page if page else alarms.PAGE).read_text()
            slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(text)}
            assert section in slugs, alarm["title"]

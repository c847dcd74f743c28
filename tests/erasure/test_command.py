"""`writetime erase`: its keys, its certificate and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.erasure.people import Lake, all_values, people
from tests.support.bytes_left import found_in, texts_below
from tests.support.published import command
from tests.support.settings import write_settings
from writetime import open_table

pytestmark = pytest.mark.slow


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A lake that the command works on, without other servers."""
    lake = Lake(tmp_path, buckets=4)
    write_settings(lake.settings, tmp_path / "writetime.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    return lake


def erase(*arguments: str) -> Any:
    return command("erase", "shop.people", *arguments, "--without-kafka")


def test_keys_of_all_forms(lake: Lake, tmp_path: Path) -> None:
    everyone = people(4)
    lake.fill(everyone, everyone[:3])
    file = tmp_path / "keys.jsonl"
    file.write_text(json.dumps({"person": everyone[0].name}) + f"\n\n0x{everyone[1].key.hex()}\n")
    answer = erase("--keys", str(file), "--key", json.dumps({"person": everyone[2].name}))
    assert answer.exit_code == 0, answer.output
    file.unlink()
    certificate = json.loads(answer.stdout)
    assert certificate["partitions"] == 3
    assert certificate["topics"] == []
    assert any("the database" in each for each in certificate["remains"])
    assert json.loads((tmp_path / "lake/erasures/shop.people/00000001.certificate.json").read_text()) == certificate
    assert lake.left_of(everyone[:3]) == {}


def test_rows_in_both_forms(lake: Lake, tmp_path: Path) -> None:
    """A row of each of two people, by JSON, and by the key and position that the changes have."""
    everyone = people(3)
    lake.fill(everyone, everyone[:2])
    position = everyone[1].write(1, 0)["position"]
    answer = erase(
        *("--key", json.dumps({"person": everyone[0].name, "n": 1})),
        *("--key", f"0x{everyone[1].key.hex()}/0x{position.hex()}"),
    )
    assert answer.exit_code == 0, answer.output
    assert (json.loads(answer.stdout)["partitions"], json.loads(answer.stdout)["rows"]) == (0, 2)
    odd, even = ([person.texts[i] for person in everyone[:2] for i in range(first, 6, 2)] for first in (1, 0))
    found = found_in(texts_below(tmp_path), odd + even)
    assert [text for text in odd if found[text]] == []
    assert all(found[text] for text in even)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ('{"person": "a", "v": 1}', "a key gives no serialised key"),
        ('{"n": 1}', "a key gives no serialised key"),
        ('{"person": 1}', "person"),
        ("7", "a key gives no serialised key"),
        ("person", "a key gives no serialised key"),
        ("0xgg", "hexadecimal"),
    ],
)
def test_other_keys_are_refused(lake: Lake, key: str, message: str) -> None:
    answer = erase("--key", key)
    assert answer.exit_code == 1
    assert message in answer.output


def test_no_key_is_refused(lake: Lake) -> None:
    assert "name the partitions or rows" in erase().output


def test_keys_that_stand_for_more_are_refused(lake: Lake) -> None:
    """A position of no row, or a value that leads to no place, must not widen a key."""
    key = people(1)[0].key.hex()
    for text in (f"0x{key}/0x18", f"0x{key}/0x", f"0x{key}/0x4041", '{"person": "a", "n": null}'):
        assert erase("--key", text).exit_code == 1


def test_python_takes_values(lake: Lake) -> None:
    everyone = people(3)
    lake.fill(everyone, everyone[:1])
    certificate = open_table("shop.people").erase([{"person": everyone[0].name}], kafka=False)
    assert certificate["partitions"] == 1
    assert lake.left_of(everyone[:1]) == {}
    assert lake.left_of(everyone[1:]).keys() == all_values(everyone[1:])

"""The sensor of folders of segments; tests/capture/test_archives.py publishes real ones."""

from pathlib import Path

import pytest
from dagster import DagsterInstance, RunRequest, build_sensor_context

from tests.support.settings import write_settings
from writetime.core.config import load
from writetime_dagster.assets.segments import new_segments
from writetime_dagster.resources import KafkaResource


@pytest.mark.parametrize("new", [0, 1])
def test_a_folder_that_cannot_be_listed_does_not_prevent_a_run(
    new: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run publishes the segments of the others, and fails with an alert."""
    there, missing = tmp_path / "there", tmp_path / "missing"
    there.mkdir()
    for number in range(new):
        (there / f"CommitLog-7-{number}.log").touch()
    capture = {"segments": [str(missing), str(there)], "state_dir": str(tmp_path)}
    write_settings(load(capture=capture), tmp_path / "writetime.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    with (
        DagsterInstance.ephemeral() as instance,
        build_sensor_context(instance, resources={"kafka": KafkaResource()}) as context,
    ):
        answer = new_segments(context)
    assert isinstance(answer, RunRequest)
    assert answer.tags["writetime/segments"] == str(new)

"""`writetime replay ...`."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.support.settings import write_settings
from writetime.cli.main import main
from writetime.core.config import Settings

HANDLER = "import os\ndef handle(batch):\n    print(batch.id, *(i.decode() for i in batch.items))\n"


def run(*arguments: str, given: bytes | None = None) -> Result:
    return CliRunner(catch_exceptions=False).invoke(main, ["replay", *arguments], input=given)


def test_commands(replay_settings: Settings, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_settings(replay_settings, tmp_path / "writetime.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"h{queue}.py").write_text(HANDLER)
    assert run("publish", queue, given=b"one\ntwo\n").stdout == f"{queue}-1\n"
    for _ in range(2):
        again = run("publish", queue, "--producer", "p", "--sequence", "7", given=b"\xff\n")
        assert again.stdout == f"{queue}-2\n"
    assert run("publish", queue, given=b"three").stdout == f"{queue}-3\n"
    lines = [json.loads(line) for line in run("read", queue).stdout.splitlines()]
    assert [(x["n"], x["items"]) for x in lines] == [(1, ["one", "two"]), (2, ["0xff"]), (3, ["three"])]
    assert [json.loads(x)["n"] for x in run("read", queue, "--from", "2", "--to", "2").stdout.splitlines()] == [2]
    assert run("seek", queue, "p", "3").stdout == f"next: {queue}-3\n"
    work = ("work", queue, "p", "--handler", f"h{queue}:handle", "--until-idle")
    assert run(*work).stdout == f"{queue}-3 three\n1 batch\n"
    assert run("seek", queue, "p", lines[0]["published_at"]).stdout == f"next: {queue}-1\n"
    assert json.loads(run("lag", queue).stdout)["batches"] == 3
    assert run("rebuild", queue).stdout == "newest batch 3; cursors restored: none\n"
    assert run("check", queue).stdout == "3 batches, 4 items, 0 faults\n"
    assert "is neither the number of a batch nor a time" in run("seek", queue, "p", "soon").output
    assert "name it as module:function" in run("work", queue, "p", "--handler", "nothing").output


def test_a_handler_that_ends_the_program_is_a_failure(
    replay_settings: Settings, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_settings(replay_settings, tmp_path / "writetime.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"e{queue}.py").write_text("def handle(batch):\n    raise SystemExit(0)\n")
    assert run("publish", queue, given=b"one\n").exit_code == 0
    result = run("work", queue, "p", "--handler", f"e{queue}:handle", "--until-idle")
    assert result.exit_code == 1
    assert f"handler e{queue}:handle has called sys.exit(0)" in result.output
    assert json.loads(run("lag", queue).stdout)["batches"] == 1


def test_a_misspelt_queue_is_no_empty_one(
    replay_settings: Settings, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay = replay_settings.replay.model_copy(update={"queues": [f"{queue}-named"]})
    write_settings(replay_settings.model_copy(update={"replay": replay}), tmp_path / "writetime.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    assert run("publish", queue, given=b"one\n").exit_code == 0
    assert run("seek", queue, "p", "1").exit_code == 0
    commands = (["read"], ["seek", "p", "1"], ["lag"], ["rebuild"], ["check"], ["trim"], ["forget", "p"])
    for name, *more in commands:
        answer = run(name, f"{queue}x", *more)
        assert answer.exit_code == 1
        assert f"no batch was ever published to queue {queue}x; did you mean {queue}?" in answer.stderr
    assert "no batch was ever published to queue nothing.alike" in run("check", "nothing.alike").stderr
    # The settings name it, so it begins with its first batch.
    assert run("check", f"{queue}-named").stdout == "0 batches, 0 items, 0 faults\n"
    assert run("forget", queue, "p").stdout == "forgotten: p\n"


def test_an_error_of_a_handler_names_the_batch(
    replay_settings: Settings, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_settings(replay_settings, tmp_path / "writetime.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"f{queue}.py").write_text("def handle(batch):\n    raise ValueError(batch.items)\n")
    assert run("publish", queue, given=b"one\n").exit_code == 0
    with pytest.raises(ValueError, match="one") as raised:
        run("work", queue, "p", "--handler", f"f{queue}:handle", "--until-idle")
    [note] = raised.value.__notes__
    assert note == f"batch {queue}-1 is not done: processor p processes it again at its next start"

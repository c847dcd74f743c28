"""The Makefile, in a copy of the repository whose path has a space, with programs that only record their calls."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # `make test-python` hands its own variables on to each `make` that its tests run.
    for name in ("MAKEFLAGS", "WRITETIME_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "my folder"
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("Makefile", "dagster.yaml", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    (programs.parent / ".installed").touch()
    program = programs / "writetime"
    program.write_text('#!/bin/sh\necho "$1 ${WRITETIME_CONFIG:-here}" >> calls\ntest ! -f broken\n')
    program.chmod(0o755)
    return folder


def make(folder: Path, target: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", target]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_all_folders_are_made_where_the_makefile_is(tree: Path) -> None:
    done = make(tree, "instance")
    assert done.returncode == 0, done.stderr
    assert (tree / ".writetime" / "dagster" / "dagster.yaml").is_file()
    assert [path.name for path in tree.parent.iterdir()] == [tree.name]


def test_clean_needs_no_servers(tree: Path) -> None:
    assert make(tree, "clean").returncode == 0
    assert not (tree / "calls").exists()
    assert not (tree / ".venv").exists()
    (tree / ".writetime" / "servers").mkdir(parents=True)
    assert make(tree, "clean").returncode == 0
    assert not (tree / ".writetime").exists()


def test_clean_stops_the_servers_first(tree: Path) -> None:
    (tree / ".writetime" / "servers").mkdir(parents=True)
    settings = tree / ".writetime" / "tests" / "main" / "servers.toml"
    settings.parent.mkdir(parents=True)
    settings.touch()
    (tree / "broken").touch()
    assert make(tree, "clean").returncode != 0
    assert settings.exists()
    (tree / "broken").unlink()
    assert make(tree, "clean").returncode == 0
    assert (tree / "calls").read_text().splitlines() == [
        "down here",
        "down here",
        "down .writetime/tests/main/servers.toml",
    ]
    assert not (tree / ".writetime").exists()

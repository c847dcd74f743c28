"""Runs tests on each supported Python of this machine: `python -m tools.pythons`, as `make test-python` does.

These are the tests that need no servers, and those of security and storage, which start their own. The tool looks for
interpreters on the PATH, and then among the versions of pyenv. Each gets its own environment in `.writetime/pythons`,
with the packages of `requirements.lock`.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
_ENVIRONMENTS = ".writetime/pythons"
# `venv` needs `ensurepip`, which some distributions package separately.
_ASK = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"


def interpreters() -> dict[str, Path]:
    """Return the interpreters of this machine that work and can make an environment, by version."""
    found = {version: next((p for p in _candidates(version) if _works(p, version)), None) for version in VERSIONS}
    return {version: path for version, path in found.items() if path is not None}


def main() -> int:
    """Run the tests on each interpreter; return 1 if they fail on one, or there is none."""
    found = interpreters()
    if not found:
        print(f"no interpreter: Python {VERSIONS[0]} to {VERSIONS[-1]} was not found on the PATH or in pyenv")
        return 1
    outcomes = {}
    for version, path in found.items():
        print(f"\nPython {version}: {path}", flush=True)
        outcomes[version] = "passed" if _passes(version, path) else "FAILED"
    print()
    for version in VERSIONS:
        print(f"Python {version}: {outcomes.get(version, 'not run, as there is none')}")
    return int("FAILED" in outcomes.values())


def _candidates(version: str) -> Iterator[Path]:
    name = f"python{version}"
    for folder in os.get_exec_path():
        yield Path(folder) / name
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    # Releases only: 3.13.0, and neither 3.13.0rc1 nor 3.13-dev.
    releases = [path for path in versions.glob(f"{version}.*") if path.name.split(".")[2].isdigit()]
    for path in sorted(releases, key=lambda path: int(path.name.split(".")[2]), reverse=True):
        yield path / "bin" / name


def _works(path: Path, version: str) -> bool:
    if not path.is_file():
        return False
    # A pyenv shim also exists for versions that are not in use, and fails then.
    answer = subprocess.run([path, "-c", _ASK], capture_output=True, text=True, check=False)
    return answer.stdout.strip() == version


def _passes(version: str, python: Path) -> bool:
    own = [f"VENV={_ENVIRONMENTS}/{version}", f"PYTHON={python}"]
    command = ["make", "--no-print-directory", "test-without-shared-servers", *own]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())

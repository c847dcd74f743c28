"""Builds a release into `dist/`, and tries it: `python -m tools.release`, which is `make release`. It uploads nothing.

`dist/` then has the wheel, the source distribution, and a list of components in the format CycloneDX 1.6. The list has
the jars, and the packages that the extras for users require, in the versions of `requirements.lock`.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from cyclonedx import model
from cyclonedx.model import bom, component
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from writetime.core.errors import WritetimeError
from writetime.runtime import jars

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
NAME = "writetime"
_FOR_DEVELOPERS = "dev"
# The library defines these with decorators that lose their types.
_Bom: Any = bom.Bom
_Component: Any = component.Component
_Hash: Any = model.HashType


def version(root: Path = ROOT) -> str:
    """Return the version to release.

    Raises:
        WritetimeError: the newest section of the CHANGELOG is not that of the version in `pyproject.toml`.
    """
    found = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    sections = re.findall(r"^## \[?([^\]\s]+)", (root / "CHANGELOG.md").read_text(), re.M)
    newest = sections[0] if sections else "no section"
    if newest != found:
        raise WritetimeError(
            f"pyproject.toml has the version {found}, and CHANGELOG.md begins with {newest}: name the version that you "
            "release in both"
        )
    return found


def components() -> Any:
    """Return the list of components: what an installation with all extras for users may contain."""
    found = _Bom(components=[*_packages(), *_jars()])
    root = _Component(
        name=NAME,
        version=version(),
        type=component.ComponentType.APPLICATION,
        purl=PackageURL("pypi", None, NAME, version()),
    )
    found.metadata.component = root
    found.register_dependency(root, found.components)
    return found


def _packages() -> Iterator[Any]:
    """Yield the packages that users install, in the versions of this environment, which are those of the lock."""
    extras = sorted(set(distribution(NAME).metadata.get_all("Provides-Extra") or []) - {_FOR_DEVELOPERS})
    waiting = [Requirement(f"{NAME}[{','.join(extras)}]")]
    seen: set[tuple[str, str]] = set()
    names: set[str] = set()
    while waiting:
        required = waiting.pop()
        name = canonicalize_name(required.name)
        for extra in ("", *required.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            names.add(name)
            for text in distribution(name).requires or []:
                needed = Requirement(text)
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    waiting.append(needed)
    for name in sorted(names - {NAME}):
        found = distribution(name)
        yield _Component(
            name=name,
            version=found.version,
            type=component.ComponentType.LIBRARY,
            purl=PackageURL("pypi", None, name, found.version),
        )


def _jars() -> Iterator[Any]:
    """Yield the pinned jars of the servers and of Spark, each once."""
    sets = {line.split()[0] for line in jars.LOCK_FILE.read_text().splitlines() if line and not line.startswith("#")}
    for jar in sorted({jar for name in sets for jar in jars.pinned(name)}, key=str):
        yield _Component(
            group=jar.group,
            name=jar.artifact,
            version=jar.version,
            type=component.ComponentType.LIBRARY,
            purl=PackageURL("maven", jar.group, jar.artifact, jar.version),
            hashes=[_Hash(alg=model.HashAlgorithm.SHA_256, content=jar.sha256)],
        )


def _try(wheel: Path, released: str) -> None:
    """Install a wheel in a fresh environment, from the package index, and run it there."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        program = Path(folder) / "bin"
        subprocess.run([program / "python", "-m", "pip", "install", "--quiet", wheel], check=True)
        printed = subprocess.run([program / NAME, "--version"], check=True, capture_output=True, text=True).stdout
        if released not in printed:
            raise WritetimeError(f"the installed program reports {printed.strip()!r} instead of {released}")
        subprocess.run([program / NAME, "agent", "--help"], check=True, stdout=subprocess.DEVNULL)


def main() -> int:
    """Build the release, list its components and try it. Return the exit status."""
    try:
        released = version()
    except WritetimeError as e:
        print(f"release: {e}", file=sys.stderr)
        return 1
    shutil.rmtree(DIST, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", DIST], cwd=ROOT, check=True)
    [wheel] = DIST.glob("*.whl")
    listed = DIST / f"{NAME}-{released}.cdx.json"
    listed.write_text(JsonV1Dot6(components()).output_as_string(indent=2))
    _try(wheel, released)
    for file in sorted(DIST.iterdir()):
        print(f"{file.relative_to(ROOT)}: {file.stat().st_size:,} bytes")
    print("installed and tried in a fresh environment; nothing was uploaded")
    return 0


if __name__ == "__main__":
    sys.exit(main())

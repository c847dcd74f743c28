import socket
import subprocess
import sys
from pathlib import Path

from tests.support import cassandra_versions
from writetime.runtime import jars

ROOT = Path(__file__).parents[2]


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    # With the installation that runs the tests.
    command = ["make", "--no-print-directory", "-o", f"{sys.prefix}/.installed", f"VENV={sys.prefix}", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def port(number: int) -> subprocess.CompletedProcess[str]:
    return make(f"UI_PORT={number}", "port")


def test_the_web_ui_asks_for_another_port_before_it_starts_anything() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        refused = port(number)
        assert refused.returncode != 0
        assert f"port {number} is in use" in refused.stdout
        assert "make ui UI_PORT=3001" in refused.stdout
    free = port(number)
    assert free.returncode == 0, free.stderr


def test_without_a_scylladb_its_tests_are_skipped_by_name() -> None:
    skipped = make("test-scylla")
    assert skipped.returncode == 0, skipped.stderr
    assert skipped.stdout == (
        "skipped: tests on ScyllaDB, as none is named: "
        "make test-scylla SCYLLA=host:port [DATA=folder] [NODETOOL=command]\n"
    )


def test_with_a_scylladb_its_tests_run_with_vnodes_and_with_tablets() -> None:
    found = make("-n", "test-scylla", "SCYLLA=127.0.0.9:9042", "DATA=/data", "NODETOOL=scylla nodetool -p 1").stdout
    assert "for tablets in off on" in found
    assert '--scylla "127.0.0.9:9042" --scylla-tablets $tablets' in found
    assert '--scylla-data "/data" --scylla-nodetool "scylla nodetool -p 1"' in found


def test_the_matrix_runs_each_version_and_its_results_name_it() -> None:
    found = make("-n", "test-matrix").stdout
    assert f"for version in {' '.join(reversed(cassandra_versions.VERSIONS))};" in found
    results = (ROOT / "docs/versions.md").read_text()
    for version in cassandra_versions.VERSIONS:
        pinned = jars.pinned("cassandra" if version == "5.0" else f"cassandra-{version}")
        (jar,) = [jar for jar in pinned if jar.artifact == "cassandra-all"]
        assert f"| Cassandra {jar.version} |" in results

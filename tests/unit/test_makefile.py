import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def port(number: int) -> subprocess.CompletedProcess[str]:
    # With the installation that runs the tests.
    command = ["make", "-o", f"{sys.prefix}/.installed", f"VENV={sys.prefix}", f"UI_PORT={number}", "port"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_web_ui_asks_for_another_port_before_it_starts_anything() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        refused = port(number)
        assert refused.returncode != 0
        assert f"port {number} is in use" in refused.stdout
        assert "make ui UI_PORT=3001" in refused.stdout
    free = port(number)
    assert free.returncode == 0, free.stderr

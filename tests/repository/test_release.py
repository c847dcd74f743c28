"""The list of components of `make release`, and its refusals. tests/repository/test_wheel.py tests the wheel."""

import json
from pathlib import Path

import pytest
from cyclonedx.output.json import JsonV1Dot6

from tools import release
from writetime.core.errors import WritetimeError


def test_the_list_has_what_users_install_and_nothing_else() -> None:
    listed = json.loads(JsonV1Dot6(release.components()).output_as_string())
    assert (listed["bomFormat"], listed["metadata"]["component"]["version"]) == ("CycloneDX", release.version())
    found = {component["purl"].partition("@")[0]: component for component in listed["components"]}
    assert {"pkg:pypi/pyarrow", "pkg:pypi/dagster", "pkg:pypi/uvicorn", "pkg:maven/org.apache.kafka/kafka-clients"} <= (
        found.keys()
    )
    assert not {"pkg:pypi/pytest", "pkg:pypi/ruff", "pkg:pypi/writetime"} & found.keys()
    assert all(
        c["version"] and (c["purl"].startswith("pkg:pypi") or len(c["hashes"][0]["content"]) == 64)
        for c in listed["components"]
    )


@pytest.mark.parametrize("sections", ["# Changelog\n\n## Unreleased\n\n## 0.1.0\n", "# Changelog\n"])
def test_a_version_without_a_section_is_not_released(tmp_path: Path, sections: str) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(sections)
    with pytest.raises(WritetimeError, match=r"pyproject\.toml has the version 0\.2\.0, and CHANGELOG\.md begins with"):
        release.version(tmp_path)
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [0.2.0] - 2026-11-26\n")
    assert release.version(tmp_path) == "0.2.0"

"""The component that brings followed tables into another Dagster project."""

import os
from pathlib import Path

import pytest
from dagster import Definitions, asset, build_defs_for_component, materialize

from writetime.core.errors import WritetimeError
from writetime.servers.process import free_port
from writetime_dagster import WritetimeComponent
from writetime_dagster.assets.naming import key_of
from writetime_dagster.resources import LakeResource

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def of_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The settings file that WRITETIME_CONFIG names, of servers that do not run."""
    path = tmp_path / "writetime.toml"
    path.write_text("[tables.shop.orders]\n[tables.shop.items]\n")
    monkeypatch.setenv("WRITETIME_CONFIG", str(path))
    monkeypatch.setenv("WRITETIME_CASSANDRA__PORT", str(free_port()))
    return path


def component(**attributes: object) -> Definitions:
    """The definitions that the component of a project brings in."""
    return build_defs_for_component(WritetimeComponent.from_attributes_dict(attributes=attributes))


def test_a_table_without_an_entry_alone_is_refused(of_process: Path) -> None:
    graph = component(settings=str(of_process), tables=["shop.orders", "shop.item"]).resolve_asset_graph()
    assert key_of("shop.orders", "view") in graph.get_all_asset_keys()
    assert key_of("shop.items", "view") not in graph.get_all_asset_keys()
    refused = "**Refused:** the settings have no entry [tables.shop.item]; is it shop.items?"
    assert graph.get(key_of("shop.item", "table")).description == refused


def test_without_a_list_it_has_all_tables() -> None:
    found = component().resolve_asset_graph().get_all_asset_keys()
    assert {key_of(name, "view") for name in ("shop.orders", "shop.items")} <= found


def test_a_settings_file_that_is_missing_is_named(tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    with pytest.raises(WritetimeError, match=f"settings names {other}, which is not a file"):
        component(settings=str(other))


def test_components_of_one_process_have_their_own_settings(tmp_path: Path) -> None:
    """Their tables, their resources and the reports of their runs."""

    @asset
    def rows(lake: LakeResource) -> None:
        assert lake.path("rows").endswith(f"/{lake.settings.tables['shop'].popitem()[0]}/rows")

    environment = dict(os.environ)
    found: dict[str, Definitions] = {}
    for name in ("orders", "items"):
        file = tmp_path / f"{name}.toml"
        file.write_text(f'[tables.shop.{name}]\n[lake]\npath = "{name}"\n[alerts]\nreports = "{tmp_path / name}"\n')
        found[name] = component(settings=str(file))
    for name, definitions in found.items():
        keys = definitions.resolve_asset_graph().get_all_asset_keys()
        assert {key for key in keys if key.path[-1].endswith("_view")} == {key_of(f"shop.{name}", "view")}
        resources = definitions.resources or {}
        assert {resource.settings.lake.path for resource in resources.values()} == {name}
        result = materialize([rows], resources={"lake": resources["lake"]})
        [report] = (tmp_path / name).iterdir()
        assert result.run_id in report.name
    assert dict(os.environ) == environment

"""The reports of runs of assets."""

from dagster import (
    AssetKey,
    ExecuteInProcessResult,
)


def numbers(result: ExecuteInProcessResult, key: AssetKey) -> dict[str, object]:
    [event] = [e for e in result.get_asset_materialization_events() if e.asset_key == key]
    return {name: value.value for name, value in event.materialization.metadata.items()}

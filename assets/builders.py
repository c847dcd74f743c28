"""The builders of assets and checks: the attributes that those of all stages have in common.

Each is a decorator of the function that does the work, and retries failures that may pass (`failures.retried`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import dagster as dg

from writetime.lake.followed_tables import FollowedTable
from writetime_dagster.assets.failures import retried
from writetime_dagster.assets.naming import PARTS, documents, key_of, pool_of


def written_asset(
    key: dg.AssetKey,
    *,
    deps: Sequence[dg.AssetKey],
    kinds: set[str],
    blocking: Mapping[str, str] | None = None,
    checks: Mapping[str, str] | None = None,
    **attributes: Any,
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Return a decorator of the function that materializes an asset.

    Args:
        key: the asset's.
        deps: the assets that it reads.
        kinds: the programs and formats that it uses.
        blocking: the descriptions of the checks that stop a commit, by their names.
        checks: the descriptions of its other checks.
        attributes: other arguments of Dagster's `asset`.
    """
    described = [(blocking or {}, True), (checks or {}, False)]
    specs = [
        dg.AssetCheckSpec(name, asset=key, blocking=stops, description=description)
        for some, stops in described
        for name, description in some.items()
    ]

    def build(work: Callable[..., Any]) -> dg.AssetsDefinition:
        return dg.asset(key=key, deps=deps, kinds=kinds, check_specs=specs, **attributes)(retried(work))

    return build


def table_asset(
    table: FollowedTable,
    part: str,
    *,
    after: Iterable[str],
    files: Sequence[str],
    columns: Mapping[str, Any] | None = None,
    **attributes: Any,
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Return a decorator of the function that materializes a part of a followed table. It has its own pool.

    Args:
        table: the table.
        part: one of `PARTS`.
        after: the parts that it reads.
        files: its documents.
        columns: the metadata with its columns.
        attributes: other arguments of `written_asset`.
    """
    return written_asset(
        key_of(table.name, part),
        **{
            "deps": [key_of(table.name, before) for before in after],
            "group_name": PARTS[part],
            "pool": pool_of(table.name, part),
            "metadata": {**(columns or {}), **documents(*files)},
            **attributes,
        },
    )


def observed_asset(spec: dg.AssetSpec, name: str | None = None) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Return a decorator of the function that observes an asset; the step's `name` is by default the function's."""

    def build(work: Callable[..., Any]) -> dg.AssetsDefinition:
        return dg.multi_observable_source_asset(name=name, specs=[spec])(retried(work))

    return build


def check_of(
    key: dg.AssetKey, description: str, name: str | None = None
) -> Callable[[Callable[..., Any]], dg.AssetChecksDefinition]:
    """Return a decorator of the function that checks an asset outside of its runs; `name`: default the function's."""

    def build(work: Callable[..., Any]) -> dg.AssetChecksDefinition:
        return dg.asset_check(asset=key, name=name, description=description)(retried(work))

    return build

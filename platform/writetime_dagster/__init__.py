"""The platform in Dagster: `writetime_dagster.assets` and `writetime_dagster.resources`.

Both are folders at the top of the repository, and are links here. In a wheel they are folders of this package.
"""

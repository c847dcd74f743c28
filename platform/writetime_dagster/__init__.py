"""The platform in Dagster: `writetime_dagster.assets`, `writetime_dagster.resources`, and the component for projects.

Both are folders at the top of the repository, and are links here. In a wheel they are folders of this package.
"""

from writetime_dagster.assets.component import WritetimeComponent

__all__ = ["WritetimeComponent"]

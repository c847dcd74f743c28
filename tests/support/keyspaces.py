"""Schema files for tests that need a keyspace without tables of ingest. Each table costs a tenth of a second."""

import shutil
from pathlib import Path

from writetime.clients import database


def keyspace_alone(folder: Path) -> Path:
    """Put the schema file of the keyspace into a folder."""
    shutil.copy(database.schema_folder() / "001_keyspace.cql", folder)
    return folder

"""Archives the classes that Spark's Java loads: `python -m tools.spark_archive FILE`, once for an installation.

A Java that starts with the archive neither reads nor checks these classes in 200 jars: Spark then starts with half the
CPU time. Java ignores a missing archive, and one of another Java or of other jars.
"""

import os
import sys
import tempfile
from pathlib import Path

from writetime.clients.spark import spark_session
from writetime.core.config import Settings


def main(archive: Path) -> None:
    """Start Spark, use it as the platform does, and let its Java write what it has loaded when it ends."""
    archive.unlink(missing_ok=True)
    # It would name each class that it leaves out. Code that is optimised for long runs is not archived.
    options = ["-Xlog:disable", "-XX:TieredStopAtLevel=1", f"-XX:ArchiveClassesAtExit={archive}"]
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join(options)
    with tempfile.TemporaryDirectory() as folder, spark_session(Settings()) as spark:
        table = f"{folder}/table"
        for _ in range(2):
            spark.range(10).write.format("delta").mode("append").save(table)
        spark.read.format("delta").load(table).orderBy("id").collect()
        spark.sparkContext.parallelize(range(2), 2).map(str).collect()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

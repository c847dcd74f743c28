"""Archives the classes that Spark's Java loads: `python -m tools.spark_archive FILE`, once per installation.

With the archive, Java need not read and check these classes in 200 jars, so Spark starts with half the CPU time. Java
ignores an archive that is missing, or that another Java or other jars made.
"""

import os
import sys
import tempfile
from pathlib import Path

from writetime.clients.spark import spark_session
from writetime.core.config import Settings


def main(archive: Path) -> None:
    """Start Spark, and use it as the platform does. Its Java writes the classes that it has loaded when it ends."""
    archive.unlink(missing_ok=True)
    # Java would print each class that it leaves out. The archive has no compiled code, so optimising it is no use.
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

"""The options with which Java 17 runs the classes of Cassandra's server and tools."""

# Module access that Cassandra 5.0 needs on Java 17 (its own conf/jvm17-server.options opens the same packages).
_EXPORTS = [
    "java.base/jdk.internal.misc",
    "java.base/java.lang.ref",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.rmi/sun.rmi.transport.tcp",
    "java.sql/java.sql",
    "jdk.unsupported/sun.misc",
]
_OPENS = [
    *(f"java.base/java.{p}" for p in ["io", "lang", "lang.module", "lang.reflect", "math", "net", "nio", "util"]),
    *(f"java.base/java.util.{p}" for p in ["concurrent", "concurrent.atomic"]),
    *(f"java.base/jdk.internal.{p}" for p in ["loader", "math", "module", "ref", "reflect", "util.jar"]),
    "java.base/sun.nio.ch",
    "jdk.management/com.sun.management.internal",
]


def module_options() -> list[str]:
    """Return the options of a Java 17 that runs Cassandra's classes."""
    exports = [f"--add-exports={p}=ALL-UNNAMED" for p in _EXPORTS]
    return exports + [f"--add-opens={p}=ALL-UNNAMED" for p in _OPENS]

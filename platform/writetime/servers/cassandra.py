"""Apache Cassandra 5.0 on loopback, run from the jars of `cassandra-all` with its own small configuration."""

import json
import os

from cassandra.cluster import Cluster

from writetime.clients.database import DRIVER_FAULTS, driver_reason
from writetime.core.config import Settings
from writetime.runtime import jars
from writetime.runtime.cassandra_java import module_options
from writetime.runtime.java import java
from writetime.servers.process import EmbeddedServer, free_port, port_answers
from writetime.servers.properties import logback_option


class CassandraServer(EmbeddedServer):
    """One Cassandra node. Change data capture is on; the commit log is synced before a write is acknowledged."""

    name = "cassandra"

    def __init__(self, settings: Settings) -> None:
        embedded = settings.embedded
        ports = {
            "cassandra.port": settings.cassandra.port,
            "embedded.cassandra_storage_port": embedded.cassandra_storage_port,
        }
        super().__init__(embedded.home, ports, embedded.start_timeout_seconds)
        self._settings = settings
        # A different one for each start; `writetime snapshot` reads it from the node itself.
        self.jmx_port = 0

    def command(self) -> list[str]:
        """Write `cassandra.yaml` and return the command line of `CassandraDaemon`."""
        config = self.folder / "cassandra.yaml"
        # JSON is YAML, so no YAML library is needed.
        config.write_text(json.dumps(self.configuration(), indent=2))
        heap = f"{self._settings.embedded.cassandra_heap_mb}m"
        self.jmx_port = free_port()
        return [
            str(java()),
            *module_options(),
            "-Djdk.attach.allowAttachSelf=true",
            f"-Dcassandra.config={config.as_uri()}",
            f"-Dcassandra.storagedir={self.folder}",
            logback_option(self.folder),
            "-Dcassandra-foreground=yes",
            "-Dcassandra.ring_delay_ms=1000",
            # The node's clock for timeouts would otherwise wake 500 times per second, which is half of an idle node's
            # CPU time.
            "-Dcassandra.approximate_time_precision_ms=50",
            # The time for which the node continues after it has announced its shutdown to other nodes.
            "-Dcassandra.shutdown_announce_in_ms=100",
            "-Dcassandra.skip_wait_for_gossip_to_settle=0",
            f"-Dcassandra.jmx.local.port={self.jmx_port}",
            "-Dcom.sun.management.jmxremote.authenticate=false",
            "-XX:+UseG1GC",
            "-XX:+CrashOnOutOfMemoryError",
            f"-Xms{heap}",
            f"-Xmx{heap}",
            "-cp",
            os.pathsep.join(map(str, jars.fetch("cassandra"))),
            "org.apache.cassandra.service.CassandraDaemon",
        ]

    def fault(self) -> str | None:
        """Return why the node does not answer CQL; None if it does."""
        port = self._settings.cassandra.port
        if not port_answers(port, self.address):
            return f"nothing listens at {self.address}:{port}"
        cluster = Cluster([self.address], port=port, connect_timeout=5)
        try:
            cluster.connect()
        except DRIVER_FAULTS as e:
            return driver_reason(e)
        finally:
            cluster.shutdown()
        return None

    def configuration(self) -> dict[str, object]:
        """Return the content of `cassandra.yaml`."""
        embedded = self._settings.embedded
        folders = {
            "data_file_directories": [str(self.folder / "data")],
            "commitlog_directory": str(self.folder / "commitlog"),
            "cdc_raw_directory": str(self.folder / "cdc_raw"),
            "hints_directory": str(self.folder / "hints"),
            "saved_caches_directory": str(self.folder / "saved_caches"),
        }
        sync = {"commitlog_sync": embedded.commitlog_sync}
        if embedded.commitlog_sync == "periodic":
            sync["commitlog_sync_period"] = "1000ms"
        seeds = {"seeds": f"{self.address}:{embedded.cassandra_storage_port}"}
        return {
            "cluster_name": "writetime",
            "num_tokens": 16,
            "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
            "endpoint_snitch": "SimpleSnitch",
            "seed_provider": [{"class_name": "org.apache.cassandra.locator.SimpleSeedProvider", "parameters": [seeds]}],
            "listen_address": self.address,
            "rpc_address": self.address,
            "storage_port": embedded.cassandra_storage_port,
            "native_transport_port": self._settings.cassandra.port,
            "cdc_enabled": True,
            "commitlog_segment_size": "8MiB",
            "auto_snapshot": False,
            # By default, each written table takes 2 MiB of the heap at once, and with 200 tables the node fails.
            "memtable_allocation_type": "unslabbed_heap_buffers",
            "concurrent_reads": 16,
            "concurrent_writes": 32,
            **folders,
            **sync,
        }

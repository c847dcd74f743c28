"""The metrics of the programs are those of the documents."""

import re
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

from tests.support.documents import ROOT, documents
from writetime.capture import metrics as agent_metrics
from writetime.capture.metrics import AgentMetrics
from writetime.capture.progress import Totals
from writetime.core import config
from writetime.follow.metrics import FollowMetrics
from writetime.http.metrics import IngressMetrics
from writetime.http.protocol import Gate
from writetime.http.work_items import ItemsEndpoint
from writetime.ingest import metrics as sink_metrics
from writetime.ingest.metrics import SinkMetrics
from writetime.workqueue import metrics as worker_metrics
from writetime.workqueue.metrics import WorkerMetrics

NAME = r"\bwritetime_(?:ingress|sink|capture|worker|follow)_\w+"
ALSO = "These metrics are also available: "


@pytest.fixture
def registries(monkeypatch: pytest.MonkeyPatch) -> list[CollectorRegistry]:
    """The registries of all programs."""
    found: list[CollectorRegistry] = []

    def serve(port: int, addr: str, registry: CollectorRegistry) -> None:
        found.append(registry)

    for module in (agent_metrics, sink_metrics, worker_metrics):
        monkeypatch.setattr(module, "start_http_server", serve)
    monkeypatch.setattr(sink_metrics, "topic_retention_seconds", lambda *_: None)
    settings = config.load(capture={"metrics_port": 1}, ingest={"sink_metrics_port": 1})
    AgentMetrics(settings, Totals())
    SinkMetrics(settings)
    WorkerMetrics("127.0.0.1", 1)
    ingress, follow = IngressMetrics(), CollectorRegistry()
    ItemsEndpoint(settings, 1, Gate(settings, 1, ingress), ingress.registry)
    follow.register(FollowMetrics(list, dict, int))
    return [*found, ingress.registry, follow]


def documented() -> Iterator[str]:
    """The metrics that documents name in full, and those that operations lists without the program's prefix."""
    for document in documents():
        yield from re.findall(NAME, (ROOT / document).read_text())
    _, _, rest = (ROOT / "docs/operations.md").read_text().partition(ALSO)
    for program in rest.partition(".")[0].split(";"):
        first, *others = re.findall(r"`(\w+)`", program)
        [prefix] = re.findall(r"writetime_[a-z]+_", first)
        yield from (prefix + name for name in others)


def test_documents_have_the_metrics_of_the_code(registries: list[CollectorRegistry]) -> None:
    metrics = {metric.name for registry in registries for metric in registry.collect()}
    assert {name.removesuffix("_total") for name in documented()} == metrics

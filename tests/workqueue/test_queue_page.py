"""The page of queues and its calls, without servers, on tables in memory and in simulated time.

Oracle: the payloads, keys and errors as the tests wrote them.
"""

import base64
import hashlib
import json
import random
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import quote
from uuid import UUID

import httpx
import pytest
from pydantic import SecretStr

from tests.workqueue.conftest import with_queue
from tests.workqueue.memory import MemoryDatabase, MemoryTables, memory_enqueuer, run_virtually
from writetime.clients.prepared_statements import UnknownWrite
from writetime.core.config import Settings
from writetime.http.ingress import Ingress
from writetime.http.queue_page import page
from writetime.http.work_items import Connected
from writetime.workqueue.controls import AsyncControls
from writetime.workqueue.enqueue import NewItem
from writetime.workqueue.items import ItemPartition, Status, first_id
from writetime.workqueue.queue_tables import DeadItem, ItemUpdate, UnknownQueue

START = 1_700_000_000_000
TOKEN = "a-token-of-sixteen-characters"
QUEUE = 'a "queue" / of <b>\'s'
XSS = "<script>document.title = 'owned'</script>"
DATA = [
    "names",
    f"{quote(QUEUE, safe='')}/summary",
    "q/items",
    f"q/items/{UUID(int=7 << 76)}/history",
    "q/dead-letters",
]


class FakeTables(MemoryTables):
    """A queue in memory, beside which no other one is known."""

    async def known_queue(self, name: str) -> tuple[int, int]:
        if name != QUEUE:
            raise UnknownQueue(f"no queue {name} was ever used")
        return await super().known_queue(name)


class Site:
    """An ingress without servers, whose database is in memory, and a browser's calls."""

    def __init__(self, patch: pytest.MonkeyPatch, tables: type[MemoryTables]) -> None:
        settings = with_queue(Settings(), QUEUE, {"shards": 2})
        ingest = settings.ingest.model_copy(update={"tokens": [SecretStr(TOKEN)]})
        settings = settings.model_copy(update={"ingest": ingest})
        self.database = MemoryDatabase(random.Random(1), START)
        self.tables = tables(self.database, shards=2)
        app = Ingress(settings)
        self.enqueuer = memory_enqueuer(self.tables, settings)

        async def connected() -> Connected:
            return Connected(self.tables, self.enqueuer, AsyncControls(self.tables, settings))

        patch.setattr(app._items, "connected", connected)
        transport = httpx.ASGITransport(app=app)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        self.client = httpx.AsyncClient(transport=transport, base_url="http://test/queues/", headers=headers)

    async def get(self, path: str, code: int = 200, /, **query: str | int) -> dict:
        """A call about the queue."""
        answer = await self.client.get(f"{quote(QUEUE, safe='')}/{path}", params=query)
        assert answer.status_code == code, answer.text[:500]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Content-Type"] == "application/json"
        return answer.json()

    async def enqueue(self, *items: NewItem) -> list[UUID]:
        return await self.enqueuer.enqueue(QUEUE, list(items))

    def place(self, item_id: UUID) -> ItemPartition:
        """Where an item is."""
        return next(place for place, items in self.database.items.items() if item_id in items)

    def settle(self, item_id: UUID, status: Status, error: str | None = None, result: str | None = None) -> None:
        """Write the state of an item as a worker does."""
        at = START + 90_000
        update = ItemUpdate(item_id, status, at, 3, at + 5_000, "worker-1", error, result)
        self.database.rows.setdefault(self.place(item_id), {})[item_id] = update
        if status is Status.DEAD:
            place, entry = self.place(item_id), self.database.items[self.place(item_id)][item_id]
            letter = DeadItem(QUEUE, place.shard, item_id, entry.key, entry.payload, 3, error or "", at)
            self.database.letters[item_id] = letter


Run = Callable[..., None]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a test with a site, in simulated time."""

    def run(work: Callable[[Site], Awaitable[None]], tables: type[MemoryTables] = FakeTables) -> None:
        async def with_site() -> None:
            site = Site(monkeypatch, tables)
            async with site.client:
                await work(site)

        run_virtually(with_site())

    return run


# -- the page


def test_the_page_has_no_data_and_needs_no_token_but_all_its_calls_do(run: Run) -> None:
    async def work(site: Site) -> None:
        await site.enqueue(NewItem(XSS))
        del site.client.headers["Authorization"]
        answer = await site.client.get("http://test/queues")
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert answer.content == page()[0]
        assert TOKEN not in answer.text
        for path in DATA:
            for headers in ({}, {"Authorization": "Bearer wrong-token-of-16"}):
                refused = await site.client.get(path, headers=headers)
                assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer"), path
        for method, path in (("PUT", "q/pause"), ("DELETE", "q/items"), ("POST", "q/redrive"), ("DELETE", "q/items/1")):
            assert (await site.client.request(method, path)).status_code == 401

    run(work)


def test_the_policy_permits_the_page_itself_and_nothing_else() -> None:
    html, headers = page()
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    text = html.decode()
    for name in ("script", "style"):
        [source] = re.findall(f"<{name}>(.*?)</{name}>", text, re.DOTALL)
        assert (
            policy[f"{name}-src"] == f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"
        )
    assert {name: policy[name] for name in ("default-src", "connect-src", "base-uri", "form-action")} == {
        "default-src": "'none'",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert policy["frame-ancestors"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert (headers["X-Content-Type-Options"], headers["Referrer-Policy"]) == ("nosniff", "no-referrer")
    # Attributes of style and of events would need other permissions, and other hosts are not there.
    assert not re.search(r"\s(style|on\w+)=|https?:|\bsrc=", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text)


# -- its calls


def test_counts_ages_and_rates_of_a_queue(run: Run) -> None:
    async def work(site: Site) -> None:
        one, two, three, four = await site.enqueue(*(NewItem(n, f"k{n}") for n in range(4)))
        await site.enqueue(NewItem(5, delay_seconds=7200))
        site.settle(one, Status.COMPLETED, result="1")
        site.settle(two, Status.RETRY, error="ValueError")
        site.settle(three, Status.DEAD, error="ValueError")
        await site.tables.pause(QUEUE, None)
        await site.tables.pause(QUEUE, XSS)
        found = await site.get("summary")
        expected = {"waiting": 1, "delayed": 1, "retry": 1, "processing": 0, "complete": True, "due": 4, "allDue": True}
        assert {name: found[name] for name in expected} == expected
        assert (found["oldestItemId"], found["mostAttempts"], found["deadLetters"]) == (str(two), 3, 1)
        assert (found["pausedKeys"], found["pausedKeysCount"]) == ([XSS], 1)
        assert START <= found["pausedAt"] <= found["at"]
        assert 0 < found["oldestSeconds"] < 60
        later = await site.get("summary", since=found["at"])
        assert (later["due"], later["since"]) == (0, found["at"])
        site.settle(four, Status.COMPLETED)
        assert (await site.get("summary", since=10**30))["waiting"] == 0

    run(work)


def test_an_item_of_each_state_is_counted_and_listed(run: Run) -> None:
    """Also one that sleeps; finished items are in the list of their status only."""

    async def work(site: Site) -> None:
        ids = await site.enqueue(*(NewItem(n, f"k{n}") for n in range(len(Status))))
        for item_id, status in zip(ids, Status, strict=True):
            site.settle(item_id, status)
        found = await site.get("summary")
        unfinished = {status: item_id for item_id, status in zip(ids, Status, strict=True) if not status.final}
        assert {status: found[status.lower()] for status in unfinished} == dict.fromkeys(unfinished, 1)
        listed = (await site.get("items"))["items"]
        assert {item["itemId"]: item["status"] for item in listed} == {
            str(item_id): status.lower() for status, item_id in unfinished.items()
        }
        for item_id, status in zip(ids, Status, strict=True):
            [item] = (await site.get("items", status=status.lower()))["items"]
            assert item["itemId"] == str(item_id)

    run(work)


def test_a_count_of_many_items_is_a_lower_bound_and_says_so(run: Run) -> None:
    async def work(site: Site) -> None:
        for _ in range(30):
            await site.enqueue(*(NewItem(n, "k") for n in range(400)))
        found = await site.get("summary")
        assert (found["waiting"], found["complete"], found["mostCounted"]) == (10_000, False, 10_000)
        assert (found["due"], found["allDue"]) == (1_000, False)

    run(work)


def test_a_list_has_every_item_of_a_status_once_in_parts(run: Run) -> None:
    async def work(site: Site) -> None:
        ids = await site.enqueue(*(NewItem(n, f"k{n % 3}") for n in range(180)))
        for item_id in ids[::2]:
            site.settle(item_id, Status.COMPLETED)
        await site.tables.insert_cancels(site.place(ids[1]), [ids[1]])
        listed, after = [], {}
        while after is not None:
            part = await site.get("items", **after)
            assert len(part["items"]) <= 50
            listed += part["items"]
            after = part["after"] and {"after": part["after"]}
        assert sorted(item["itemId"] for item in listed) == sorted(map(str, ids[1::2]))
        assert [item["itemId"] for item in listed if item["cancelling"]] == [str(ids[1])]
        of_key = (await site.get("items", key="k1", status="completed", withinSeconds=3600))["items"]
        assert [UUID(item["itemId"]) for item in of_key] == [i for n, i in enumerate(ids) if n % 6 == 4][:50]
        assert {(item["status"], item["key"], item["attempts"]) for item in of_key} == {("completed", "k1", 3)}

    run(work)


def test_a_part_of_a_list_reads_few_items_although_none_of_them_fits(run: Run) -> None:
    async def work(site: Site) -> None:
        for _ in range(12):
            await site.enqueue(*(NewItem(n, "k") for n in range(400)))
        part = await site.get("items", status="dead")
        assert (part["items"], part["read"] <= 2_000) == ([], True)
        assert part["after"]
        read = part["read"]
        while part["after"]:
            part = await site.get("items", status="dead", after=part["after"])
            read += part["read"]
        assert read == 4_800

    run(work)


def test_the_history_of_an_item_has_its_values_as_text(run: Run) -> None:
    async def work(site: Site) -> None:
        [item_id] = await site.enqueue(NewItem({"html": XSS, "long": "é" * 20_000}, XSS, 1.5, time_limit_seconds=7))
        [found] = (await site.get(f"items/{item_id}/history"))["histories"]
        assert (found["status"], found["key"], found["timeLimitSeconds"], found["delayed"]) == ("delayed", XSS, 7, True)
        whole = json.dumps({"html": XSS, "long": "é" * 20_000}, separators=(",", ":"), ensure_ascii=False)
        assert found["payload"] == {"text": whole[:10_000], "characters": len(whole), "whole": False}
        site.settle(item_id, Status.DEAD, error=f"ValueError: {XSS}")
        [found] = (await site.get(f"items/{item_id}/history", key=XSS))["histories"]
        assert (found["status"], found["worker"], found["attempts"]) == ("dead", "worker-1", 3)
        assert found["error"]["text"] == f"ValueError: {XSS}"
        assert (found["changedAt"], found["deadAt"], found["redrivenAs"]) == (START + 90_000, START + 90_000, None)
        # Its bucket is dropped, and its letter stays.
        site.database.items.clear()
        site.database.rows.clear()
        [found] = (await site.get(f"items/{item_id}/history"))["histories"]
        assert (found["status"], found["payload"]["characters"]) == ("dead", len(whole))
        await site.get(f"items/{first_id(START)}/history", 404)

    run(work)


def test_bytes_that_are_no_text_are_shown_as_escapes(run: Run) -> None:
    """Another program has written them."""

    async def work(site: Site) -> None:
        [item_id] = await site.enqueue(NewItem(1, "k"))
        entry = site.database.items[site.place(item_id)][item_id]
        entry.payload = entry.key = b"\xed\xa0\x80 \x00".decode(errors="surrogateescape")
        site.settle(item_id, Status.RETRY, error=b"\xff".decode(errors="surrogateescape"))
        [found] = (await site.get(f"items/{item_id}/history"))["histories"]
        assert [found["payload"]["text"], found["key"], found["error"]["text"]] == [
            *["\\xed\\xa0\\x80 \0"] * 2,
            "\\xff",
        ]
        assert (await site.get("items"))["items"][0]["key"] == "\\xed\\xa0\\x80 \0"

    run(work)


def test_dead_letters_are_listed_the_newest_first_and_only_those_that_count(run: Run) -> None:
    async def work(site: Site) -> None:
        ids = await site.enqueue(*(NewItem(n, f"k{n}") for n in range(60)))
        for n, item_id in enumerate(ids):
            site.settle(item_id, Status.DEAD, error=f"error {n} " + "x" * 1_000)
        # A worker that had lost its shard wrote the letter.
        site.settle(ids[59], Status.PROCESSING)
        first = await site.get("dead-letters")
        second = await site.get("dead-letters", start=first["start"])
        listed = [letter["itemId"] for part in (first, second) for letter in part["letters"]]
        assert listed == [str(item_id) for item_id in reversed(ids[:59])]
        assert (len(first["letters"]), second["start"]) == (49, None)
        error = f"error 58 {'x' * 1_000}"
        assert first["letters"][0]["error"] == {"text": error[:300], "characters": len(error), "whole": False}
        answer = await site.client.post(f"{quote(QUEUE, safe='')}/redrive", params={"key": "k58"})
        assert answer.json() == {"redriven": 1}
        redriven = (await site.get("dead-letters"))["letters"][0]
        assert redriven["redrivenAs"] == str(site.database.letters[ids[58]].redriven_as)

    run(work)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("summary?since=x", 400),
        ("items?status=late", 400),
        ("items?key=", 400),
        ("items?withinSeconds=-1", 400),
        ("items?after=x", 400),
        (f"items?after=-1_0_{UUID(int=1)}", 400),
        (f"items?after={10**30}_0_{UUID(int=1)}", 400),
        ("dead-letters?start=7", 400),
        ("items/7/history", 400),
    ],
)
def test_a_wrong_call_is_refused(run: Run, path: str, status: int) -> None:
    async def work(site: Site) -> None:
        answer = await site.client.get(f"{quote(QUEUE, safe='')}/{path}")
        assert (answer.status_code, answer.json()["status"]) == (status, "error")

    run(work)


def test_an_unknown_queue_and_a_silent_database_have_their_answers(run: Run) -> None:
    class SilentTables(FakeTables):
        async def buckets(self, *_: object, **__: object) -> dict:
            raise UnknownWrite("OperationTimedOut")

    async def work(site: Site) -> None:
        for path in DATA[2:]:
            assert (await site.client.get(path)).status_code == 404, path
        await site.enqueue(NewItem(1))
        answer = await site.client.get(DATA[1])
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")

    run(work, SilentTables)


def test_the_names_of_queues_are_listed_in_parts(run: Run) -> None:
    async def work(site: Site) -> None:
        names = sorted(f"queue {n}" for n in range(60))
        site.database.registry.update({(name, 0, 0): None for name in names})
        first = (await site.client.get("names")).json()
        assert first == {"queues": names[:50], "more": True}
        assert (await site.client.get("names", params={"after": names[49]})).json() == {
            "queues": names[50:],
            "more": False,
        }

    run(work)


def test_the_script_and_the_style_are_files_of_the_package() -> None:
    folder = Path(__file__).parents[2] / "platform/writetime/http"
    assert {path.suffix for path in folder.glob("queue_page.*")} == {".py", ".html", ".css", ".js"}

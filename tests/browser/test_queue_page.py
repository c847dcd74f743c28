"""The page `/queues` of a real ingress in a real browser: a user sees items of a real database, and acts by clicks.

Oracle: what the tests enqueued; CQL and the commands `writetime queue` for what the clicks did.
"""

import json
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import pytest
from cassandra.cluster import Session
from click.testing import CliRunner
from pydantic import SecretStr

from tests.support.browser import browsing, needs_chromium
from tests.support.settings import write_settings
from tests.support.waiting import PATIENCE_SECONDS
from writetime.cli.main import main
from writetime.clients import database
from writetime.core.config import Queue, Settings
from writetime.servers.process import free_port
from writetime.workqueue import Item, Worker

pytestmark = [needs_chromium, pytest.mark.long]

_T = TypeVar("_T")
TOKEN = "a-token-of-sixteen-characters"
# It would be seen: the title changes, or a request is made.
MARKUP = "</pre><script>document.title = 'owned'</script><img src=/owned onerror=\"document.title = 'owned'\">'\"&amp;"


def in_thread(work: Callable[[], _T]) -> _T:
    """Run outside of the thread of playwright, which has an event loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


@dataclass
class Site:
    """An ingress as a program, a session of its database, and a client with a token."""

    settings: Settings
    session: Session
    client: httpx.Client

    def enqueue(self, queue: str, *items: dict[str, Any]) -> list[str]:
        """Enqueue items, and return their ids."""
        answer = self.client.post(f"/queues/{quote(queue, safe='')}/items", json=items)
        assert answer.status_code == 202, answer.text
        return answer.json()["itemIds"]

    def command(self, *arguments: str) -> Any:
        """Run a command that prints JSON."""
        result = in_thread(lambda: CliRunner().invoke(main, ["queue", *arguments]))
        assert result.exit_code == 0, result.output
        return json.loads(result.output)

    def work(self, queue: str, handler: Callable[[Item], Any]) -> None:
        """Work until no item is left."""
        in_thread(lambda: Worker(self.settings, {queue: handler}).run(until_idle=True))

    def rows(self, columns: str, table: str, queue: str) -> list[Any]:
        """Rows of a queue by CQL, without those that have only static columns."""
        query = f"SELECT item_id, {columns} FROM {self.settings.cassandra.keyspace}.{table} WHERE queue = %s"
        return [row for row in self.session.execute(f"{query} ALLOW FILTERING", [queue]) if row.item_id]


@pytest.fixture(scope="module")
def site(
    cassandra: Settings, make_keyspace: Callable[[Settings], None], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """An ingress without a broker: items need none."""
    folder = tmp_path_factory.mktemp("queue_page")
    changes: dict[str, dict[str, Any]] = {
        "cassandra": {"keyspace": f"page_{uuid.uuid4().hex[:8]}"},
        "ingest": {"port": free_port(), "tokens": [SecretStr(TOKEN)]},
        "kafka": {"bootstrap_servers": "127.0.0.1:1"},
        "workqueue": {"lease_seconds": 15.0, "queues": {}},
    }
    parts = {name: getattr(cassandra, name).model_copy(update=change) for name, change in changes.items()}
    settings = cassandra.model_copy(update=parts)
    make_keyspace(settings)
    database.apply_schema(settings)
    write_settings(settings, folder / "writetime.toml")
    with pytest.MonkeyPatch.context() as patch, database.connect(settings) as session:
        patch.setenv("WRITETIME_CONFIG", str(folder / "writetime.toml"))
        command = [sys.executable, "-m", "writetime", "serve"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                address = process.stdout.readline().split()[-1]
                headers = {"Authorization": f"Bearer {TOKEN}"}
                with httpx.Client(base_url=address, headers=headers, timeout=PATIENCE_SECONDS) as client:
                    yield Site(settings, session, client)
            finally:
                process.terminate()


@dataclass
class User:
    """A browser's page, and what it has asked for."""

    page: Any
    requests: list[str]
    questions: list[str]

    def open(self, **place: str) -> None:
        """Open a view as a user who has entered the token."""
        # Without this, only the address's hash would change, and the view before would still be there.
        self.page.goto("about:blank")
        self.page.goto("/queues#" + "&".join(f"{name}={quote(value, safe='')}" for name, value in place.items()))
        if self.page.evaluate("sessionStorage.length") == 0:
            self.page.get_by_label("Token of the ingress").fill(TOKEN)
            self.page.get_by_role("button", name="Show", exact=True).click()
            self.page.get_by_role("button", name="Forget the token").wait_for()
        self.page.locator("main > *").first.wait_for()

    def click(self, name: str) -> None:
        """Click a button."""
        self.page.get_by_role("button", name=name, exact=True).click()

    def submit(self, button: str, **fields: str) -> None:
        """Fill the fields of a form, and click its button."""
        form = self.page.locator("form", has=self.page.get_by_role("button", name=button, exact=True))
        for name, value in fields.items():
            form.locator(f"[name={name}]").fill(value)
        form.get_by_role("button", name=button, exact=True).click()

    def sees(self, text: str) -> None:
        """Wait until the page shows a text."""
        self.page.wait_for_function("text => document.body.innerText.includes(text)", arg=text)

    def new_ids(self, known: Collection[str] = ()) -> list[str]:
        """Wait until a list has items that are not known, and return all of its ids."""
        wait = "known => (id => id && !known.includes(id.textContent))(document.querySelector('.id'))"
        self.page.wait_for_function(wait, arg=[*known])
        return self.page.locator(".id").all_inner_texts()

    def cells(self, row: int = 0) -> list[str]:
        """The texts of a row of the first table."""
        return self.page.locator("tbody tr").nth(row).locator("td").all_inner_texts()

    def cell(self, head: str) -> str:
        """The value of the first row under a heading."""
        return self.cells()[self.page.locator("thead th").all_inner_texts().index(head)]


@pytest.fixture
def user(site: Site, request: pytest.FixtureRequest) -> Iterator[User]:
    with browsing(1300, 1000, base_url=str(site.client.base_url).rstrip("/")) as context:
        context.set_default_timeout(PATIENCE_SECONDS * 1000)
        page = context.new_page()
        found = User(page, [], [])
        page.on("request", lambda asked: found.requests.append(asked.url))
        page.on("dialog", lambda dialog: (found.questions.append(dialog.message), dialog.accept()))
        yield found
        if folder := request.config.getoption("--screenshots"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            page.screenshot(path=Path(folder) / f"{request.node.name}.png", full_page=True)


def new_queue(site: Site) -> str:
    """The name of a queue that no other test uses, whose items are tried once."""
    name = f"jobs-{uuid.uuid4().hex[:8]}"
    site.settings.workqueue.queues[name] = Queue(max_attempts=1)
    return name


def test_without_a_token_the_page_has_nothing_but_a_form(site: Site, user: User) -> None:
    queue = new_queue(site)
    site.enqueue(queue, {"payload": 1})
    user.page.goto("/queues")
    token = user.page.get_by_label("Token of the ingress")
    token.wait_for()
    assert user.page.locator("main").inner_html() == ""
    token.fill("a-token-that-nobody-has")
    user.page.get_by_role("button", name="Show").click()
    user.sees("does not know this token")
    assert user.page.locator("main").inner_html() == ""
    assert queue not in user.page.content()
    token.fill(TOKEN)
    user.page.get_by_role("button", name="Show").click()
    user.page.get_by_role("link", name=queue, exact=True).click()
    user.sees("Pause queue")
    # A reload does not ask again, and the token is nowhere in the address or the page.
    user.page.reload()
    user.sees("Pause queue")
    assert TOKEN not in user.page.url + user.page.content()
    user.click("Forget the token")
    token.wait_for()
    assert user.page.locator("main").inner_html() == ""
    assert user.page.evaluate("sessionStorage.length + localStorage.length + document.cookie.length") == 0
    assert {httpx.URL(url).netloc for url in user.requests} == {site.client.base_url.netloc}
    assert not any(TOKEN in url for url in user.requests)


def test_a_queue_and_a_key_are_paused_and_resumed_by_clicks(site: Site, user: User) -> None:
    queue = new_queue(site)
    site.enqueue(queue, *({"payload": n, "key": f"key {n % 2}"} for n in range(5)), {"payload": 9, "delaySeconds": 9e5})
    user.open(queue=queue)
    assert user.cells()[:5] == [queue, "5", "1", "0", "0"]
    user.click("Pause queue")
    user.sees("The queue is paused.")
    user.submit("Pause key", key="key 1")
    user.sees("The key key 1 is paused.")
    state = site.command("inspect", queue)
    assert (state["paused"], state["paused_keys"]) == (True, ["key 1"])
    user.page.locator("span", has_text="key 1").get_by_role("button", name="Resume key").click()
    user.sees("The key key 1 is resumed.")
    user.click("Resume queue")
    user.sees("The queue is resumed.")
    state = site.command("inspect", queue)
    assert (state["paused"], state["paused_keys"]) == (False, [])


def test_an_action_keeps_what_is_typed(site: Site, user: User) -> None:
    """A form that lost its key would cancel all items. A key that is missing is not all keys."""
    queue = new_queue(site)
    site.enqueue(queue, {"payload": 1, "key": "one"}, {"payload": 2, "key": "two"})
    user.open(queue=queue)
    typed = user.page.locator("form", has_text="Cancel items").locator("[name=key]")
    typed.fill("one")
    user.click("Pause queue")
    user.sees("Paused since")
    assert typed.input_value() == "one"
    user.click("Pause key")
    user.click("Cancel items")
    user.sees("Items to be cancelled: 1.")
    assert user.questions == ["Cancel all unfinished items of the key one?"]
    assert site.command("inspect", queue)["paused_keys"] == []
    assert len(user.page.get_by_text("waiting, cancelling").all()) == 1


def test_items_are_seen_and_cancelled_by_clicks(site: Site, user: User) -> None:
    queue = new_queue(site)
    one, two, *others = site.enqueue(queue, *({"payload": {"n": n}, "key": f"key {n // 2}"} for n in range(6)))
    user.open(queue=queue)
    user.page.get_by_role("link", name=two, exact=True).click()
    user.sees('{"n":1}')
    user.click("Cancel item")
    user.sees("The item is cancelling.")
    user.open(queue=queue)
    user.submit("Cancel items", key="key 2")
    user.sees("Items to be cancelled: 2.")
    assert user.questions == ["Cancel all unfinished items of the key key 2?"]
    assert {str(row.item_id) for row in site.rows("shard", "queue_cancels", queue)} == {two, *others[2:]}
    user.open(queue=queue, status="waiting")
    user.sees("waiting, cancelling")
    site.work(queue, lambda item: item.payload["n"] * 2)
    states = {str(row.item_id): row.status for row in site.rows("status", "queue_state", queue)}
    assert states == dict.fromkeys([one, *others[:2]], "COMPLETED") | dict.fromkeys([two, *others[2:]], "CANCELLED")
    assert site.command("item", queue, two)["status"] == "cancelled"
    user.open(queue=queue, item=others[0])
    user.sees("completed")
    table = user.page.locator("table").first.inner_text()
    assert re.search(r"Attempts\s+1\b", table)
    assert re.search(r"Result\s+4\b", table)
    assert user.page.get_by_role("button", name="Cancel item").count() == 0
    user.open(queue=queue, status="cancelled")
    assert sorted(user.new_ids()) == sorted([two, *others[2:]])


def test_dead_letters_are_redriven_by_a_click(site: Site, user: User) -> None:
    queue = new_queue(site)

    def fail(item: Item) -> None:
        raise ValueError(f"no {MARKUP} {item.payload}")

    ids = site.enqueue(queue, {"payload": "luck"}, {"payload": "time"})
    site.work(queue, fail)
    user.open(queue=queue)
    assert user.cell("Dead letters") == "2"
    user.open(queue=queue, status="letters")
    user.sees(f"ValueError: no {MARKUP} luck")
    user.submit("Redrive dead letters", error="luck")
    user.sees("Redriven dead letters: 1.")
    assert len(user.questions) == 1
    redriven = {str(row.item_id): row.redriven_as for row in site.rows("redriven_as", "queue_dead_letters", queue)}
    assert [redriven[item_id] is not None for item_id in ids] == [True, False]
    user.page.get_by_role("link", name=str(redriven[ids[0]]), exact=True).click()
    user.sees("enqueued")
    assert site.command("item", queue, str(redriven[ids[0]]))["status"] == "waiting"
    user.open(queue=queue)
    assert (user.cell("Waiting"), user.cell("Dead letters")) == ("1", "1")
    assert user.page.title() == "Queues"


def test_values_of_items_are_text_and_never_markup(site: Site, user: User) -> None:
    queue = f"{new_queue(site)} {MARKUP}"
    markup, long = site.enqueue(
        queue, {"payload": {MARKUP: MARKUP}, "key": MARKUP}, {"payload": "é" * 100_000, "key": "a" * 1_024}
    )
    user.open()
    user.page.get_by_role("link", name=queue, exact=True).click()
    user.sees("a" * 1_024)
    assert user.page.locator("h2").inner_text() == queue
    assert MARKUP in user.page.locator("td").all_inner_texts()
    user.submit("Pause key", key=MARKUP)
    user.sees(f"The key {MARKUP} is paused.")
    assert site.command("inspect", queue)["paused_keys"] == [MARKUP]
    user.open(queue=queue, item=markup)
    assert json.loads(user.page.locator("pre").first.inner_text()) == {MARKUP: MARKUP}
    user.open(queue=queue, item=long)
    user.sees("The beginning of 100,002 characters.")
    assert user.page.locator("pre").first.inner_text() == '"' + "é" * 9_999
    assert user.page.title() == "Queues"
    assert not any(url.endswith("/owned") for url in user.requests)


@pytest.mark.cassandra_only("ScyllaDB refuses text that is not UTF-8")
def test_bytes_that_are_no_text_are_shown_as_escapes(site: Site, user: User) -> None:
    """Another program has written them: Cassandra takes some that Python does not."""
    queue = new_queue(site)
    [item_id] = site.enqueue(queue, {"payload": 1})
    [place] = site.rows("queue, shard, bucket", "queue_items", queue)
    update = f"UPDATE {site.settings.cassandra.keyspace}.queue_items SET payload = blobAsText(0xeda08262) WHERE "
    where = "queue = %s AND shard = %s AND bucket = %s AND item_id = %s"
    site.session.execute(update + where, [place.queue, place.shard, place.bucket, place.item_id])
    user.open(queue=queue, item=item_id)
    user.sees(r"\xed\xa0\x82b")


def test_the_browser_refuses_what_the_page_must_not_do(user: User) -> None:
    """Also if a fault of the script tried it."""
    user.page.goto("/queues")
    user.page.get_by_label("Token of the ingress").wait_for()
    for attempt in ("document.body.innerHTML = text", "document.write(text)", "document.body.outerHTML = text"):
        with pytest.raises(Exception, match="TrustedHTML"):
            user.page.evaluate(f"text => {{ {attempt} }}", MARKUP)
    # Of the attempts above, some are reported late.
    caught = """document.addEventListener("securitypolicyviolation", ({ effectiveDirective }) =>
        effectiveDirective === "require-trusted-types-for" || done(effectiveDirective));"""
    for attempt, directive in (
        ("fetch('http://127.0.0.2:1/owned').catch(() => {})", "connect-src"),
        ("document.body.append(Object.assign(new Image(), { src: '/owned' }))", "img-src"),
        ("document.body.append(Object.assign(document.createElement('iframe'), { src: '/owned' }))", "frame-src"),
        ("document.body.setAttribute('style', 'color: red')", "style-src-attr"),
    ):
        assert user.page.evaluate(f"() => new Promise(done => {{ {caught} {attempt} }})") == directive
    script = "const made = document.createElement('script'); made.append(\"document.title = 'owned'\");"
    user.page.evaluate(f"() => {{ {script} document.body.append(made) }}")
    assert user.page.title() == "Queues"


def test_a_long_list_has_parts_and_every_item_is_in_one_of_them(site: Site, user: User) -> None:
    queue = new_queue(site)
    ids = site.enqueue(queue, *({"payload": n, "key": f"key {n}"} for n in range(120)))
    user.open(queue=queue)
    found: list[str] = []
    while True:
        part = user.new_ids(found)
        assert len(part) <= 50
        found += part
        more = user.page.get_by_role("link", name="Next items")
        if more.count() == 0:
            break
        more.click()
    assert sorted(found) == sorted(ids)
    user.submit("Show", key="key 7")
    assert user.new_ids({*found} - {ids[7]}) == [ids[7]]

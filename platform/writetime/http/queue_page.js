"use strict";

// Values become text nodes and properties, never HTML: the page's policy refuses strings as HTML.

const TOKEN = "writetime.token";
const REFRESH_SECONDS = 10;
// A look soon after another one, such as that after an action, would have a rate by chance.
const SHORTEST_SECONDS = 5;
const COUNTS = ["waiting", "delayed", "processing", "retry", "sleeping"];
const STATUSES = [...COUNTS, "completed", "dead", "cancelled"];
const main = document.querySelector("main");
const ask = document.getElementById("ask");
const forget = document.getElementById("forget");
const said = document.getElementById("said");
// The summary of each queue that its rates begin with.
const looks = new Map();
// Counts the views that were shown: an answer for an earlier one is dropped.
let turn = 0;
let timer = 0;
// Reads the present view again, without its forms.
let renew = null;

class Unauthorized extends Error {}

async function call(method, path, query = {}) {
  const token = sessionStorage.getItem(TOKEN);
  const given = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== undefined && value !== ""));
  const answer = await fetch(`${path}?${given}`, {
    method,
    headers: token ? { Authorization: `Bearer ${token}` } : {},
    cache: "no-store",
    credentials: "omit",
    redirect: "error",
  });
  const body = await answer.json();
  if (answer.status === 401) throw new Unauthorized();
  if (!answer.ok) throw new Error(body.reason);
  return body;
}

const pathOf = (queue, rest) => `queues/${encodeURIComponent(queue)}/${rest}`;

function say(text, isBad = false) {
  said.textContent = text;
  said.className = isBad ? "bad" : "";
}

function fail(error) {
  if (!(error instanceof Unauthorized)) return say(error.message, true);
  main.replaceChildren();
  looks.clear();
  forget.hidden = true;
  ask.hidden = false;
  say(sessionStorage.getItem(TOKEN) ? "The ingress does not know this token." : "", true);
  sessionStorage.removeItem(TOKEN);
}

// -- elements

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

const link = (text, place, className = "") =>
  element("a", { href: `#${new URLSearchParams(place)}`, className }, text);
const cell = (content, className = "") => element("td", { className }, content ?? "");
const number = (value, isWhole = true) => cell(value.toLocaleString("en") + (isWhole ? "" : "+"), "n");
const row = (...cells) => element("tr", {}, ...cells);
const button = (text, act) => element("button", { type: "button", onclick: act }, text);

function table(heads, rows) {
  const head = row(...heads.map((text) => element("th", {}, text)));
  const body = element("tbody", {}, ...rows);
  return element("div", { className: "scroll" }, element("table", {}, element("thead", {}, head), body));
}

function form(text, fields, act, required = false) {
  const inputs = Object.entries(fields).map(([name, label]) =>
    element("label", {}, `${label} `, element("input", { name, required, size: 16 })),
  );
  const made = element("form", {}, ...inputs, element("button", {}, text));
  made.addEventListener("submit", (event) => {
    event.preventDefault();
    act(Object.fromEntries(new FormData(made)));
  });
  return made;
}

function instant(millis) {
  if (millis === null || millis === undefined) return "";
  const date = new Date(millis);
  return Number.isNaN(date.getTime()) ? `${millis} ms since 1970` : date.toISOString().replace("T", " ");
}

function age(seconds) {
  if (seconds < 120) return `${seconds.toFixed(1)} s`;
  if (seconds < 7200) return `${(seconds / 60).toFixed(1)} min`;
  return `${(seconds / 3600).toLocaleString("en", { maximumFractionDigits: 1 })} h`;
}

function shown(text) {
  if (text === null) return "";
  const length = text.characters.toLocaleString("en");
  const rest = text.whole ? null : element("p", { className: "note" }, `The beginning of ${length} characters.`);
  return element("div", {}, element("pre", {}, text.text), rest);
}

// -- the actions

async function act(work, describe) {
  try {
    say(describe(await work()));
    await renew?.(true);
  } catch (error) {
    fail(error);
  }
}

const pause = (queue, key, method) =>
  act(
    () => call(method, pathOf(queue, "pause"), { key }),
    (done) => {
      const what = key ? `The key ${key}` : "The queue";
      if (!done.changed) return `${what} was ${done.paused ? "paused" : "not paused"} before.`;
      return `${what} is ${done.paused ? "paused" : "resumed"}.`;
    },
  );

function cancelAll(queue, { key, olderThanSeconds }) {
  const every = key || olderThanSeconds ? {} : { all: "true" };
  const which = key ? `of the key ${key}` : olderThanSeconds ? "that are old enough" : "of the queue";
  if (!confirm(`Cancel all unfinished items ${which}?`)) return;
  const query = { key, olderThanSeconds, ...every };
  act(() => call("DELETE", pathOf(queue, "items"), query), (done) => `Items to be cancelled: ${done.cancelling}.`);
}

const cancelItem = (queue, id) =>
  act(() => call("DELETE", pathOf(queue, `items/${id}`), { wait: 3 }), (done) => `The item is ${done.status}.`);

function redrive(queue, { key, error }) {
  if (!confirm("Enqueue the dead letters that fit once more?")) return;
  act(() => call("POST", pathOf(queue, "redrive"), { key, error }), (done) => `Redriven dead letters: ${done.redriven}.`);
}

// -- the views

async function summary(queue) {
  const before = looks.get(queue);
  const found = await call("GET", pathOf(queue, "summary"), { since: before?.at });
  found.ready = found.waiting + found.processing + found.retry + found.sleeping;
  const seconds = (found.at - found.since) / 1000;
  found.dueRate = seconds > 0 ? found.due / seconds : 0;
  // Both looks have seen all items: those that became due in between, and are not there any more, are finished.
  const isLong = seconds >= SHORTEST_SECONDS;
  if (isLong && before?.complete && before.at === found.since && found.complete && found.allDue) {
    found.finishedRate = Math.max(0, (found.due + before.ready - found.ready) / seconds);
  }
  if (!before || isLong) looks.set(queue, found);
  return found;
}

const rate = (value, isWhole = true) =>
  cell(value === undefined ? "–" : value.toLocaleString("en", { maximumFractionDigits: 1 }) + (isWhole ? "" : "+"), "n");

const HEADS = [
  "Queue", "Waiting", "Delayed", "Processing", "Retry", "Sleeping", "Oldest", "Due/s", "Finished/s", "Dead letters",
  "Workers", "Shards owned", "Paused",
];

function summaryRow(queue, found) {
  const paused = found.pausedAt !== null ? "queue" : found.pausedKeysCount ? `keys: ${found.pausedKeysCount}` : "";
  const oldest = age(found.oldestSeconds) + (found.complete ? "" : "+");
  return row(
    cell(link(queue, { queue })),
    ...COUNTS.map((name) => number(found[name], found.complete)),
    cell(found.oldestItemId === null ? "" : link(oldest, { queue, item: found.oldestItemId }), "n"),
    rate(found.dueRate, found.allDue),
    rate(found.finishedRate),
    number(found.deadLetters, found.allDeadLetters),
    number(found.workers),
    cell(`${found.ownedShards}/${found.shards}`, "n"),
    cell(paused, paused && "bad"),
  );
}

const note = (found) =>
  `A number with + is a lower bound: the page reads at most ${found.mostCounted.toLocaleString("en")} items and the ` +
  "newest dead letters of a queue. Finished items per second are known from the second look on.";

async function listView(place, isCurrent) {
  const names = await call("GET", "queues/names", { after: place.after });
  const rows = new Map(names.queues.map((name) => [name, row(cell(link(name, { queue: name })))]));
  const notes = element("p", { className: "note" });
  const last = names.queues.at(-1);
  if (!isCurrent()) return null;
  main.replaceChildren(
    table(HEADS, rows.values()),
    notes,
    element("p", { className: "row" }, names.queues.length ? null : "No queue was ever used.",
      place.after ? link("First queues", {}) : null, names.more ? link("More queues", { after: last }) : null),
  );
  return async () => {
    for (const name of rows.keys()) {
      const found = await summary(name).catch((error) => {
        if (error instanceof Unauthorized) throw error;
        return error;
      });
      if (!isCurrent()) return;
      const failed = found instanceof Error;
      const now = failed ? row(cell(link(name, { queue: name })), cell(found.message, "bad")) : summaryRow(name, found);
      rows.get(name).replaceWith(now);
      rows.set(name, now);
      if (!failed) notes.textContent = note(found);
    }
  };
}

async function queueView(place, isCurrent) {
  const { queue } = place;
  const numbers = element("div");
  const keys = element("div");
  const list = element("div");
  // Forms stay as they are: one that lost its key would act on all items.
  const refresh = async (withList = false) => {
    const found = await summary(queue);
    const listed = withList ? await (place.status === "letters" ? letters(place) : items(place)) : null;
    if (!isCurrent()) return;
    if (listed) list.replaceChildren(...listed);
    const isPaused = found.pausedAt !== null;
    const pausedKeys = found.pausedKeys.map((key) =>
      element("span", {}, `${key} `, button("Resume key", () => pause(queue, key, "DELETE"))));
    numbers.replaceChildren(
      table(HEADS, [summaryRow(queue, found)]),
      element("p", { className: "note" }, note(found)),
      element("div", { className: "row" },
        isPaused ? `Paused since ${instant(found.pausedAt)}.` : null,
        button(isPaused ? "Resume queue" : "Pause queue", () => pause(queue, undefined, isPaused ? "DELETE" : "PUT"))),
    );
    keys.replaceChildren(
      element("div", { className: "row" }, ...pausedKeys),
      found.pausedKeysCount > pausedKeys.length ? `The first of ${found.pausedKeysCount} paused keys.` : "",
    );
  };
  await refresh(true);
  if (!isCurrent()) return null;
  main.replaceChildren(
    element("h2", {}, queue),
    numbers,
    keys,
    form("Pause key", { key: "Key" }, ({ key }) => pause(queue, key, "PUT"), true),
    form("Cancel items", { key: "Key", olderThanSeconds: "Older than seconds" }, (given) => cancelAll(queue, given)),
    form("Redrive dead letters", { key: "Key", error: "Error contains" }, (given) => redrive(queue, given)),
    element("h3", {}, "Items"),
    itemsFilter(place),
    list,
  );
  return refresh;
}

function itemsFilter(place) {
  const options = [["", "unfinished"], ...STATUSES.map((name) => [name, name]), ["letters", "dead letters"]];
  const select = element("select", { name: "status" }, ...options.map(([value, text]) =>
    element("option", { value, selected: value === (place.status ?? "") }, text)));
  const made = form("Show", { key: "Key", withinSeconds: "Within seconds" }, (given) => {
    const wanted = Object.entries(given).filter(([, value]) => value !== "");
    location.hash = new URLSearchParams([["queue", place.queue], ...wanted]).toString();
  });
  made.prepend(element("label", {}, "Status ", select));
  for (const name of ["key", "withinSeconds"]) made.elements[name].value = place[name] ?? "";
  return made;
}

async function items(place) {
  const { queue, status, key, withinSeconds, after } = place;
  const found = await call("GET", pathOf(queue, "items"), { status, key, withinSeconds, after });
  const rows = found.items.map((item) => row(
    cell(link(item.itemId, { queue, item: item.itemId }, "id")),
    cell(instant(item.at)),
    cell(item.key),
    cell(item.cancelling ? `${item.status}, cancelling` : item.status),
    number(item.attempts),
    cell(["retry", "sleeping"].includes(item.status) ? instant(item.nextAttemptAt) : ""),
  ));
  const more = found.after === null ? null : link("Next items", { ...place, after: found.after });
  return [
    table(["Item", "Time (UTC)", "Key", "Status", "Attempts", "Next attempt"], rows),
    element("p", { className: "note" },
      `${rows.length} of the ${found.read} items that were read for this part of the list, in the order of their ` +
      `hours and shards. ${more ? "There may be more." : "This is the end of the list."}`),
    element("p", {}, more),
  ];
}

async function letters(place) {
  const { queue, start } = place;
  const found = await call("GET", pathOf(queue, "dead-letters"), { start });
  const rows = found.letters.map((letter) => row(
    cell(link(letter.itemId, { queue, item: letter.itemId }, "id")),
    cell(instant(letter.deadAt)),
    cell(letter.key),
    number(letter.attempts),
    cell(letter.error.text),
    cell(letter.redrivenAs && link(letter.redrivenAs, { queue, item: letter.redrivenAs }, "id")),
  ));
  return [
    table(["Item", "Dead since (UTC)", "Key", "Attempts", "Error", "Redriven as"], rows),
    element("p", { className: "note" }, "The newest items first."),
    element("p", {}, found.start && link("Earlier letters", { ...place, start: found.start })),
  ];
}

function historyTable(queue, found) {
  const facts = [
    ["Status", found.cancelling ? `${found.status}, cancelling` : found.status],
    ["Key", found.key],
    ["Shard", found.shard],
    ["Attempts", found.attempts],
    ["Time limit", found.timeLimitSeconds === null ? "that of the queue" : `${found.timeLimitSeconds} s`],
    ["Last worker", found.worker],
    ["Payload", shown(found.payload)],
    ["Last error", shown(found.error)],
    ["Result", shown(found.result)],
  ];
  const events = [
    [found.at, found.delayed ? "delayed until then" : "enqueued"],
    [found.changedAt, found.status],
    [found.deadAt, "dead letter"],
    [found.nextAttemptAt, "next attempt"],
  ].filter(([at]) => at !== null);
  return element("div", {},
    table([], facts.map(([name, value]) => row(element("th", {}, name), cell(value)))),
    element("h3", {}, "History"),
    table([], events.sort(([a], [b]) => a - b).map(([at, text]) => row(cell(instant(at)), cell(text)))),
    found.redrivenAs && element("p", {}, "Redriven as ", link(found.redrivenAs, { queue, item: found.redrivenAs }, "id")),
    element("p", { className: "note" }, "The database keeps the last attempt of an item, and none of those before."),
  );
}

async function itemView({ queue, item }, isCurrent) {
  const box = element("div");
  const refresh = async () => {
    const found = await call("GET", pathOf(queue, `items/${encodeURIComponent(item)}/history`));
    if (!isCurrent()) return;
    const isFinished = found.histories.every(({ status }) => ["completed", "dead", "cancelled"].includes(status));
    box.replaceChildren(
      ...found.histories.map((each) => historyTable(queue, each)),
      isFinished ? "" : button("Cancel item", () => cancelItem(queue, item)),
    );
  };
  await refresh();
  if (!isCurrent()) return null;
  main.replaceChildren(element("h2", {}, link(queue, { queue })), element("h3", { className: "id" }, item), box);
  return refresh;
}

// -- the loop

async function show() {
  const mine = ++turn;
  const isCurrent = () => mine === turn;
  clearTimeout(timer);
  say("");
  const place = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const view = place.item ? itemView : place.queue ? queueView : listView;
  try {
    const refresh = await view(place, isCurrent);
    if (isCurrent()) renew = refresh;
    ask.hidden = true;
    forget.hidden = !sessionStorage.getItem(TOKEN);
    if (refresh && view === listView) await refresh();
    if (isCurrent()) timer = setTimeout(again, REFRESH_SECONDS * 1000, refresh, isCurrent);
  } catch (error) {
    if (isCurrent()) fail(error);
  }
}

async function again(refresh, isCurrent) {
  try {
    if (!document.hidden) await refresh();
    if (said.className) say("");
  } catch (error) {
    if (isCurrent()) fail(error);
    if (error instanceof Unauthorized) return;
  }
  if (isCurrent()) timer = setTimeout(again, REFRESH_SECONDS * 1000, refresh, isCurrent);
}

ask.addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, ask.elements.token.value.trim());
  ask.reset();
  show();
});
forget.addEventListener("click", () => {
  sessionStorage.removeItem(TOKEN);
  fail(new Unauthorized());
});
addEventListener("hashchange", () => show());
show();

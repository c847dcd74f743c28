"""All CQL statements of the work queue.

Timestamps that a client may have written are read as their eight bytes. The driver converts timestamps to dates, and
fails for a whole page of rows if one is after the year 9999. Those of faults, which the node itself writes, are read as
dates, and its present time as a number. ScyllaDB's `toUnixTimestamp` fails in the same way if no UUID can have one of
the times (get_valid_timestamp in cql3/functions/time_uuid_fcts.hh).
"""

from writetime.clients.prepared_statements import Statement, Statements

# A page of whole rows: payloads may have 256 KiB each, and results 4 MiB.
WHOLE_ROWS = 100
# How long `writetime status` shows a fault.
_FAULT_SECONDS = 3600
_PART = "queue = ? AND shard = ? AND bucket = ?"
_ITEM = (
    "item_id, textAsBlob(key) AS key, textAsBlob(payload) AS payload, timestampAsBlob(not_before) AS not_before, "
    "after, time_limit_seconds"
)
_INSERT_ITEM = (
    "INSERT INTO {}.queue_items (queue, shard, bucket, item_id, key, payload, not_before, after, time_limit_seconds) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_LETTER = (
    "item_id, textAsBlob(key) AS key, textAsBlob(payload) AS payload, attempts, textAsBlob(error) AS error, "
    "timestampAsBlob(dead_at) AS dead_at, redriven_as, time_limit_seconds"
)
_OWNERS = "SELECT shard, owner, epoch, beat, controls FROM {}.queue_shards WHERE queue = ?"


class QueueStatements(Statements):
    """The statements of the work queue."""

    needed_by = "work queues"

    queue = Statement("SELECT shards, bucket_seconds FROM {}.queues WHERE queue = ?", serial=True)
    make_queue = Statement("INSERT INTO {}.queues (queue, shards, bucket_seconds) VALUES (?, ?, ?) IF NOT EXISTS")
    all_queues = Statement("SELECT queue FROM {}.queues")
    now = Statement("SELECT toUnixTimestamp(now()) AS now FROM system.local")
    insert_item = Statement(_INSERT_ITEM)
    insert_new_item = Statement(f"{_INSERT_ITEM} IF NOT EXISTS")
    claim_name = Statement(
        "INSERT INTO {}.queue_unique_items (queue, name, item_id, key, payload, time_limit_seconds) "
        "VALUES (?, ?, ?, ?, ?, ?) IF NOT EXISTS USING TTL ?"
    )
    change_name = Statement(
        "UPDATE {}.queue_unique_items USING TTL ? SET item_id = ?, key = ?, payload = ?, time_limit_seconds = ? "
        "WHERE queue = ? AND name = ? IF item_id = ?"
    )
    items = Statement(f"SELECT {_ITEM} FROM {{}}.queue_items WHERE {_PART} AND item_id > ? AND item_id < ? LIMIT ?")
    item_ids = Statement(f"SELECT item_id FROM {{}}.queue_items WHERE {_PART} AND item_id > ? AND item_id < ? LIMIT ?")
    item_keys = Statement(
        f"SELECT item_id, textAsBlob(key) AS key FROM {{}}.queue_items WHERE {_PART} AND item_id > ? AND item_id < ? "
        "LIMIT ?"
    )
    item = Statement(f"SELECT {_ITEM} FROM {{}}.queue_items WHERE {_PART} AND item_id = ?")
    existing = Statement(f"SELECT item_id FROM {{}}.queue_items WHERE {_PART} AND item_id IN ?")
    statuses = Statement(
        f"SELECT item_id, textAsBlob(status) AS status FROM {{}}.queue_state WHERE {_PART} AND item_id IN ?"
    )
    insert_bucket = Statement("INSERT INTO {}.queue_buckets (queue, bucket, shard) VALUES (?, ?, ?)")
    buckets = Statement(
        "SELECT timestampAsBlob(bucket) AS bucket, shard, timestampAsBlob(closed) AS closed FROM {}.queue_buckets "
        "WHERE queue = ? AND bucket >= ? AND bucket <= ?"
    )
    mark_bucket = Statement(
        "UPDATE {}.queue_buckets SET closed = ? WHERE queue = ? AND bucket = ? AND shard = ? IF closed = ?"
    )
    statics = Statement(
        f"SELECT DISTINCT epoch, op, floor, timestampAsBlob(closed) AS closed FROM {{}}.queue_state WHERE {_PART}",
        serial=True,
    )
    stamp = Statement(f"UPDATE {{}}.queue_state SET epoch = ?, op = 0 WHERE {_PART} IF epoch = ?")
    fence = Statement(f"UPDATE {{}}.queue_state SET op = ?, floor = ? WHERE {_PART} IF epoch = ? AND op = ?")
    close = Statement(f"UPDATE {{}}.queue_state SET op = ?, closed = ? WHERE {_PART} IF epoch = ? AND op = ?")
    change = Statement(
        "UPDATE {}.queue_state SET status = ?, at = ?, attempts = ?, due = ?, worker = ?, error = ?, result = ? "
        f"WHERE {_PART} AND item_id = ?"
    )
    record_step = Statement(f"UPDATE {{}}.queue_state SET steps[?] = ? WHERE {_PART} AND item_id = ?")
    steps = Statement(f"SELECT steps FROM {{}}.queue_state WHERE {_PART} AND item_id = ?")
    states = Statement(
        "SELECT item_id, textAsBlob(status) AS status, attempts, timestampAsBlob(due) AS due FROM {}.queue_state "
        f"WHERE {_PART} AND item_id > ? AND item_id <= ?"
    )
    whole_states = Statement(
        "SELECT item_id, textAsBlob(status) AS status, attempts, timestampAsBlob(at) AS at, "
        f"textAsBlob(worker) AS worker, textAsBlob(result) AS result FROM {{}}.queue_state WHERE {_PART}",
        page_rows=WHOLE_ROWS,
    )
    items_from_to = Statement(
        f"SELECT {_ITEM} FROM {{}}.queue_items WHERE {_PART} AND item_id >= ? AND item_id <= ?",
        page_rows=WHOLE_ROWS,
    )
    shards = Statement(_OWNERS)
    shards_serial = Statement(_OWNERS, serial=True)
    take = Statement(
        "UPDATE {}.queue_shards SET owner = ?, epoch = ?, beat = 0 WHERE queue = ? AND shard = ? "
        "IF epoch = ? AND beat = ? AND owner = ?"
    )
    renew = Statement(
        "UPDATE {}.queue_shards SET beat = ? WHERE queue = ? AND shard = ? IF owner = ? AND epoch = ? AND beat = ?"
    )
    release = Statement(
        "UPDATE {}.queue_shards SET owner = null WHERE queue = ? AND shard = ? IF owner = ? AND epoch = ?"
    )
    announce = Statement("INSERT INTO {}.queue_workers (queue, worker) VALUES (?, ?) USING TTL ?")
    leave = Statement("DELETE FROM {}.queue_workers WHERE queue = ? AND worker = ?")
    report_fault = Statement(
        "INSERT INTO {}.queue_faults (queue, worker, place, at, times, reason) "
        f"VALUES (?, ?, ?, toTimestamp(now()), ?, ?) USING TTL {_FAULT_SECONDS}"
    )
    faults = Statement("SELECT queue, worker, place, at, times, reason FROM {}.queue_faults")
    workers = Statement("SELECT worker FROM {}.queue_workers WHERE queue = ?")
    insert_dead = Statement(
        "INSERT INTO {}.queue_dead_letters (queue, shard, item_id, key, payload, attempts, error, dead_at, "
        "time_limit_seconds) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
    )
    dead = Statement(f"SELECT {_LETTER} FROM {{}}.queue_dead_letters WHERE queue = ? AND shard = ?")
    letters = Statement(
        "SELECT item_id, redriven_as, timestampAsBlob(dead_at) AS dead_at FROM {}.queue_dead_letters "
        "WHERE queue = ? AND shard = ?"
    )
    letter = Statement(f"SELECT {_LETTER} FROM {{}}.queue_dead_letters WHERE queue = ? AND shard = ? AND item_id = ?")
    newest_letters = Statement(
        "SELECT item_id, textAsBlob(key) AS key, attempts, textAsBlob(error) AS error, timestampAsBlob(dead_at) AS "
        "dead_at, redriven_as FROM {}.queue_dead_letters WHERE queue = ? AND shard = ? AND item_id <= ? "
        "ORDER BY item_id DESC LIMIT ?"
    )
    mark_redriven = Statement(
        "UPDATE {}.queue_dead_letters SET redriven_as = ? WHERE queue = ? AND shard = ? AND item_id = ? "
        "IF redriven_as = ?"
    )
    redriven_as = Statement(
        "SELECT redriven_as FROM {}.queue_dead_letters WHERE queue = ? AND shard = ? AND item_id = ?", serial=True
    )
    pauses = Statement(
        "SELECT textAsBlob(key) AS key, timestampAsBlob(since) AS since FROM {}.queue_pauses WHERE queue = ?"
    )
    pause = Statement("INSERT INTO {}.queue_pauses (queue, key, since) VALUES (?, ?, toTimestamp(now())) IF NOT EXISTS")
    resume = Statement("DELETE FROM {}.queue_pauses WHERE queue = ? AND key = ? IF EXISTS")
    schedules = Statement(
        "SELECT name, textAsBlob(cron) AS cron, textAsBlob(zone) AS zone, textAsBlob(key) AS key, "
        "textAsBlob(payload) AS payload, time_limit_seconds, timestampAsBlob(since) AS since "
        "FROM {}.queue_schedules WHERE queue = ?"
    )
    insert_schedule = Statement(
        "INSERT INTO {}.queue_schedules (cron, zone, key, payload, time_limit_seconds, queue, name, since) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, toTimestamp(now())) IF NOT EXISTS"
    )
    replace_schedule = Statement(
        "UPDATE {}.queue_schedules SET cron = ?, zone = ?, key = ?, payload = ?, time_limit_seconds = ?, "
        "since = toTimestamp(now()) WHERE queue = ? AND name = ? IF EXISTS"
    )
    delete_schedule = Statement("DELETE FROM {}.queue_schedules WHERE queue = ? AND name = ? IF EXISTS")
    cancels = Statement(f"SELECT item_id FROM {{}}.queue_cancels WHERE {_PART}")
    cancels_of = Statement(f"SELECT item_id FROM {{}}.queue_cancels WHERE {_PART} AND item_id IN ?")
    is_cancelled = Statement(f"SELECT item_id FROM {{}}.queue_cancels WHERE {_PART} AND item_id = ?")
    insert_cancel = Statement("INSERT INTO {}.queue_cancels (queue, shard, bucket, item_id) VALUES (?, ?, ?, ?)")
    events = Statement(f"SELECT item_id, textAsBlob(name) AS name FROM {{}}.queue_events WHERE {_PART} AND item_id > ?")
    event = Statement(
        f"SELECT textAsBlob(payload) AS payload FROM {{}}.queue_events WHERE {_PART} AND item_id = ? AND name = ?"
    )
    insert_event = Statement(
        "INSERT INTO {}.queue_events (queue, shard, bucket, item_id, name, payload) VALUES (?, ?, ?, ?, ?, ?) "
        "IF NOT EXISTS"
    )
    controls = Statement("SELECT DISTINCT controls FROM {}.queue_shards WHERE queue = ?", serial=True)
    change_controls = Statement("UPDATE {}.queue_shards SET controls = ? WHERE queue = ? IF controls = ?")
    state = Statement(
        "SELECT textAsBlob(status) AS status, attempts, timestampAsBlob(at) AS at, textAsBlob(error) AS error, "
        "textAsBlob(result) AS result, timestampAsBlob(due) AS due, textAsBlob(worker) AS worker FROM {}.queue_state "
        f"WHERE {_PART} AND item_id = ?"
    )
    drop_fence = Statement(f"DELETE epoch, op, floor, closed FROM {{}}.queue_state WHERE {_PART} IF epoch = ?")
    drop_items = Statement(f"DELETE FROM {{}}.queue_items USING TIMESTAMP ? WHERE {_PART}")
    drop_state = Statement(f"DELETE FROM {{}}.queue_state USING TIMESTAMP ? WHERE {_PART}")
    drop_events = Statement(f"DELETE FROM {{}}.queue_events USING TIMESTAMP ? WHERE {_PART}")
    drop_cancels = Statement(f"DELETE FROM {{}}.queue_cancels USING TIMESTAMP ? WHERE {_PART}")
    drop_buckets = Statement(f"DELETE FROM {{}}.queue_buckets USING TIMESTAMP ? WHERE {_PART}")

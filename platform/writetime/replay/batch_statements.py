"""All CQL statements of the replay queues."""

from writetime.clients.prepared_statements import Statement, Statements

# Seals that are read at once.
PAGE = 100
_BLOCK_WRITE_TIME = 1
_OF_BATCH = "queue = ? AND era = ? AND n"
_FIELDS = "queue, n, attempt, items, bytes, blocks, sha256, producer, sequence, published_at"
_OF_CHUNK = "queue = ? AND attempt = ? AND chunk = ?"


class BatchStatements(Statements):
    """The statements of the replay queues."""

    needed_by = "replay queues"

    insert_block = Statement(
        "INSERT INTO {}.replay_blocks (queue, attempt, chunk, idx, data) VALUES (?, ?, ?, ?, ?) "
        f"USING TIMESTAMP {_BLOCK_WRITE_TIME}"
    )
    blocks = Statement("SELECT idx, data FROM {}.replay_blocks WHERE queue = ? AND attempt = ? AND chunk = ?")
    seal = Statement(
        f"INSERT INTO {{}}.replay_batches (era, {_FIELDS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS"
    )
    get = Statement(f"SELECT {_FIELDS} FROM {{}}.replay_batches WHERE {_OF_BATCH} = ?", serial=True)
    published_at = Statement(
        f"SELECT published_at, writetime(attempt) AS sealed_at FROM {{}}.replay_batches WHERE {_OF_BATCH} = ?",
        serial=True,
    )
    last = Statement(f"SELECT {_FIELDS} FROM {{}}.replay_batches WHERE queue = ? AND era = ? ORDER BY n DESC LIMIT 1")
    queues = Statement("SELECT DISTINCT queue, era FROM {}.replay_batches")
    between = Statement(f"SELECT {_FIELDS} FROM {{}}.replay_batches WHERE {_OF_BATCH} >= ? AND n <= ?")
    following = Statement(f"SELECT {_FIELDS} FROM {{}}.replay_batches WHERE {_OF_BATCH} > ? LIMIT {PAGE}")
    record = Statement(
        "INSERT INTO {}.replay_producers (queue, producer, sequence, n) VALUES (?, ?, ?, ?) USING TIMESTAMP ?"
    )
    now = Statement("SELECT toTimestamp(now()) AS now FROM system.local")
    recorded = Statement("SELECT sequence, n FROM {}.replay_producers WHERE queue = ? AND producer = ?")
    keep_cursor = Statement(
        "INSERT INTO {}.replay_cursors (queue, processor, n, moved_at) VALUES (?, ?, ?, ?) USING TIMESTAMP ?"
    )
    forget_cursor = Statement("DELETE FROM {}.replay_cursors USING TIMESTAMP ? WHERE queue = ? AND processor = ?")
    cursor_time = Statement("SELECT WRITETIME(n) AS at FROM {}.replay_cursors WHERE queue = ? AND processor = ?")
    cursors = Statement("SELECT processor, n FROM {}.replay_cursors WHERE queue = ?")
    delete_blocks = Statement(f"DELETE FROM {{}}.replay_blocks WHERE {_OF_CHUNK}")
    newest_block = Statement(f"SELECT max(WRITETIME(data)) AS at FROM {{}}.replay_blocks WHERE {_OF_CHUNK}")
    delete_newer = Statement(f"DELETE FROM {{}}.replay_blocks USING TIMESTAMP ? WHERE {_OF_CHUNK}")
    announce = Statement("INSERT INTO {}.replay_floors (queue, gone) VALUES (?, ?) USING TIMESTAMP ?")
    deleted = Statement("INSERT INTO {}.replay_floors (queue, deleted) VALUES (?, ?) USING TIMESTAMP ?")
    floor = Statement("SELECT gone, deleted FROM {}.replay_floors WHERE queue = ?")

"""The tables of numbers by which Python controls the reads and writes of the kernel.

The size of each output buffer follows from the number of input bytes that are read before it is emptied. So the kernel
never runs out of space, and need not check for it:

- A row or a cell has at least two bytes of input.
- No input byte is copied more than once. A UUID's 16 bytes become 36 characters, and a byte of a clustering key becomes
  at most two bytes of a position.
"""

# --- COLUMNS: one line per column of the kernel, one number per field ------------------------------------------------
LENGTH = 0  # bytes of a value on disk, or -1 if the length is before the value
FORM = 1  # the form of the output values, see below
SHAPE = 2  # SIMPLE, COLLECTION or UDT
DROPPED_AT = 3  # cells written at or before this time are void
CHILD = 4  # COLLECTION: the line of the elements' cells (the next line has their paths); UDT: of the first field
CHILDREN = 5  # UDT: number of fields; a collection's elements: the number written so far
WANTED = 6  # 0: skipped
EMPTY_IS_VALUE = 7  # text and blob: an empty value is a value, and not null
COMPARE = 8  # clustering column: method of `primitives.encode_comparable`
REVERSE = 9  # clustering column: DESC
STATE = 10  # addresses: one byte per cell, the bits below
VALUES = 11  # values of fixed width, or the bytes of values of variable width
OFFSETS = 12  # int32 offsets into those bytes; COLLECTION: into the elements
WRITE_TIME = 13  # int64 (COLLECTION, UDT: of the column tombstone, as below)
TTL = 14  # int32
DELETION_TIME = 15  # int64
USED = 16  # bytes used of VALUES
NAME_ADDRESS = 17  # the name's bytes, to find a column by name
NAME_LENGTH = 18
IS_STATIC = 19
FORMER = 20  # 1: a dropped column; a cell written after the drop is an error
NAMED = 21  # the number of the last update of a commit log that named the column
COLUMN_FIELDS = 22

SIMPLE, COLLECTION, UDT = range(3)

# Bits of STATE. A collection's or UDT's own line uses IS_PRESENT (it has cells or a tombstone) and IS_TOMBSTONE.
IS_PRESENT, HAS_VALUE, HAS_TTL, HAS_DELETION_TIME, IS_TOMBSTONE = 1, 2, 4, 8, 16

# Values of FORM: BYTES are unchanged and have variable length; FIXED are integers and floats of 1 to 8 bytes; COUNTER
# is unchanged, and `counter_contexts` decodes it.
BYTES, FIXED1, FIXED2, FIXED4, FIXED8, BOOLEAN, DATE, UUID_TEXT, COUNTER = range(9)
WIDTH = {FIXED1: 1, FIXED2: 2, FIXED4: 4, FIXED8: 8, BOOLEAN: 1, DATE: 4}

# --- TABLES: one line per table ---------------------------------------------------------------------------------------
FIRST = 0  # the lines in COLUMNS with one value per row: clustering, static and regular columns, fields of UDTs
LAST = 1  # ... up to here
CLUSTERINGS = 2  # the number of clustering columns
KEY = 3  # the line of the first partition key column (one value per partition)
KEYS = 4
ROWS = 5  # number of changes written
PARTITIONS = 6  # number of partitions written
ENCODE_POSITION = 7  # 1: byte-comparable positions; 0: the clustering key as on disk, for `changes.position` to encode
ROW_KIND = 8  # addresses, one entry per change: int8
FIRST_ROW = 9  # int32, one entry per partition: its first change
ROW_OFFSET = 10  # int64, offset in the file
POSITION_OFFSETS = 11  # int32
POSITION_BYTES = 12
POSITION_USED = 13
END_OFFSETS = 14
END_BYTES = 15
END_USED = 16
MARKER_STATE = 17  # IS_PRESENT, HAS_TTL
MARKER_WRITE_TIME = 18
MARKER_TTL = 19
MARKER_EXPIRY = 20
TOMBSTONE_STATE = 21  # IS_PRESENT
TOMBSTONE_WRITE_TIME = 22
TOMBSTONE_DELETION_TIME = 23
KEY_OFFSETS = 24  # one entry per partition: int32 offsets, bytes, token
KEY_BYTES = 25
KEY_USED = 26
TOKENS = 27
ID_HIGH = 28  # table id
ID_LOW = 29
TABLE_FIELDS = 30

# --- STATE of the walk ------------------------------------------------------------------------------------------------
START = 0  # address and end of the window, and its offset in the (uncompressed) file
END = 1
FILE_OFFSET = 2
IS_LAST = 3  # 1: no window follows
POSITION = 4  # address to continue at; after an error, of the fault
IN_PARTITION = 5  # 0: a partition starts at POSITION
MIN_WRITE_TIME = 6  # the minimums that deltas are added to
MIN_DELETION_TIME = 7
MIN_TTL = 8
UNSIGNED_DELETION_TIME = 9  # format flags
COMPACT_PARTITION_DELETION = 10
IS_SSTABLE = 11
STATICS = 12  # columns in the header
REGULARS = 13
TABLE = 14  # the line in TABLES
OPEN = 15  # 1: a range tombstone is open since the position at OPEN_BYTES; 2: it is open since an earlier split
OPEN_WRITE_TIME = 16
OPEN_DELETION_TIME = 17
OPEN_BYTES = 18
OPEN_LENGTH = 19
CURRENT_KEY = 20  # address of a copy of the partition key
CURRENT_KEY_LENGTH = 21
CURRENT_TOKEN = 22
FIRST_TOKEN = 23  # partitions outside these tokens (both included) are skipped
LAST_TOKEN = 24
PASS_OVER = 25
PARTITION_OFFSET = 26  # offset of the current partition in the file
STOP = 27  # address at which the split ends, between partitions or between rows of one
STOP_PARTITION = 28  # offset in the file of the partition with this address; -1: it is between partitions
STOP_OPEN = 29  # 1: a range tombstone with these times is open at this address; 0: none is open
STOP_OPEN_WRITE_TIME = 30
STOP_OPEN_DELETION_TIME = 31
READ_ON = 32  # 1: read beyond the split's end, to find the end of the range tombstone that was opened in it
TABLES = 33  # the number of lines in TABLES
UPDATE = 34  # the number of updates of a commit log so far
HEADER_ROOM = 35  # the largest number of columns of a header
HAS_EPOCH = 36  # 1: a mutation begins with flags, and its updates have the epoch of their schema
WALK_FIELDS = 37

# Flags of a row or bound on disk (UnfilteredSerializer).
END_OF_PARTITION, IS_MARKER, HAS_TIMESTAMP, ROW_HAS_TTL, HAS_DELETION = 0x01, 0x02, 0x04, 0x08, 0x10
HAS_ALL_COLUMNS, HAS_COMPLEX_DELETION, EXTENDED, EXTENDED_STATIC = 0x20, 0x40, 0x80, 0x01

NO_TIME = -0x8000000000000000

# The most bytes of a partition key, because its length has two bytes.
KEY_ROOM = 65535

# Results of the walk: it needs the next window, it is done, or an error.
MORE, DONE = 0, 1
TRUNCATED = 10
BAD_FLAGS = 11
BAD_LENGTH = 12
BAD_ROW_SIZE = 13
BAD_COLUMNS = 14
BAD_BOUND = 15
BAD_TOKEN_ORDER = 16
BAD_COUNTER = 18
BAD_KEY = 19
SHADOWABLE = 20
BAD_DELETION = 21
BAD_TTL = 22
UNKNOWN_TABLE = 23
UNKNOWN_COLUMN = 24
BAD_PATH = 25
BAD_CUT = 26
FORMER_CELL = 27
REPEATED_COLUMN = 28

MESSAGES = {
    TRUNCATED: "data that ends inside a partition",
    BAD_FLAGS: "invalid flags of a row, bound or cell",
    BAD_LENGTH: "a value whose length is not that of its type",
    BAD_ROW_SIZE: "a row whose cells do not end at its size",
    BAD_COLUMNS: "a set of columns that the header does not have",
    BAD_BOUND: "range tombstone bounds that do not open and close in turn",
    BAD_TOKEN_ORDER: "a partition whose token is smaller than that of the previous one",
    BAD_COUNTER: "a counter with an incomplete shard",
    BAD_KEY: "a partition key that is invalid for its type",
    SHADOWABLE: "a shadowable deletion: materialised views are not supported",
    BAD_DELETION: "an invalid partition deletion",
    BAD_TTL: "a negative TTL",
    UNKNOWN_TABLE: "a write to a table whose schema is not known",
    UNKNOWN_COLUMN: "a column that the table's schema does not have",
    BAD_PATH: "a cell path that its column cannot have",
    BAD_CUT: "an end of the split that differs from the index",
    FORMER_CELL: "a cell of a column's former type, written after the column was dropped: the schema has another type",
    REPEATED_COLUMN: "an update that names a column twice",
}

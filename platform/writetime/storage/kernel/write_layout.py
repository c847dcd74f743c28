"""The tables of numbers by which Python controls what the kernel writes."""

# --- COLUMNS: one line per clustering, static and regular column, and per part of a collection or UDT. Addresses are of
# arrays with one entry per change, or per element of a collection.
WRITE_LENGTH = 0  # bytes of a value on disk, or -1 if the length is before the value
WRITE_SHAPE = 1  # SIMPLE, COLLECTION or UDT
WRITE_STATE = 2  # uint8: the bits IS_PRESENT, HAS_TTL and IS_TOMBSTONE (COLLECTION, UDT: of the column tombstone)
WRITE_TIMES = 3  # int64
WRITE_TTLS = 4  # int32
WRITE_DELETION_TIMES = 5  # int64
WRITE_OFFSETS = 6  # int32 offsets into the bytes of the values
WRITE_VALUES = 7
WRITE_CHILD = 8  # COLLECTION: the line of the elements; UDT: of the first field
WRITE_CHILDREN = 9  # UDT: number of fields
WRITE_ELEMENTS = 10  # COLLECTION: int32 offsets into the elements
WRITE_PATH_OFFSETS = 11  # elements of a COLLECTION: int32 offsets into the bytes of the paths
WRITE_PATHS = 12
WRITE_FIELDS = 13

# --- STATE of the writer: constants of the SSTable
CLUSTERINGS = 0  # the number of clustering columns, which are the first lines of COLUMNS
STATICS = 1  # the number of static columns, which follow
REGULARS = 2  # the number of regular columns, which follow
BASE_WRITE_TIME = 3  # the deltas in rows are to these
BASE_DELETION_TIME = 4
BASE_TTL = 5
UNSIGNED = 6  # 1: deletion times have 32 bits without a sign, and a deletion of a partition is compact if there is none
LIVE_DELETION_TIME = 7  # the deletion time of a column without a tombstone
BLOCK_SIZE = 8  # bytes of rows per block of a partition's row index

# --- addresses of the arrays of a batch, one entry per change
KIND = 10  # uint8: the index in `changes.model.KINDS`
STARTS = 11  # uint8: 1 if a partition starts
TOKENS = 12  # int64
KEY_OFFSETS = 13
KEYS = 14
POSITION_OFFSETS = 15
POSITIONS = 16
END_OFFSETS = 17
ENDS = 18
START_BOUND_OFFSETS = 19  # bounds of ranges: size and values as on disk, without the kind
START_BOUNDS = 20
END_BOUND_OFFSETS = 21
END_BOUNDS = 22
MARKER_STATE = 23
MARKER_TIMES = 24
MARKER_TTLS = 25
MARKER_EXPIRIES = 26
TOMBSTONE_STATE = 27
TOMBSTONE_TIMES = 28
TOMBSTONE_DELETION_TIMES = 29

# --- output: addresses, and how much of each buffer is used
OUT = 30
OUT_USED = 31
BODY = 32  # the body of the current row, whose length is written before it
INDEX = 33
INDEX_USED = 34
BLOCKS = 35  # the row index of the current partition
BLOCKS_USED = 36
BLOCK_OFFSETS = 37  # int32, for each block its offset in BLOCKS
BLOCK_COUNT = 38
DELETED = 39  # int64: each deletion time and expiry
DELETED_COUNT = 40
FINISHED = 41  # int64, FINISHED_FIELDS per finished partition
FINISHED_COUNT = 42
DATA_POSITION = 43  # bytes of Data.db (uncompressed) and Index.db before this batch
INDEX_POSITION = 44

# --- the current partition. Copies are in buffers of their own, because the next batch has other arrays.
IN_PARTITION = 45
KEY = 46
KEY_LENGTH = 47
TOKEN = 48
DELETION_WRITE_TIME = 49
DELETION_TIME = 50
PARTITION_START = 51
HEADER_LENGTH = 52
NEEDS_STATIC = 53
PREVIOUS = 54  # start of the previous row or bound, from the start of the partition
IN_BLOCK = 55
BLOCK_START = 56
FIRST = 57  # clustering prefix of the first row or bound of the block: address of kind and what follows, and length
FIRST_LENGTH = 58
LAST = 59
LAST_LENGTH = 60
LAST_POSITION = 61  # address and length of the position of the last change
LAST_POSITION_LENGTH = 62
OPEN = 63  # 1: a range tombstone is open
OPEN_WRITE_TIME = 64
OPEN_DELETION_TIME = 65
OPEN_END = 66  # position of its end
OPEN_END_LENGTH = 67
OPEN_BOUND = 68  # size and values of its end as on disk
OPEN_BOUND_LENGTH = 69
CELLS = 70  # of the current partition
KEPT = 71  # address of the buffers of copies, and bytes of each of them
KEPT_ROOM = 72
HAS_ROWS = 73  # 1: the partition has a row or a bound

# --- statistics
MIN_WRITE_TIME = 80
MAX_WRITE_TIME = 81
MIN_DELETION_TIME = 82
MAX_DELETION_TIME = 83
MIN_TTL = 84
MAX_TTL = 85
SOME_LIVE = 86  # 1: some cell or marker never expires
COLUMN_COUNT = 87
ROW_COUNT = 88
PARTITION_DELETIONS = 89
MIN_POSITION_LENGTH = 90  # -1: there is no row or bound yet
MIN_PREFIX_LENGTH = 91
MAX_POSITION_LENGTH = 92
MAX_PREFIX_LENGTH = 93
MAX_TOMBSTONE_TIME = 94  # the largest deletion time of a tombstone within a partition
WRITER_FIELDS = 96

# The buffers of copies, each of KEPT_ROOM bytes.
KEPT_KEY, KEPT_FIRST, KEPT_LAST, KEPT_POSITION, KEPT_END, KEPT_BOUND = range(6)
KEPT_MIN_POSITION, KEPT_MIN_PREFIX, KEPT_MAX_POSITION, KEPT_MAX_PREFIX = range(6, 10)
KEPT_BUFFERS = 10

# The most bytes of a partition key, and of a clustering value.
LONGEST = 0xFFFF

# Fields of a finished partition: its bytes in Data.db, its cells, where its entry in Index.db starts (from the start of
# the file, and in the batch's bytes), the two hashes of the filter, and the hash by which keys are counted.
PARTITION_BYTES, PARTITION_CELLS, ENTRY_POSITION, ENTRY_AT, FILTER_BASE, FILTER_STEP, ESTIMATE_HASH = range(7)
FINISHED_FIELDS = 7

# Errors of the input.
OVERLAP, UNSORTED_POSITION, UNSORTED_KEY, BAD_POSITION, BAD_KIND, BAD_KEY, LONG_CLUSTERING = range(1, 8)

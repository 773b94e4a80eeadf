"""Every cap and default number, each with its unit, its reason and its source."""

from __future__ import annotations

# --- monitor_config defaults (contract B) ---------------------------------------------------
DEFAULT_LOG_DIR = "./logs"
DEFAULT_COLLECT_FREQ_STEPS = 50  # steps per written batch; the article's example
DEFAULT_MAX_FILE_SIZE_BYTES = 10_485_760  # 10 MiB; the article's remedy against growing memory
DEFAULT_BUFFER_RECORDS = 4096  # about 4 MB of Python objects: a bound nobody notices

# --- writing ----------------------------------------------------------------------------------
FLUSH_INTERVAL_S = 1.0  # a slow training (1 step/s) must still look live in the dashboard
POLL_INTERVAL_S = 0.02  # between looks for a full batch: not seen in a live page
CLOSE_TIMEOUT_S = 10.0  # a hung disk must not keep a finished training from exiting
SIGTERM_TIMEOUT_S = 5.0  # for the last records after SIGTERM; container runtimes send SIGKILL after 10 s
RETRY_INTERVAL_S = 1.0  # pause after a failed write: a full disk is polled, not hammered
RECORD_BYTES_ESTIMATE = 512  # one JSON record with 15 metrics is about 450 bytes
RECORD_MEMORY_FACTOR = (
    8  # memory per byte of that text: objects 2, encoded copies 1, the allocator's slack; benchmarks/memory_bound.py
)
DRAIN_RECORDS = 1024  # written at once: the batch that waits beside the buffer when a disk fails
DETECTOR_ROWS = 1 << 18  # rows that a detector looks back on at most; a training must not grow with its length
DETECTOR_ROW_BYTES = 40  # step time and step, the sorted history of step times, and that once more while it is merged
MAX_FILE_NUMBER = 99_999_999  # digits that still sort and parse; 10 MiB each is a petabyte

# --- reading: caps applied before parsing, so that hostile files cost bounded memory --------
MAX_LINE_BYTES = 1 << 20  # one JSON or CSV record; ours are below 1 kB
MAX_FRAME_BYTES = 1 << 26  # one protobuf frame: 64 MiB, far above a 4,096-record batch
MAX_METRICS = 4096  # columns per file; per-layer norms of the largest models stay below
MAX_METRIC_NAME_CHARS = 256  # longer names are cut off by no reader, but fit no screen
MAX_NESTED_BYTES = 1 << 16  # input shapes of one step as JSON
MAX_BATCH_CELLS = 1 << 25  # rows times metrics decoded at once: 256 MiB, 100 times what 1 MiB of honest records gives
MAX_STEP = 2**63 - 1  # steps travel as signed 64-bit integers
MAX_ATTEMPT = 2**31 - 1  # starts in one directory; fits a protobuf uint32 and any reader's int
READ_CHUNK_BYTES = 1 << 20  # bytes taken per read: one pread into page cache, bounded memory
MAX_MANIFEST_BYTES = 1 << 20  # run.json

# --- pushing over HTTP ------------------------------------------------------------------------
PUSH_SPOOL_RECORDS = 16_384  # about 16 MB of Python objects: several minutes of a fast training without the receiver
PUSH_SPOOL_BYTES = 1 << 25  # 32 MiB of Python objects: reached first where records are large (per-layer norms)
PUSH_BATCH_RECORDS = 1_024  # records per POST
PUSH_BATCH_BYTES = 1 << 22  # of Python objects per POST, which are outside the spool meanwhile
PUSH_TARGET_BYTES = 1 << 20  # a larger body is sent in halves
MAX_PUSH_BYTES = 1 << 23  # what a receiver takes: 8 MiB, so that one record with every metric allowed fits
PUSH_TIMEOUT_S = 10.0  # per connection and per read
PUSH_REQUEST_S = 60.0  # per request: longer only when an endpoint sends byte by byte
PUSH_SIGTERM_S = 2.0  # for the last records after SIGTERM: within SIGTERM_TIMEOUT_S, which the files need too
PUSH_BACKOFF_S = 0.5  # first pause after a failure, doubled with each further one, with full jitter
PUSH_BACKOFF_CAP_S = 60.0
MAX_REPLY_BYTES = 1 << 16  # of an endpoint's answer; more is cut off unread
MAX_RANKS = 1_000_000  # ranks of one run: readers take rank_0 to rank_999999


def memory_bound_bytes(buffer_size: int, *, pushing: bool = False) -> int:
    """Most that recording adds to a training's memory, whatever the disk does and however long the run.

    A full buffer and one drained batch of records, and what the detectors look back on: 31 MB for the default buffer. With an
    ``http_endpoint`` its spool and the batch under way come on top, whatever the endpoint does.
    """
    records = (buffer_size + DRAIN_RECORDS) * RECORD_BYTES_ESTIMATE * RECORD_MEMORY_FACTOR
    spool = PUSH_SPOOL_BYTES + PUSH_BATCH_BYTES + 2 * PUSH_TARGET_BYTES if pushing else 0
    return records + spool + DETECTOR_ROWS * DETECTOR_ROW_BYTES

"""Word offsets (int64) of the data that the native executor reads: thunk records, control blocks, stamps, dynamic launches.

record   entry, args, constant, wait, home, number of factors, 3 x (extent address, divisor), stride; 128 bytes. Home is -1
         where every worker runs all programs; worker w reads its arguments at args + w * stride bytes
control  one per pool, with a 128-byte line per group of writers
dynamic  a launch whose workers take the next few programs when they are free: the launch's address, the number of parts to
         divide its programs into, and, in two cache lines of its own, the next program
"""

from __future__ import annotations

MAX_FACTORS = 3  # extents in a thunk's number of programs
RECORD_WORDS = 16
ENTRY, ARGS, CONSTANT, WAIT, HOME, N_FACTORS, FACTORS = range(7)
STRIDE = FACTORS + 2 * MAX_FACTORS
REPLICATED = -1

# Stamps per worker and thunk: ticks at start and end, programs run, first program. The entry after a worker's last thunk has
# the start of its whole run. Nothing is written after the last barrier, when the caller may have freed the stamps.
STAMP_WORDS = 4
START, END, SIZE, PLACE = range(4)

# A line is two cache lines, because the CPU prefetches the neighbor of a line that it reads.
LINE_WORDS = 16
(
    WAIT_FUNCTION,
    WAKE_FUNCTION,
    CORE_FUNCTION,
    SPIN_BOUND,
    SHORT_SPIN_BOUND,
    CALLER_SPIN_BOUND,
    WORKERS,
    SHORT_RUN_TICKS,
) = range(8)
RUN_GENERATION = 1 * LINE_WORDS
RECORDS, FIRST, LAST, FAILED, STOP = range(2 * LINE_WORDS, 2 * LINE_WORDS + 5)
ARRIVED = 3 * LINE_WORDS
GENERATION = 4 * LINE_WORDS
RUN_SLEEPERS = 5 * LINE_WORDS
SLEEPERS = 6 * LINE_WORDS
# A table of runs by key (alone.py): the ticks that the caller worked in the last run with the key.
RUNS, RUNS_BITS = 7 * LINE_WORDS, 5
RUN_KEY, RUN_TICKS, RUN_ENTRY_WORDS = range(3)
# Two lines per worker: one that it writes (runs seen, missed spins, ticks waited between and in runs) and one that others read
# often (its core). The caller, worker 0, also has what alone.py adds up.
WORKER_LINES = RUNS + (RUN_ENTRY_WORDS << RUNS_BITS)
WORDS_PER_WORKER = 2 * LINE_WORDS
RUNS_SEEN, RUN_MISSES, MISSES, RUN_WAITED, WAITED, BALANCE, ALONE, ALONE_UNTIL = range(8)
WAITED_AFTER_MISSES = WAITED - MISSES  # also from RUN_MISSES to RUN_WAITED
CORE = LINE_WORDS
CALLER_MISSES, CALLER_CORE = WORKER_LINES + MISSES, WORKER_LINES + CORE

DYNAMIC_LAUNCH, DYNAMIC_PARTS = range(2)
DYNAMIC_NEXT = LINE_WORDS
DYNAMIC_WORDS = 2 * LINE_WORDS

# Bytes that a program of a copy moves.
COPY_NBYTES_PER_PROGRAM = 1 << 16

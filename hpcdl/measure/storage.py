"""`python -m hpcdl.measure.storage DIR`: how fast this node reads from a file system.

A file is written, flushed and dropped from the page cache, then read again and again by several
threads in large blocks, past the cache where the file system can (O_DIRECT). The first pass is
left out. The file is removed, whatever happens.
"""

from __future__ import annotations

import argparse
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

from hpcdl.measure import run_program, write_measurement
from hpcdl.system.amounts import positive
from hpcdl.system.errors import MissingPrerequisite
from hpcdl.system.files import explain_os_errors
from hpcdl.train.startup import RankPlace

BLOCK = 4 << 20
_MEGA = 1e6
_DIRECT: int = getattr(os, "O_DIRECT", 0)


@contextmanager
def written_file(folder: Path, size: int) -> Iterator[Path]:
    """A file of `size` bytes that no cache holds; removed in the end."""
    folder.mkdir(parents=True, exist_ok=True)
    block = os.urandom(BLOCK)
    with tempfile.NamedTemporaryFile(dir=folder, prefix="hpcdl-read-") as file:
        for _ in range(size // BLOCK):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        _forget(file.fileno())
        yield Path(file.name)


def reads_past_cache(path: Path) -> bool:
    """Return whether the file system takes O_DIRECT."""
    with suppress(OSError):
        os.close(os.open(path, os.O_RDONLY | _DIRECT))
        return bool(_DIRECT)
    return False


def read_pass(path: Path, size: int, threads: int, *, direct: bool) -> float:
    """Seconds to read the whole file once, each thread its own part."""
    blocks = size // BLOCK
    start = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        parts = [range(number, blocks, threads) for number in range(threads)]
        done = sum(pool.map(lambda part: _read_blocks(path, part, direct), parts))
    if done != blocks * BLOCK:
        raise MissingPrerequisite(f"{path} gave {done} bytes of {blocks * BLOCK}")
    return time.perf_counter() - start


def _read_blocks(path: Path, blocks: range, direct: bool) -> int:
    handle = os.open(path, os.O_RDONLY | (_DIRECT if direct else 0))
    try:
        # An anonymous map begins at a page, as O_DIRECT wants it.
        with mmap.mmap(-1, BLOCK) as buffer:
            done = sum(os.preadv(handle, [buffer], block * BLOCK) for block in blocks)
        if not direct:
            _forget(handle)
        return done
    finally:
        os.close(handle)


def _forget(handle: int) -> None:
    with suppress(OSError, AttributeError):
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)


def main(argv: list[str] | None = None) -> int:
    """Measure, write result.json and print the rate; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m hpcdl.measure.storage", allow_abbrev=False)
    parser.add_argument("folder", metavar="DIR", help="variables of the environment count")
    parser.add_argument("--megabytes", type=positive, default=256, metavar="N")
    parser.add_argument("--passes", type=positive, default=5, metavar="N")
    parser.add_argument("--threads", type=positive, default=4, metavar="N")
    args = parser.parse_args(argv)
    return run_program(lambda place: _run(args, place))


def _run(args: argparse.Namespace, place: RankPlace) -> None:
    folder = Path(os.path.expandvars(args.folder)).absolute()
    size = max(1, args.megabytes * 10**6 // BLOCK) * BLOCK
    with explain_os_errors(folder), written_file(folder, size) as path:
        direct = reads_past_cache(path)
        seconds = [
            read_pass(path, size, args.threads, direct=direct) for _ in range(1 + args.passes)
        ]
    rates = [round(size / passed / _MEGA, 3) for passed in seconds[1:]]
    summary = {"read_mbs": median(rates), "best_read_mbs": max(rates), "past_cache": direct}
    write_measurement(
        "storage",
        [place.host],
        summary=summary,
        options={"directory": str(folder), "bytes": size, "threads": args.threads},
        samples={"seconds": seconds[1:], "read_mbs": rates},
    )
    print(f"{folder}: {summary['read_mbs']:,.0f} MB/s", flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""The content seal: every byte of a release of 30,000 files, and what a publish asks again."""

import os
import tempfile
from pathlib import Path
from statistics import median

from hpcdl.stack.release import read_release
from hpcdl.stack.seal import check_integrity, record_release
from hpcdl.system.resources import cache
from tests.bench import report, timed
from tests.small_release import make_release, small_site

FILES, SMALL = 30_000, 12_000
LARGE = (1_100_000_000, 300_000_000, 100_000_000)
"""Sizes of the libraries, sparse: TensorFlow's two, and all of the others."""
RUNS = 5


def main():
    cache().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache()) as folder:
        site = small_site(Path(folder))
        release = make_release(site, "large")
        fill(release.root / "stack" / "lib")
        sealing = timed(lambda: record_release(release))
        release = read_release(site, release.id)
        full = [check_integrity(release).seconds for _ in range(RUNS)]
        quick = [check_integrity(release, full=False).seconds for _ in range(RUNS)]
        found = check_integrity(release)
    assert found.ok
    size = f"{found.files:,} files, {found.size / 1e9:.1f} GB, {os.cpu_count()} cores"
    took, again = median(full), median(quick)
    report(
        "integrity of a release, every byte",
        took,
        "s",
        most=10,
        yardstick=f"sealing it: {sealing:.1f} s",
        note=size,
    )
    report(
        "integrity, as a publish asks it again",
        again,
        "s",
        most=1,
        note="the file system's records only",
    )


def fill(where):
    """Files as a release has them: many small ones in many directories, a few large ones."""
    block = os.urandom(SMALL)
    for number in range(FILES):
        directory = where / f"package{number // 50}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"module{number}.py").write_bytes(block)
    for number, size in enumerate(LARGE):
        with (where / f"library{number}.so").open("wb") as file:
            file.truncate(size)

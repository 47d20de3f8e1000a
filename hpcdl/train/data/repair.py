"""Skips damaged records: counts them, names them by file and offset, and continues without them.

TensorFlow's reader gives up a shard at its first damaged record. So when one turns up, the
shards are walked, and a damaged one is read from then on as a copy without the damaged records,
in the temporary directory of the node. More than the limit end the run.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from hpcdl.system.errors import BadInput
from hpcdl.system.files import explain_os_errors
from hpcdl.train.data.tfrecord import walk


class Repairs:
    """Damaged records of this rank's run, at most `limit`; `places` names them.

    `sound` says quickly whether a shard can be read whole; `say` is called for every damaged
    record, `read` after each shard that was looked through.
    """

    def __init__(
        self, limit: int, sound: Callable[[Path], bool], say: Callable[[str], None],
        read: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.places: set[str] = set()
        self._limit = limit
        self._sound = sound
        self._say = say
        self._read = read
        self._copies: dict[Path, Path] = {}
        self._folder: Path | None = None

    def path(self, shard: Path) -> Path:
        """The file to read for a shard: itself, or its copy without damaged records."""
        return self._copies.get(shard, shard)

    def repair(self, shards: Sequence[Path], why: str) -> None:
        """Find the damaged shards, copy what is sound in them; BadInput: too many records, none."""
        damaged = []
        for shard in shards:
            if shard not in self._copies:
                damaged += [] if self._sound(shard) else [shard]
                self._read()
        if not damaged:
            raise BadInput(f"a record is damaged, but no shard shows it: {why}")
        for shard in damaged:
            self._copies[shard] = self._copy(shard)
            self._read()

    def close(self) -> None:
        """Remove the copies."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _copy(self, shard: Path) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="hpcdl-repaired-"))
        copy = self._folder / f"{len(self._copies)}-{shard.name}"
        with explain_os_errors(copy), shard.open("rb") as old, copy.open("wb") as new:
            for record in walk(shard, check_data=True):
                if record.fault:
                    self.skip(shard, record.offset, record.fault)
                    continue
                old.seek(record.offset)
                new.write(old.read(record.length + 16))
        return copy

    def skip(self, shard: Path, offset: int, fault: str) -> None:
        """Count and name a record that is left out; BadInput: it is one too many."""
        self.places.add(f"{shard} at byte {offset}")
        place = f"{shard} at byte {offset}: {fault}"
        if len(self.places) > self._limit:
            raise BadInput(
                f"more than {self._limit} records are damaged; the last one is {place}",
                hint="`hpcdl data inspect` names all; --max-damaged N allows more",
            )
        self._say(f"skipped a damaged record: {place}")

"""Opens the next epoch while the last batches of this one are trained: its first one is decoded.

A thread does it. What it has is dropped where records have turned out damaged meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Generic, TypeVar

Item = TypeVar("Item")
BATCHES = 4
"""So many before the end of an epoch the next one is opened."""


class Ahead(Generic[Item]):
    """An epoch that `opens` gives; dropped if `state` gives something else when it is taken."""

    def __init__(self, opens: Callable[[], Iterator[Item]], state: Callable[[], object]) -> None:
        self._opens = opens
        self._state = state
        self._before = state()
        self._found: Iterator[Item] | None = None
        self._thread = threading.Thread(target=self._open, daemon=True)
        self._thread.start()

    def _open(self) -> None:
        with suppress(Exception):  # who takes it opens it again, and is told
            batches = self._opens()
            self._found = chain([next(batches)], batches)

    def take(self) -> Iterator[Item]:
        """The batches, from the first one on."""
        self.wait()
        return self._found if self._found and self._state() == self._before else self._opens()

    def wait(self) -> None:
        """Return when the thread has ended."""
        self._thread.join()

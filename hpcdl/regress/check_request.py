"""Which checks to run, and how: a plain value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CheckRequest:
    """Which checks to run and how. Empty selections mean all.

    `settings` are options of the training program (`name=value`); `repeat` runs every check so
    often; `retries` runs those that fail again, the last time counts (None: what was too slow, as
    often as the execution profile says); `distribute` runs single-node checks on every node;
    `measuring` needs no references.
    """

    partitions: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    waived: tuple[str, ...] = ()
    paths: tuple[Path, ...] = ()
    repeat: int = 1
    retries: int | None = None
    distribute: bool = False
    measuring: bool = False
    passed: tuple[str, ...] = ()
    """Further arguments of ReFrame."""
    config: tuple[Path, ...] = ()
    """Settings of ReFrame beside those that hpcdl writes."""

    @property
    def changed(self) -> tuple[str, ...]:
        """What makes the run unlike a night: settings, and variables passed on to ReFrame."""
        sets = [word for word in self.passed if word.startswith(("-S", "--setvar"))]
        return (*self.settings, *sets)

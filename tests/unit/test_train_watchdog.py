"""Who waits, and who is at work: reading all shards for a damaged record is no hang."""

import os
import time
from pathlib import Path

import pytest

from hpcdl.train.data.repair import Repairs
from hpcdl.train.watchdog import Watchdog


@pytest.fixture
def dogs(tmp_path: Path) -> list[Watchdog]:
    """Two ranks' watchdogs whose time is over."""
    pair = [Watchdog(tmp_path, rank, 2, 600.0) for rank in (0, 1)]
    for dog in pair:
        dog._alive_at = time.monotonic() - 601.0
    return pair


def test_a_rank_at_work_is_waited_for_by_all(dogs: list[Watchdog], tmp_path: Path) -> None:
    assert [dog._is_stuck() for dog in dogs] == [True, True]
    dogs[0].work()
    assert [dog._is_stuck() for dog in dogs] == [False, False]
    long_ago = time.time() - 700.0
    os.utime(tmp_path / "stacks" / "at-work", (long_ago, long_ago))
    assert [dog._is_stuck() for dog in dogs] == [False, True]


def test_a_slow_start_is_no_hang_whatever_the_limit_of_a_step(tmp_path: Path) -> None:
    dog = Watchdog(tmp_path, 0, 2, 4.0)
    dog.start()
    dog.close()
    dog._alive_at -= 590.0
    assert not dog._is_stuck()
    dog.be_patient()
    dog._alive_at -= 23.0
    assert not dog._is_stuck()
    dog.step(1)
    dog._alive_at -= 5.0
    assert dog._is_stuck()


def test_every_shard_that_is_looked_through_counts_as_work(tmp_path: Path) -> None:
    shards = [tmp_path / f"{number}.tfrecord" for number in range(5)]
    shards[3].touch()
    seen: list[str] = []
    repairs = Repairs(1, lambda path: path != shards[3], print, lambda: seen.append("read"))
    repairs.repair(shards, "why")
    repairs.close()
    assert len(seen) == 6, "five were looked through, one was copied"

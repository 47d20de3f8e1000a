"""What goes wrong, and how ranks leave: memory, disks, hangs, members and ranks that are gone."""

import os
import socket
import threading
import time
from types import SimpleNamespace

import pytest

np = pytest.importorskip("numpy", reason="numpy comes with the stack")

from hpcdl.measure.find_batch import Bounds, search  # noqa: E402
from hpcdl.train import communicate, diagnostics, parameter_server, program  # noqa: E402
from hpcdl.train.communicate import Horovod  # noqa: E402
from hpcdl.train.data.tfrecord import Repairs  # noqa: E402
from hpcdl.train.diagnostics import Watchdog, explain, is_out_of_memory, out_of_memory  # noqa: E402
from hpcdl.train.options import TrainOptions  # noqa: E402
from hpcdl.train.startup import RankPlace, StartupClock  # noqa: E402


@pytest.mark.parametrize("unit", [1, 3])
@pytest.mark.parametrize("limit", [*range(40), 100, 701, 2999])
def test_the_largest_batch_that_fits_is_found_within_an_eighth(limit, unit):
    bounds = Bounds(0, 3000, unit, time.monotonic() + 60)
    tried = []

    def fits(batch):
        tried.append(batch)
        return batch <= limit

    search(bounds, fits)
    assert bounds.low <= limit < bounds.high
    assert bounds.low % unit == 0
    assert bounds.high - bounds.low <= max(unit, bounds.low // 8)
    assert len(tried) == len(set(tried)) <= 14
    assert sum(batch > limit for batch in tried) <= 9, "each may end a process"


def test_no_trial_begins_after_the_time():
    bounds = Bounds(0, 64, 1, time.monotonic() - 1)
    search(bounds, lambda _: pytest.fail("tried"))
    assert (bounds.low, bounds.high) == (0, 64)


class Exhausted(Exception):
    """TensorFlow's error for memory and for disks."""


def test_a_lack_of_memory_and_a_full_disk_are_told_apart(monkeypatch):
    errors = SimpleNamespace(ResourceExhaustedError=Exhausted)
    monkeypatch.setattr(diagnostics, "tf", SimpleNamespace(errors=errors))
    full = Exhausted("/job/events; No space left on device")
    assert is_out_of_memory(Exhausted("OOM when allocating tensor"))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(full)
    error = explain(full, "there is no checkpoint yet")
    assert error is not None
    assert (error.message, error.exit_code) == ("no space left on the file system", 3)
    assert "there is no checkpoint yet" in (error.hint or "")
    assert explain(ValueError("ours"), "") is None
    error = out_of_memory("Graph error:\n  OOM when allocating\nmore", 96)
    assert (error.details, error.exit_code) == (("OOM when allocating",), 3)
    assert "--find-batch" in (error.hint or "")


def test_a_rank_at_work_is_waited_for_by_all(tmp_path):
    dogs = [Watchdog(tmp_path, rank, 2, 600.0) for rank in (0, 1)]
    for dog in dogs:
        dog._alive_at = time.monotonic() - 601.0
    assert [dog._is_stuck() for dog in dogs] == [True, True]
    dogs[0].work()
    assert [dog._is_stuck() for dog in dogs] == [False, False]
    long_ago = time.time() - 700.0
    os.utime(tmp_path / "stacks" / "at-work", (long_ago, long_ago))
    assert [dog._is_stuck() for dog in dogs] == [False, True]


def test_a_slow_start_is_no_hang_whatever_the_limit_of_a_step(tmp_path):
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


def test_every_shard_that_is_looked_through_counts_as_work(tmp_path):
    shards = [tmp_path / f"{number}.tfrecord" for number in range(5)]
    shards[3].touch()
    seen = []
    repairs = Repairs(1, lambda path: path != shards[3], print, lambda: seen.append("read"))
    repairs.repair(shards, "why")
    repairs.close()
    assert len(seen) == 6, "five were looked through, one was copied"


def test_a_watchdog_that_cannot_write_ends_the_run_all_the_same(tmp_path, monkeypatch):
    (tmp_path / "stacks").write_text("a file")
    monkeypatch.setattr(diagnostics, "_GRACE", 0.0)
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    Watchdog(tmp_path, 0, 1, 1.0)._end()
    assert ended == [5]


def test_no_rank_leaves_while_rank_0_writes_the_last_checkpoint(monkeypatch):
    tf = SimpleNamespace(constant=np.asarray, float64=np.float64)
    monkeypatch.setattr(communicate, "tf", tf)
    meeting, happened = threading.Barrier(2), []

    def allreduce(values, **_):
        meeting.wait(10)
        return values

    def leave(rank, writing):
        time.sleep(writing)
        happened.append(f"rank {rank} is done")
        Horovod(
            SimpleNamespace(
                rank=lambda: rank,
                size=lambda: 2,
                Sum=None,
                allreduce=allreduce,
                shutdown=lambda: happened.append(f"rank {rank} leaves"),
            )
        ).close()

    slow = threading.Thread(target=leave, args=(0, 0.2))
    slow.start()
    leave(1, 0.0)
    slow.join()
    assert happened[:2] == ["rank 1 is done", "rank 0 is done"]
    assert sorted(happened[2:]) == ["rank 0 leaves", "rank 1 leaves"]


@pytest.mark.parametrize(
    ("code", "size", "at_once"), [(75, 2, True), (5, 2, True), (0, 2, False), (75, 1, False)]
)
def test_ranks_that_are_to_be_requeued_exit_at_once(code, size, at_once, monkeypatch):
    happened = []
    ranks = SimpleNamespace(close=lambda: happened.append("all have come"))
    run = SimpleNamespace(go=lambda: code, ranks=ranks)
    monkeypatch.setattr(program, "prepare", lambda *_: run)
    monkeypatch.setattr(os, "_exit", happened.append)
    assert program._run(TrainOptions(), RankPlace(0, size, 0, size, 1, "a"), StartupClock()) == code
    assert happened == (["all have come", code] if at_once else ["all have come"])


def member(code):
    return SimpleNamespace(poll=lambda: code, returncode=code)


@pytest.mark.parametrize(
    ("chief", "told", "started"),
    [(0, 0, []), (75, 75, []), (-9, 0, [False])],
    ids=["the chief's own end is no loss", "nor its requeue", "killed, it does not start over"],
)
def test_members_that_were_killed_start_again(chief, told, started, monkeypatch):
    fresh = []

    def start(options, *_):
        fresh.append(options.fresh)
        return member(None)

    monkeypatch.setattr(parameter_server, "_start", start)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    answers = iter([None, told])
    members = {("chief", 0): member(chief), ("ps", 0): member(None)}
    options = TrainOptions(fresh=True)
    assert parameter_server._watch(options, {}, members, lambda: next(answers)) == told
    assert fresh == started


def test_ranks_whose_rank_0_is_gone_end_without_a_traceback(monkeypatch):
    monkeypatch.setattr("signal.signal", lambda *_: None)
    door = socket.create_server(("127.0.0.1", 0))
    place = door.getsockname()[:2]

    def gone(*_):
        door.close()  # it never accepted: the connection is reset
        return 1

    monkeypatch.setattr(parameter_server.time, "sleep", gone)
    assert parameter_server._follow(TrainOptions(), {}, {("worker", 1): member(None)}, place) == 1

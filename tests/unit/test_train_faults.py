"""What goes wrong, and how ranks leave: memory, disks, hangs, members and ranks that are gone."""

import os
import signal
import threading
import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

np = pytest.importorskip("numpy", reason="numpy comes with the stack")

from hpcdl.results.records import RESULT  # noqa: E402
from hpcdl.system.errors import BadInput  # noqa: E402
from hpcdl.train import diagnostics, program, ranks, stop_signals  # noqa: E402
from hpcdl.train.diagnostics import StepWatchdog, explain  # noqa: E402
from hpcdl.train.startup import RankPlace  # noqa: E402
from hpcdl.train.stop_signals import Interrupted, StopSignals  # noqa: E402


class Exhausted(Exception):
    """TensorFlow's error for memory and for disks."""


def test_a_lack_of_memory_and_a_full_disk_are_told_apart(monkeypatch):
    errors = SimpleNamespace(ResourceExhaustedError=Exhausted, OpError=Exhausted)
    monkeypatch.setattr(diagnostics, "tf", SimpleNamespace(errors=errors))
    error = explain(Exhausted("/job/events; No space left on device"), 96, "there is none yet")
    assert error is not None
    assert (error.message, error.exit_code) == ("no space left on the file system", 3)
    assert "there is none yet" in (error.hint or "")
    assert explain(ValueError("ours"), 96, "") is None
    error = explain(Exhausted("Graph error:\n  OOM when allocating\nmore"), 96, "")
    assert error is not None
    assert error.message == "out of memory with 96 examples per rank"
    assert (error.details, error.exit_code) == (("OOM when allocating",), 3)
    assert "gradient_accumulation_steps" in (error.hint or "")
    assert "out of memory" in getattr(explain(MemoryError(), 1, ""), "message", "")


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        *(("fit", BadInput), ("evaluate", BadInput)),
        *(("resume", ValueError), ("_export", ValueError), ("_end", ValueError)),
    ],
)
def test_only_what_keras_runs_is_explained_as_a_users(tmp_path, monkeypatch, place, kind):
    if not hasattr(diagnostics.tf, "keras"):
        keras = SimpleNamespace(callbacks=SimpleNamespace(Callback=object))
        monkeypatch.setattr(diagnostics.tf, "keras", keras, raising=False)
    from hpcdl.train import rank_run

    errors = SimpleNamespace(ResourceExhaustedError=Exhausted, OpError=Exhausted)
    monkeypatch.setattr(diagnostics, "tf", SimpleNamespace(errors=errors))
    training = Mock(callbacks=[], step_number=0)
    wrong = Mock(side_effect=ValueError("no such name"))
    for name in ("resume", "evaluate", "global_batch", "models"):
        monkeypatch.setattr(rank_run, name, Mock(return_value={}))
    rank_run.global_batch.return_value = 8
    run_class = rank_run.RankRun
    for name in ("_export", "_end", "_write", "_require_finite"):
        monkeypatch.setattr(run_class, name, Mock())
    monkeypatch.setattr(run_class, "_prepare", lambda _: training)
    owner = training if place == "fit" else run_class if place[0] == "_" else rank_run
    monkeypatch.setattr(owner, place, wrong)
    options = SimpleNamespace(folder=tmp_path, epochs=1, weights=None)
    joined = SimpleNamespace(rank=0, size=1, gather=lambda value: [value])
    run = run_class(options, Mock(), Mock(), joined, {}, Mock())
    with pytest.raises(kind) as raised:
        run.go()
    assert type(raised.value) is kind
    wrong.assert_called_once()


def test_a_slow_start_is_no_hang_whatever_the_limit_of_a_step(tmp_path):
    dog = StepWatchdog(tmp_path, 0, 4.0)
    dog.start()
    dog.close()
    dog._alive_at -= 590.0
    assert not dog.is_stuck()
    dog.be_patient()
    dog._alive_at -= 23.0
    assert not dog.is_stuck()
    dog.step(1)
    dog._alive_at -= 5.0
    assert dog.is_stuck()


def test_a_watchdog_ends_the_run_also_where_nobody_reads_what_it_says(tmp_path, monkeypatch):
    monkeypatch.setattr(diagnostics, "_GRACE", 0.0)
    monkeypatch.setattr("sys.stderr", None)
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    StepWatchdog(tmp_path, 0, 1.0)._end()
    assert ended == [5]


def test_no_rank_leaves_while_rank_0_writes_the_last_checkpoint(monkeypatch):
    tf = SimpleNamespace(constant=np.asarray, float64=np.float64)
    monkeypatch.setattr(ranks, "tf", tf)
    meeting, happened = threading.Barrier(2), []

    def allreduce(values, **_):
        meeting.wait(10)
        return values

    def leave(rank, writing):
        time.sleep(writing)
        happened.append(f"rank {rank} is done")
        ranks.Horovod(
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
    met = SimpleNamespace(close=lambda: happened.append("all have come"))
    run = SimpleNamespace(go=lambda: code, ranks=met)
    monkeypatch.setattr(program, "prepare", lambda *_: run)
    monkeypatch.setattr(os, "_exit", happened.append)
    monkeypatch.setattr(program.startup, "this_place", lambda: RankPlace(0, size, 0, size, 1, "a"))
    assert program.train([], StopSignals()) == code
    assert happened == (["all have come", code] if at_once else ["all have come"])


@pytest.fixture
def handlers():
    """The process has its handlers of signals again after a test."""
    before = {each: signal.getsignal(each) for each in stop_signals.HEARD}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(
    ("number", "code", "status"), [(signal.SIGUSR1, 75, "requeue"), (signal.SIGTERM, 5, "stopped")]
)
def test_a_signal_before_tensorflow_leaves_a_result(tmp_path, monkeypatch, number, code, status):
    signals = StopSignals()
    monkeypatch.setattr(program, "prepare", lambda *_: os.kill(os.getpid(), number))
    signals.listen()
    assert program.train([f"--job-dir={tmp_path}"], signals) == code
    record = RESULT.read(tmp_path / "result.json")
    assert record.faults == {}
    assert record.values["outcome"]["status"] == status
    assert record.values["outcome"]["exit_code"] == code


@pytest.mark.usefixtures("handlers")
def test_while_training_a_signal_waits_for_the_step_and_term_outranks():
    signals = StopSignals()
    signals.training_begins()
    assert signals.value == 0.0
    for number, value in ((signal.SIGUSR2, 1.0), (signal.SIGTERM, 1e5), (signal.SIGUSR1, 1e5)):
        signals._hear(number, None)
        assert signals.value == value
    with pytest.raises(Interrupted):
        signals.preparation_begins()  # a signal that came while Python was starting

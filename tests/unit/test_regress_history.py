"""The history of all nights survives crashes, and the gate answers from it."""

from __future__ import annotations

import multiprocessing
import random
import sqlite3
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from hpcdl.regress.gate import ask
from hpcdl.regress.history import (
    Result,
    as_csv,
    as_json_lines,
    file_system,
    open_history,
    read_results,
    refuse_without_locks,
)
from hpcdl.system.errors import BadInput, MachineLacks

NOW = datetime(2026, 6, 1, tzinfo=timezone.utc)


def result(night: int = 0, value: float = 1000.0, **changes: object) -> Result:
    time = (NOW - timedelta(days=100 - night)).isoformat(timespec="seconds")
    return Result(**{"run": f"run-{night}", "time": time, "check_name": "throughput",
                     "case_name": "mlp", "partition": "p100", "metric": "images_per_second",
                     "value": value, "unit": "images/s", "status": "PASS", "release": "r1",
                     "job": night + 1, **changes})  # fmt: skip


def nights(factor: float = 1.0, start: int = 200) -> list[Result]:
    rng = random.Random(5)
    return [
        result(n, 1000 * (1 + 0.01 * rng.gauss(0, 1)) * (factor if n >= start else 1),
               release="r2" if n >= start else "r1")
        for n in range(100)
    ]  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


def test_the_same_run_is_added_once(file: Path) -> None:
    with open_history(file) as history:
        assert history.add(nights()) == 100
        assert history.add(nights()) == 0


@pytest.mark.parametrize("write", [as_json_lines, as_csv])
def test_an_export_can_be_imported_anew(file: Path, tmp_path: Path, write: object) -> None:
    with open_history(file) as history:
        history.add([*nights(), result(3, metric="", value=float("nan"), reason='a "b", c\nd')])
        before = list(history.results())
        text = "\n".join(write(history.results()))  # type: ignore[operator]
    copy = tmp_path / "copy"
    copy.write_text(text)
    with open_history(tmp_path / "other.sqlite") as other:
        other.add(read_results(copy))
        assert list(other.results()) == before


def test_a_file_cut_in_the_middle_names_the_line(tmp_path: Path) -> None:
    lines = list(as_json_lines(nights()))
    file = tmp_path / "cut.jsonl"
    file.write_text("\n".join(lines)[:-30])
    with pytest.raises(BadInput, match="line 100"):
        read_results(file)


def test_a_damaged_history_is_said_to_be_damaged(file: Path) -> None:
    with open_history(file) as history:
        history.add(nights())
    data = bytearray(file.read_bytes())
    data[100:4000] = random.Random(1).randbytes(3900)
    file.write_bytes(data)
    with pytest.raises((BadInput, MachineLacks), match="history"), open_history(file) as history:
        list(history.results())


def test_a_file_that_is_no_history_is_refused(file: Path) -> None:
    file.write_text("date,value\n" * 1000)
    with pytest.raises(BadInput, match="damaged"), open_history(file) as history:
        history.series()


def test_what_is_written_half_when_a_process_dies_is_not_there(file: Path) -> None:
    with open_history(file) as history:
        history.add([result(0)])

    def broken() -> list[Result]:
        yield result(1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), open_history(file) as history:
        history.add(broken())
    with open_history(file) as history:
        assert len(list(history.results())) == 1


def add_many(file: Path, part: int) -> None:
    for night in range(5):
        with open_history(file) as history:
            history.add([result(night, run=f"{part}-{night}")])


def test_several_nights_at_once_lose_nothing(file: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=add_many, args=(file, part)) for part in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    with open_history(file) as history:
        assert len(list(history.results())) == 20


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "gpfs", "beegfs"])
def test_a_file_system_without_dependable_locks_is_refused(tmp_path: Path, kind: str) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nserver:/x {tmp_path} {kind} rw 0 0\n")
    with pytest.raises(MachineLacks, match=kind):
        refuse_without_locks(tmp_path / "h.sqlite", str(mounts))
    assert file_system(Path("/elsewhere/h"), str(mounts)) == "ext4"


def test_a_history_of_a_newer_hpcdl_is_not_touched(file: Path) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA user_version=99")
    with pytest.raises(BadInput, match="newer"), open_history(file):
        pass


def gate(file: Path, results: list[Result]) -> tuple[bool, list[str]]:
    with open_history(file) as history:
        history.add(results)
        answer = ask(history, now=NOW)
    return answer.open, [f"{finding.kind}: {finding.words}" for finding in answer.findings]


def test_the_gate_is_open_after_healthy_nights_and_closed_without_any(file: Path) -> None:
    assert gate(file, []) == (False, [])
    assert gate(file, nights()) == (True, [])


def test_a_release_that_halves_throughput_closes_the_gate_and_is_named(file: Path) -> None:
    is_open, words = gate(file, nights(0.5, start=99))
    assert not is_open
    assert "breakage" in words[0]
    assert "release r1 -> r2" in words[0]


def test_a_slow_drift_within_the_bounds_closes_the_gate(file: Path) -> None:
    is_open, words = gate(file, nights(0.94, start=96))
    assert not is_open
    assert words[0].startswith("drop: -")


@pytest.mark.parametrize("status", ["FAIL", "ERROR", "NO-REFERENCE", "STALE"])
def test_a_last_night_that_did_not_pass_closes_the_gate(file: Path, status: str) -> None:
    assert not gate(file, [*nights()[:-1], result(99, status=status, reason="why")])[0]


def test_a_waived_night_does_not(file: Path) -> None:
    assert gate(file, [*nights()[:-1], result(99, status="STALE", waived=True)])[0]


def test_nights_that_stopped_coming_close_the_gate(file: Path) -> None:
    is_open, words = gate(file, nights()[:90])
    assert not is_open
    assert words[0].startswith("old")


def test_an_error_of_long_ago_does_not_close_the_gate_for_ever(file: Path) -> None:
    assert gate(file, [*nights(), result(50, metric="", value=None, status="ERROR")])[0]


def test_one_slow_node_closes_the_gate_and_is_named(file: Path) -> None:
    rng = random.Random(2)
    each = [
        result(95 + n, 1000 * (1 + 0.01 * rng.gauss(0, 1)) * (0.85 if node == 4 else 1),
               nodes=f"n{node}", job=1000 + 100 * n + node)
        for n in range(5) for node in range(8)
    ]  # fmt: skip
    is_open, words = gate(file, each)
    assert not is_open
    assert "slow node: n4 is slower than the others" in words

"""Validation that has no score, a parameter server's members, checkpoints of an abandoned run."""

import math
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

np = pytest.importorskip("numpy", reason="numpy comes with the stack")

from hpcdl.system.errors import BadInput  # noqa: E402
from hpcdl.train import checkpoint, parameter_server, watchdog  # noqa: E402
from hpcdl.train.options import TrainOptions  # noqa: E402
from hpcdl.train.tasks import Validation  # noqa: E402


def validation(*scores: dict[str, float], required: bool = True, patience: int = 0) -> Validation:
    found = Validation(1, "accuracy", patience, dict, required)
    for step, one in enumerate(scores, 1):
        found.add(step, one)
    return found


def test_a_score_that_is_no_number_is_never_the_best() -> None:
    found = validation({"accuracy": math.nan}, {"accuracy": 0.1}, {"accuracy": 0.3}, patience=2)
    assert (found.best_step(), found.in_vain) == (3, False)


def test_scores_of_before_without_the_metric_do_not_count() -> None:
    found = validation()
    found.found = [{"step": 2, "test_loss": 1.0}]
    assert found.add(4, {"accuracy": 0.2})
    assert found.best_step() == 4


def test_a_metric_is_missed_only_where_it_was_asked_for() -> None:
    assert validation({"test_loss": 1.0}, required=False).found == [{"step": 1, "test_loss": 1.0}]
    with pytest.raises(BadInput, match="no metric 'accuracy'"):
        validation({"test_loss": 1.0})


def test_checkpoints_after_the_step_that_is_saved_are_of_an_abandoned_run(tmp_path: Path) -> None:
    for step in (50, 100, 60):
        checkpoint.save(tmp_path, checkpoint.Checkpoint(step, {}, (np.ones(2),)), keep=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-000000060.ckpt", "step-000000100.bad",
    ]  # fmt: skip


def test_a_watchdog_that_cannot_write_ends_the_run_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stacks").write_text("a file")
    monkeypatch.setattr(watchdog, "_GRACE", 0.0)
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    watchdog.Watchdog(tmp_path, 0, 1, 1.0)._end()
    assert ended == [5]


def members(chief: int | None, server: int | None) -> Any:
    def one(code: int | None) -> Any:
        return SimpleNamespace(poll=lambda: code, returncode=code)

    return {("chief", 0): one(chief), ("ps", 0): one(server)}


@pytest.mark.parametrize("code", [0, 75])
def test_the_chief_s_own_end_is_no_loss(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameter_server, "_start", lambda *_: pytest.fail("started again"))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    told = iter([None, code])
    found = parameter_server._watch(TrainOptions(), {}, members(code, None), lambda: next(told))
    assert found == code


def test_a_killed_chief_resumes_and_does_not_start_over(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[bool] = []

    def start(options: TrainOptions, *_: Any) -> Any:
        started.append(options.fresh)
        return SimpleNamespace(poll=lambda: None)

    monkeypatch.setattr(parameter_server, "_start", start)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    told = iter([None, 0])
    parameter_server._watch(TrainOptions(fresh=True), {}, members(-9, None), lambda: next(told))
    assert started == [False]


def test_ranks_whose_rank_0_is_gone_end_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    door = socket.create_server(("127.0.0.1", 0))
    place = door.getsockname()[:2]

    def gone(*_: Any) -> Any:
        door.close()  # it never accepted: the connection is reset
        return 1

    monkeypatch.setattr(parameter_server.time, "sleep", gone)
    running = {("worker", 1): SimpleNamespace(poll=lambda: None)}
    assert parameter_server._follow(TrainOptions(), {}, running, place) == 1

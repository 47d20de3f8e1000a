"""How ranks leave: together, and not before rank 0 has written what all have learnt."""

import os
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

np = pytest.importorskip("numpy", reason="numpy comes with the stack")

from hpcdl.train import communicate, program  # noqa: E402
from hpcdl.train.communicate import Horovod  # noqa: E402
from hpcdl.train.options import TrainOptions  # noqa: E402
from hpcdl.train.ranks import RankPlace  # noqa: E402
from hpcdl.train.startup import StartupClock  # noqa: E402

TF: Any = SimpleNamespace(constant=np.asarray, float64=np.float64)


def test_no_rank_leaves_while_rank_0_writes_the_last_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(communicate, "tf", TF)
    meeting, happened = threading.Barrier(2), []

    def horovod(rank: int) -> Any:
        def allreduce(values: Any, **_: Any) -> Any:
            meeting.wait(10)
            return values

        return SimpleNamespace(
            rank=lambda: rank, size=lambda: 2, Sum=None, allreduce=allreduce,
            shutdown=lambda: happened.append(f"rank {rank} leaves"),
        )  # fmt: skip

    def leave(rank: int, writing: float) -> None:
        time.sleep(writing)
        happened.append(f"rank {rank} is done")
        Horovod(horovod(rank)).close()

    slow = threading.Thread(target=leave, args=(0, 0.2))
    slow.start()
    leave(1, 0.0)
    slow.join()
    assert happened[:2] == ["rank 1 is done", "rank 0 is done"]
    assert sorted(happened[2:]) == ["rank 0 leaves", "rank 1 leaves"]


@pytest.mark.parametrize(
    ("code", "size", "at_once"), [(75, 2, True), (5, 2, True), (0, 2, False), (75, 1, False)]
)
def test_ranks_that_are_to_be_requeued_exit_within_the_same_moment(
    code: int, size: int, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[object] = []
    ranks = SimpleNamespace(close=lambda: happened.append("all have come"))
    run = SimpleNamespace(go=lambda: code, ranks=ranks)
    monkeypatch.setattr(program, "prepare", lambda *_: run)
    monkeypatch.setattr(os, "_exit", happened.append)
    place = RankPlace(0, size, 0, size, 1, "a")
    assert program._run(TrainOptions(), place, StartupClock()) == code
    assert happened == (["all have come", code] if at_once else ["all have come"])

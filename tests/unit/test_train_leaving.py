"""How ranks leave: together, and not before rank 0 has written what all have learnt."""

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

np = pytest.importorskip("numpy", reason="numpy comes with the stack")

from hpcdl.train.communicate import Horovod  # noqa: E402

TF: Any = SimpleNamespace(constant=np.asarray, float64=np.float64)


def test_no_rank_leaves_while_rank_0_writes_the_last_checkpoint() -> None:
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
        Horovod(TF, horovod(rank)).close()

    slow = threading.Thread(target=leave, args=(0, 0.2))
    slow.start()
    leave(1, 0.0)
    slow.join()
    assert happened[:2] == ["rank 1 is done", "rank 0 is done"]
    assert sorted(happened[2:]) == ["rank 0 leaves", "rank 1 leaves"]

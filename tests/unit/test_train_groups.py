"""Short steps are run in groups; checkpoints are written while training continues."""

import dataclasses
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

np = pytest.importorskip("numpy", reason="numpy comes with the stack")

from hpcdl.system.errors import BadInput  # noqa: E402
from hpcdl.train import checkpoint, loop  # noqa: E402
from hpcdl.train.run_plan import RunPlan  # noqa: E402


@pytest.mark.parametrize(
    ("seconds", "steps"),
    [(float("inf"), 1), (2.0, 1), (0.025, 1), (0.013, 1), (0.012, 2), (0.001, 16), (1e-9, 64),
     (0.0, 1), (float("nan"), 1)],
)  # fmt: skip
def test_a_group_takes_about_25_ms_and_a_long_step_is_alone(seconds: float, steps: int) -> None:
    assert 2 ** loop.level_for(seconds) == steps


def training(done: int, *, every: int = 0, delay: float = 0.0, grouped: bool = True) -> Any:
    plan = RunPlan(64, 100, 0, 0.1, every)
    return SimpleNamespace(
        options=SimpleNamespace(delay_ms=delay), parts=SimpleNamespace(grouped=grouped),
        plan=plan, step_number=done, level=4,
    )  # fmt: skip


def test_a_group_never_goes_beyond_a_checkpoint_or_the_end() -> None:
    assert loop._wanted(training(0)) == 16
    assert loop._wanted(training(90)) == 10
    assert loop._wanted(training(0, every=7)) == 7
    assert loop._wanted(training(5, every=7)) == 2
    assert loop._wanted(training(98, every=7)) == 2


def test_delayed_steps_and_big_networks_go_one_by_one() -> None:
    assert loop._wanted(training(0, delay=1.0)) == 1
    assert loop._wanted(training(0, grouped=False)) == 1


def test_groups_give_every_step_once_and_end_with_the_epoch() -> None:
    from hpcdl.train.data.source import InMemory, Share

    source = InMemory.__new__(InMemory)
    source._share = Share(4, 2, 1, 1)
    source._train = (np.arange(22), np.arange(22))
    source.steps_per_epoch = 5
    one_by_one = np.concatenate([group.images for group in source.batches(0, 0)])
    grouped = list(source.batches(0, 0, lambda: 3))
    assert [group.steps for group in grouped] == [3, 2]
    assert (np.concatenate([group.images for group in grouped]) == one_by_one).all()
    resumed = np.concatenate([group.images for group in source.batches(0, 2, lambda: 8)])
    assert (resumed == one_by_one[2:]).all()


def test_training_continues_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = threading.Event()
    save = checkpoint.save

    def slow(*arguments: Any) -> Path:
        assert disk.wait(60)
        return save(*arguments)

    monkeypatch.setattr(checkpoint, "save", slow)
    writer = checkpoint.Writer(tmp_path, keep=2)
    state = checkpoint.Checkpoint(3, {}, (np.ones(4, np.float32),))
    writer.submit(state)
    assert checkpoint.newest(tmp_path) is None, "nothing was waited for"
    disk.set()
    writer.wait()
    found = checkpoint.newest(tmp_path)
    assert found is not None
    assert dataclasses.replace(found, arrays=()) == dataclasses.replace(state, arrays=())


@pytest.mark.parametrize(("restarts", "kept"), [(None, False), ("0", False), ("2", True)])
def test_a_fresh_run_starts_over_once_and_resumes_when_it_is_requeued(
    tmp_path: Path, restarts: str | None, kept: bool
) -> None:
    folder, said = tmp_path / "checkpoints", []
    folder.mkdir()
    environ = {} if restarts is None else {"SLURM_RESTART_COUNT": restarts}
    checkpoint.start_over(folder, environ, said.append)
    assert folder.is_dir() is kept
    assert (tmp_path / "checkpoints.before-1").is_dir() is not kept
    assert len(said) == kept


@pytest.mark.parametrize(
    ("step", "ranks", "schema", "streams"),
    [(7, 1, 2, 6), (7, 3, 2, 6), (7, 6, 1, 6), (10, 4, 2, 4), (10, 2, 1, 6), (7, 4, 2, None)],
)
def test_a_run_resumes_with_the_shard_streams_of_its_epoch(
    tmp_path: Path, step: int, ranks: int, schema: int, streams: int | None
) -> None:
    plan = RunPlan(24, 100, 10, 0.1, 0)
    run: Any = SimpleNamespace(
        options=SimpleNamespace(model="mlp", data="d", seed=1), plan=plan, variables=(),
        checkpoint_directory=tmp_path, reporter=SimpleNamespace(say=print),
        ranks=SimpleNamespace(rank=0, size=ranks, sum_on_host=np.copy, broadcast=len),
        source=SimpleNamespace(streams=4), samples=SimpleNamespace(), loss=0.0,
    )  # fmt: skip
    meta = {**loop.identity_of(run), "loss": 1.0, "lanes" if schema == 1 else "streams": 6}
    file = checkpoint.save(tmp_path, checkpoint.Checkpoint(step, meta, ()), keep=1)
    file.write_bytes(file.read_bytes().replace(b"checkpoint-2", b"checkpoint-%d" % schema, 1))
    if streams is None:
        with pytest.raises(BadInput, match="4 ranks cannot resume inside an epoch"):
            loop.resume(run)
    else:
        loop.resume(run)
        assert (run.step_number, run.source.streams) == (step, streams)

"""Checkpoints, resuming, and what was measured."""

import json
import threading
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

np = pytest.importorskip("numpy", reason="numpy comes with the stack")

from hpcdl.system.errors import BadInput, MissingPrerequisite  # noqa: E402
from hpcdl.train import checkpoint, fitting  # noqa: E402
from hpcdl.train.fitting import identity_of  # noqa: E402
from hpcdl.train.options import RunNumbers, TrainOptions  # noqa: E402
from hpcdl.train.result import curve_of  # noqa: E402


def test_training_continues_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    disk = threading.Event()
    save = checkpoint.save

    def slow(*arguments):
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
    assert replace(found, arrays=()) == replace(state, arrays=())


@pytest.mark.parametrize("header", [[1], {"arrays": "x", "step": 9, "meta": {}}, None])
def test_a_file_of_numpy_that_is_no_checkpoint_is_skipped(tmp_path, header):
    said = []
    checkpoint.save(tmp_path, checkpoint.Checkpoint(5, {}, (np.zeros(3),)), keep=3)
    with (tmp_path / "step-000000009.ckpt").open("wb") as file:
        if header is None:
            np.save(file, np.zeros(3))
        else:
            np.savez(file, header=np.frombuffer(json.dumps(header).encode(), np.uint8))
    found = checkpoint.newest(tmp_path, said.append)
    assert (found.step, len(said)) == (5, 1)


def test_callbacks_begin_once_inside_fit_which_they_can_stop(monkeypatch):
    begun = []

    class Model:
        stop_training, optimizer = False, None

        def fit(self, data, callbacks, steps_per_epoch, **_):
            self.stop_training = False  # as Keras does first
            callbacks.on_train_begin()
            begun.append(steps_per_epoch)
            callbacks.on_train_end()

    def stop(logs=None):
        begun.append("begin")
        model.stop_training = stops.pop()

    model, stops = Model(), [True, False]
    listed = Mock(side_effect=lambda *_, **__: Mock(on_train_begin=stop))
    keras = SimpleNamespace(callbacks=SimpleNamespace(CallbackList=listed))
    monkeypatch.setattr(fitting, "tf", SimpleNamespace(keras=keras))
    numbers = SimpleNamespace(steps=25, steps_per_epoch=10, checkpoint_every=0)
    training = SimpleNamespace(
        model=model, numbers=numbers, most=1, class_weight=None, _batches=Mock()
    )
    for seen in (["begin", 10, 5], ["begin", 10]):
        begun.clear()
        fitting.Training.fit(training, 0, [])
        assert begun == seen


@pytest.mark.parametrize(("restarts", "kept"), [(None, False), ("0", False), ("2", True)])
def test_a_fresh_run_starts_over_once_and_resumes_when_it_is_requeued(tmp_path, restarts, kept):
    folder, said = tmp_path / "checkpoints", []
    folder.mkdir()
    environ = {} if restarts is None else {"SLURM_RESTART_COUNT": restarts}
    checkpoint.start_over(folder, environ, said.append)
    assert folder.is_dir() is kept
    assert (tmp_path / "checkpoints.before-1").is_dir() is not kept
    assert len(said) == kept


def resumed(tmp_path, monkeypatch, step=3, streams=0, ranks=1, **changes):
    """Resume from a checkpoint of the default options a run of `ranks` ranks and other options."""

    def run(lr=0.1, **options):
        return SimpleNamespace(
            options=TrainOptions(**options),
            numbers=RunNumbers(24, 100, 10, lr, 0),
            variables=(),
            ranks=SimpleNamespace(rank=0, size=ranks, gather=lambda value: [value]),
            source=SimpleNamespace(streams=4, digest=options.get("data", "d"), shape=(8, 8, 3)),
            checkpoints=tmp_path,
            reporter=SimpleNamespace(say=print),
            samples=SimpleNamespace(),
        )

    monkeypatch.setattr(fitting, "broadcast", lambda _: None)
    meta = {**identity_of(run()), "streams": streams}
    checkpoint.save(tmp_path, checkpoint.Checkpoint(step, meta, (np.zeros(step),)), keep=1)
    other = run(**changes)
    fitting.resume(other)
    return other


@pytest.mark.parametrize(
    ("step", "ranks", "streams"), [(7, 1, 6), (7, 3, 6), (7, 6, 6), (10, 4, 4), (10, 2, 6)]
)
def test_a_run_resumes_with_the_shard_streams_of_its_epoch(
    tmp_path, monkeypatch, step, ranks, streams
):
    run = resumed(tmp_path, monkeypatch, step, 6, ranks)
    assert (run.step_number, run.source.streams) == (step, streams)
    with pytest.raises(BadInput, match="4 ranks cannot resume inside an epoch"):
        resumed(tmp_path, monkeypatch, 7, 6, 4)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"lr": 0.2}, "lr: 0.1 in the checkpoint, 0.2 now"),
        ({"data": "e"}, "data: d in the checkpoint, e now"),
        ({"settings": ("optimizer.momentum=0.5",)}, "settings"),
        ({"optimizer": "adamw"}, "optimizer"),
        ({"precision": "fp16"}, "precision"),
        ({"seed": 2}, "seed"),
    ],
)
def test_other_settings_are_refused_on_resume(tmp_path, monkeypatch, changes, named):
    with pytest.raises(BadInput, match="of another run") as refused:
        resumed(tmp_path, monkeypatch, **changes)
    assert named in refused.value.details[0]
    assert "--weights CHECKPOINT starts a new run" in (refused.value.hint or "")


def test_a_long_curve_is_thinned_to_means():
    curve = curve_of([float(step % 2) for step in range(4000)])
    assert (len(curve["step"]), curve["step"][-1], set(curve["loss"])) == (1000, 4000, {0.5})
    assert curve_of([6.0, float("nan"), 4.0]) == {"step": [1, 2, 3], "loss": [6.0, None, 4.0]}
    assert curve_of([]) == {"step": [], "loss": []}


def test_a_full_disk_is_pruned_before_it_is_written_to(tmp_path, monkeypatch):
    for step in range(1, 6):
        checkpoint.save(tmp_path, checkpoint.Checkpoint(step, {}, ()), keep=9)
    monkeypatch.setattr(checkpoint, "_write", Mock(side_effect=OSError(28, "No space left")))
    with pytest.raises(MissingPrerequisite):
        checkpoint.save(tmp_path, checkpoint.Checkpoint(6, {}, ()), keep=2)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"step-000000004.ckpt", "step-000000005.ckpt"}


def test_checkpoints_after_the_step_that_is_saved_are_of_an_abandoned_run(tmp_path):
    for step in (50, 100, 60):
        checkpoint.save(tmp_path, checkpoint.Checkpoint(step, {}, (np.ones(2),)), keep=1)
    assert checkpoint.describe_saved(tmp_path).endswith("the checkpoint after step 60")
    assert checkpoint.describe_saved(tmp_path / "none") == "there is no checkpoint yet"
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"step-000000060.ckpt", "step-000000100.bad"}

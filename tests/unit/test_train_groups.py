"""The loop around the steps: groups, checkpoints, resuming, what was measured, validation."""

import math
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

np = pytest.importorskip("numpy", reason="numpy comes with the stack")

from hpcdl.system.errors import BadInput, MissingPrerequisite  # noqa: E402
from hpcdl.train import checkpoint, exporting, loop  # noqa: E402
from hpcdl.train.data.pipeline import Records  # noqa: E402
from hpcdl.train.data.source import Ahead  # noqa: E402
from hpcdl.train.options import RunPlan, TrainOptions  # noqa: E402
from hpcdl.train.result import History, Samples  # noqa: E402
from hpcdl.train.scalars import Scalars  # noqa: E402
from hpcdl.train.tasks import Validation  # noqa: E402


@pytest.mark.parametrize(
    ("seconds", "steps"),
    [
        (float("inf"), 1),
        (0.025, 1),
        (0.013, 1),
        (0.012, 2),
        (0.001, 16),
        (1e-9, 64),
        (0.0, 1),
        (float("nan"), 1),
    ],
)
def test_a_group_takes_about_25_ms_and_a_long_step_is_alone(seconds, steps):
    assert 2 ** loop.level_for(seconds) == steps


def training(done, *, every=0, delay=0.0, grouped=True):
    plan = RunPlan(64, 100, 0, 0.1, every)
    return SimpleNamespace(
        options=SimpleNamespace(delay_ms=delay),
        parts=SimpleNamespace(grouped=grouped),
        plan=plan,
        step_number=done,
        level=4,
    )


@pytest.mark.parametrize(
    ("done", "given", "steps"),
    [
        (0, {}, 16),
        (90, {}, 10),
        (0, {"every": 7}, 7),
        (5, {"every": 7}, 2),
        (98, {"every": 7}, 2),
        (0, {"delay": 1.0}, 1),
        (0, {"grouped": False}, 1),
    ],
)
def test_a_group_ends_at_a_checkpoint_and_long_steps_are_alone(done, given, steps):
    assert loop._wanted(training(done, **given)) == steps


def test_groups_give_every_step_once_and_end_with_the_epoch():
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


def test_waiting_for_an_epoch_that_is_still_being_opened_is_input(monkeypatch):
    def slow_storage():
        time.sleep(0.2)
        return iter([SimpleNamespace(steps=1)])

    result, note = SimpleNamespace(loss=1.0, signals=SimpleNamespace(stop=0)), Mock()
    monkeypatch.setattr(loop, "_run", lambda *_: [result])
    for name in ("_judge", "_validate", "_look_ahead"):
        monkeypatch.setattr(loop, name, lambda *_: None)
    monkeypatch.setattr(loop, "_note", note)
    run = training(5)
    run.callbacks = run.history = None
    run.reporter = SimpleNamespace(step=lambda *_: None)
    run.ahead = Ahead(slow_storage, lambda: 0)
    assert loop._epoch(run, 1, 0) is None
    _, _, seconds, waited, *_ = note.call_args.args
    assert seconds >= waited > 0.15


def test_only_a_run_with_tensorboard_needs_it_and_says_so(monkeypatch):
    Scalars(None).step(10, loss=1.0)
    monkeypatch.setattr(exporting, "find_spec", lambda _: None)
    exporting.check_outputs(TrainOptions())
    with pytest.raises(MissingPrerequisite, match="--tensorboard needs tensorboard"):
        exporting.check_outputs(TrainOptions(tensorboard=True))


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


@pytest.mark.parametrize(("restarts", "kept"), [(None, False), ("0", False), ("2", True)])
def test_a_fresh_run_starts_over_once_and_resumes_when_it_is_requeued(tmp_path, restarts, kept):
    folder, said = tmp_path / "checkpoints", []
    folder.mkdir()
    environ = {} if restarts is None else {"SLURM_RESTART_COUNT": restarts}
    checkpoint.start_over(folder, environ, said.append)
    assert folder.is_dir() is kept
    assert (tmp_path / "checkpoints.before-1").is_dir() is not kept
    assert len(said) == kept


def resumed(tmp_path, step=3, streams=0, ranks=1, **changes):
    """Resume from a checkpoint of the default options a run of `ranks` ranks and other options."""

    def run(lr=0.1, **options):
        return SimpleNamespace(
            options=TrainOptions(**options),
            plan=RunPlan(24, 100, 10, lr, 0),
            variables=(),
            checkpoint_directory=tmp_path,
            loss=0.0,
            history=None,
            validation=None,
            ranks=SimpleNamespace(rank=0, size=ranks, sum_on_host=np.copy, broadcast=len),
            reporter=SimpleNamespace(say=print),
            samples=SimpleNamespace(),
            source=SimpleNamespace(streams=4, digest=options.get("data", "d"), shape=(8, 8, 3)),
        )

    meta = {**loop.identity_of(run()), "last_loss": 1.0, "streams": streams}
    checkpoint.save(tmp_path, checkpoint.Checkpoint(step, meta, ()), keep=1)
    other = run(**changes)
    loop.resume(other)
    return other


@pytest.mark.parametrize(
    ("step", "ranks", "streams"), [(7, 1, 6), (7, 3, 6), (7, 6, 6), (10, 4, 4), (10, 2, 6)]
)
def test_a_run_resumes_with_the_shard_streams_of_its_epoch(tmp_path, step, ranks, streams):
    run = resumed(tmp_path, step, 6, ranks)
    assert (run.step_number, run.source.streams) == (step, streams)
    with pytest.raises(BadInput, match="4 ranks cannot resume inside an epoch"):
        resumed(tmp_path, 7, 6, 4)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"lr": 0.2}, "lr: 0.1 there, 0.2 now"),
        ({"data": "e"}, "data: d there, e now"),
        ({"momentum": 0.5}, "momentum"),
        ({"optimizer": "lars"}, "optimizer"),
        ({"precision": "fp16"}, "precision"),
        ({"label_smoothing": 0.1}, "label_smoothing"),
    ],
)
def test_other_settings_are_refused_on_resume_and_allowed_by_name(tmp_path, changes, named):
    with pytest.raises(BadInput) as refused:
        resumed(tmp_path, **changes)
    assert named in refused.value.details[0]
    (name,) = changes
    assert f"--allow-change {name} accepts" in (refused.value.hint or "")
    resumed(tmp_path, **changes, allow_change=f"{name},other")
    with pytest.raises(BadInput, match="of another run"):
        resumed(tmp_path, seed=2, allow_change="seed")  # the place in the data depends on it


def measured(first, losses):
    samples = Samples(first)
    for loss in losses:
        samples.add(8, loss, seconds=0.5)
    return samples


def test_a_history_keeps_every_start_and_forgets_what_is_done_again(tmp_path):
    first = History(tmp_path, {"started": 1.0, "ranks": 1})
    samples = measured(0, [6.0, 5.0, 4.0])
    first.append(samples)
    samples.add(8, 3.5, seconds=0.5)
    first.append(samples)
    (tmp_path / "history.jsonl").open("a").write('{"started": 1.0, "ra')  # cut by a crash
    second = History(tmp_path, {"started": 2.0, "ranks": 2})
    second.load(3)
    assert second.latest().loss == [6.0, 5.0, 4.0]
    second.append(measured(3, [3.0, 2.0]))
    third = History(tmp_path, {"started": 3.0, "ranks": 1})
    third.load(5)
    assert third.curve() == {"step": [1, 2, 3, 4, 5], "loss": [6.0, 5.0, 4.0, 3.0, 2.0]}
    assert third.latest().first_step == 3
    wanted = [(0, 3, 1), (3, 2, 2)]
    found = third.segments(0)
    assert [(one["first_step"], one["steps"], one["ranks"]) for one in found] == wanted
    assert [one["images_per_second"] for one in found] == [16.0, 16.0]


def test_a_long_curve_is_thinned_to_means(tmp_path):
    history = History(tmp_path, {"started": 1.0, "ranks": 1})
    history.append(measured(0, [float(step % 2) for step in range(4000)]))
    curve = history.curve()
    assert (len(curve["step"]), curve["step"][-1], set(curve["loss"])) == (1000, 4000, {0.5})


def test_a_full_disk_is_pruned_before_it_is_written_to(tmp_path, monkeypatch):
    for step in range(1, 6):
        checkpoint.save(tmp_path, checkpoint.Checkpoint(step, {}, ()), keep=9)
    monkeypatch.setattr(checkpoint, "_write", Mock(side_effect=OSError(28, "No space left")))
    with pytest.raises(MissingPrerequisite):
        checkpoint.save(tmp_path, checkpoint.Checkpoint(6, {}, ()), keep=2)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"step-000000004.ckpt", "step-000000005.ckpt"}


def test_an_epoch_is_opened_ahead_with_its_first_batch_and_anew_where_that_is_no_good():
    opened = []
    given = []

    def opens():
        opened.append(len(opened))
        if not opened[-1] and broken:
            raise BadInput("a shard is gone")
        for number in range(3):
            given.append(number)
            yield number

    broken, damaged = False, [0]
    found = Ahead(opens, lambda: damaged[0])
    found.wait()
    assert given == [0], "decoded before anybody asks"
    assert (list(found.take()), len(opened)) == ([0, 1, 2], 1)
    stale = Ahead(opens, lambda: damaged[0])
    damaged[0] = 1
    assert (list(stale.take()), len(opened)) == ([0, 1, 2], 3)
    opened.clear()
    broken = True
    assert list(Ahead(opens, lambda: 0).take()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("done", "steps", "opened"),
    [
        (6, 30, True),
        (5, 30, False),
        (7, 30, False),
        (16, 30, True),
        (26, 30, False),
    ],
)
def test_the_next_epoch_is_opened_four_batches_before_this_one_ends(done, steps, opened):
    source = Records.__new__(Records)
    source._repairs = SimpleNamespace(places=set())
    run = SimpleNamespace(
        plan=RunPlan(8, steps, 10, 0.1, 0), source=source, ahead=None, step_number=done
    )
    loop._look_ahead(run, done // 10)
    assert (run.ahead is not None) is opened


def validation(*scores, required=True, patience=0):
    found = Validation(1, "accuracy", patience, dict, required)
    for step, one in enumerate(scores, 1):
        found.add(step, one)
    return found


def test_a_score_that_is_no_number_or_of_another_metric_is_never_the_best():
    found = validation({"accuracy": math.nan}, {"accuracy": 0.1}, {"accuracy": 0.3}, patience=2)
    assert (found.best_step(), found.in_vain) == (3, False)
    found = validation()
    found.found = [{"step": 2, "test_loss": 1.0}]
    assert found.add(4, {"accuracy": 0.2})
    assert found.best_step() == 4


def test_a_metric_is_missed_only_where_it_was_asked_for():
    assert validation({"test_loss": 1.0}, required=False).found == [{"step": 1, "test_loss": 1.0}]
    with pytest.raises(BadInput, match="no metric 'accuracy'"):
        validation({"test_loss": 1.0})


def test_checkpoints_after_the_step_that_is_saved_are_of_an_abandoned_run(tmp_path):
    for step in (50, 100, 60):
        checkpoint.save(tmp_path, checkpoint.Checkpoint(step, {}, (np.ones(2),)), keep=1)
    assert checkpoint.describe_saved(tmp_path).endswith("the checkpoint after step 60")
    assert checkpoint.describe_saved(tmp_path / "none") == "there is no checkpoint yet"
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"step-000000060.ckpt", "step-000000100.bad"}

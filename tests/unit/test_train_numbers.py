"""Schedules, groups of gradients, TF_CONFIG, areas under ROC curves, stages, layers to fuse."""

import itertools
import random
from types import SimpleNamespace

import pytest

np = pytest.importorskip("numpy", reason="numpy comes with the stack")

from hpcdl.system.errors import BadInput, MissingPrerequisite  # noqa: E402
from hpcdl.train import communicate, fused, strategies  # noqa: E402
from hpcdl.train.communicate import MultiWorker, buckets, packs  # noqa: E402
from hpcdl.train.fused import _stages  # noqa: E402
from hpcdl.train.options import STRATEGIES, RunPlan  # noqa: E402
from hpcdl.train.startup import RankPlace, StartupClock, cluster_config  # noqa: E402
from hpcdl.train.tasks import area  # noqa: E402


def plan(schedule, warmup=0):
    return RunPlan(64, 110, 0, 0.4, 0, lr_schedule=schedule, lr_warmup_steps=warmup)


def test_the_rate_rises_linearly_over_the_warm_up_and_then_follows_its_schedule():
    rates = [plan("cosine", warmup=10).lr_at(step) for step in range(111)]
    assert rates[:3] == pytest.approx([0.04, 0.08, 0.12])
    assert rates[9] == rates[10] == pytest.approx(0.4)
    assert rates[60] == pytest.approx(0.2)
    assert rates[110] == pytest.approx(0.0)
    assert plan("linear").lr_at(55) == pytest.approx(0.2)
    assert plan("constant").lr_at(109) == 0.4


def test_gradients_are_grouped_from_the_last_to_the_first_each_in_one_group():
    assert buckets([10, 10, 10, 10], limit=20) == [[3, 2], [1, 0]]
    assert buckets([100, 1, 1], limit=20) == [[2, 1], [0]]
    assert buckets([], limit=20) == packs([]) == []
    values = [np.zeros(3, np.float32), np.zeros((), np.int64), np.zeros((2, 2), np.float32)]
    assert packs(values) == [[2, 0], [1]], "arrays of one type are packed together"
    draw = random.Random(1)
    for _ in range(200):
        sizes = [draw.randrange(40) for _ in range(draw.randrange(1, 30))]
        groups = buckets(sizes, limit=50)
        assert list(itertools.chain(*groups)) == list(reversed(range(len(sizes))))
        assert all(sum(sizes[i] for i in group) <= 50 for group in groups)


class Variable(SimpleNamespace):
    """A variable as far as a broadcast looks at it."""

    dtype = property(lambda self: self.value.dtype)

    def read_value(self):
        return self.value

    def assign(self, value):
        self.value = value


def test_what_tensorflows_collectives_pack_is_of_one_type(monkeypatch):
    def add(_, sent):
        kinds.append({value.dtype for value in map(np.asarray, sent)})
        return [np.asarray(value) + 1 for value in sent]

    kinds = []
    monkeypatch.setattr(MultiWorker, "_sum", add)
    monkeypatch.setattr(MultiWorker, "function", lambda _, body: body)
    monkeypatch.setattr(communicate, "tf", SimpleNamespace(cast=np.asarray))
    weights = [Variable(value=value) for value in (np.float32(1), np.int64(2), np.float32(3))]
    MultiWorker(None, RankPlace(0, 2, 0, 2, 1, "a")).broadcast(weights)
    assert kinds == [{np.dtype(np.float32)}, {np.dtype(np.int64)}]
    assert [int(weight.value) for weight in weights] == [2, 3, 4]


def test_tf_config_names_every_rank_of_every_node():
    environ = {
        "SLURM_JOB_ID": "9",
        "SLURM_STEP_NODELIST": "n[1-2]",
        "SLURM_STEP_TASKS_PER_NODE": "2,1",
    }
    config = cluster_config(environ, RankPlace(2, 3, 0, 1, 1, "n2"), lambda _: ["n1", "n2"])
    workers = config["cluster"]["worker"]
    assert [worker.partition(":")[0] for worker in workers] == ["n1", "n1", "n2"]
    assert len(set(workers)) == 3
    assert config["task"] == {"type": "worker", "index": 2}
    with pytest.raises(MissingPrerequisite, match="are unknown"):
        cluster_config({}, RankPlace(0, 4, 0, 2, 1, "n1"), lambda _: [])


@pytest.mark.parametrize(
    "other",
    [
        {"PMIX_NAMESPACE": "77"},
        {"SLURM_JOB_ID": "9"},
        {"SLURM_JOB_ID": "9", "SLURM_STEP_ID": "1"},
        {"SLURM_JOB_ID": "9", "SLURM_CLUSTER_NAME": "two"},
    ],
)
def test_runs_at_the_same_time_get_ports_of_their_own(other):
    here, there = RankPlace(0, 2, 0, 2, 1, "n1"), RankPlace(1, 2, 1, 2, 1, "n1")
    first = cluster_config({"PMIX_NAMESPACE": "78"}, here, lambda _: [])["cluster"]["worker"]
    second = cluster_config(other, here, lambda _: [])["cluster"]["worker"]
    assert second == cluster_config(other, there, lambda _: [])["cluster"]["worker"]
    assert not {*first} & {*second}


def test_the_area_is_the_chance_that_a_positive_scores_higher():
    draw = random.Random(2)
    for _ in range(50):
        scores = [draw.randrange(6) for _ in range(20)]
        labels = [draw.randrange(2) for _ in range(20)]
        pairs = [
            (scores[i] > scores[j]) + 0.5 * (scores[i] == scores[j])
            for i in range(20)
            for j in range(20)
            if labels[i] and not labels[j]
        ]
        found = area(np.array(scores, float), np.array(labels, float))
        assert found == pytest.approx(sum(pairs) / len(pairs))
    assert np.isnan(area(np.array([1.0, 2.0]), np.array([1.0, 1.0]))), "one answer only"


@pytest.mark.parametrize(
    ("size", "environ", "strategy"),
    [
        (1, {}, "single"),
        (1, {"TF_CONFIG": "{}"}, "single"),
        (4, {}, "horovod"),
        (4, {"TF_CONFIG": "{}"}, "multiworker"),
    ],
)
def test_ranks_work_together_as_they_were_started(monkeypatch, size, environ, strategy):
    assert set(STRATEGIES) == {"auto", *strategies.STRATEGIES}
    monkeypatch.delenv("TF_CONFIG", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(strategies.STRATEGIES, strategy, lambda *_: strategy)
    place = RankPlace(0, size, 0, size, size, "n1")
    assert strategies.join_ranks("auto", place, StartupClock(), keras=False) == strategy


@pytest.mark.parametrize(
    ("sizes", "devices", "stages"),
    [
        ([10, 10, 10, 10], 2, [0, 0, 1, 1]),
        ([0, 8, 0, 1, 1, 0], 2, [0, 0, 1, 1, 1, 1]),
        ([30, 10, 20, 30], 3, [0, 1, 1, 2]),
        ([], 1, []),
    ],
)
def test_stages_follow_each_other_with_about_as_many_parameters(sizes, devices, stages):
    assert _stages(sizes, devices) == stages
    with pytest.raises(BadInput, match="cannot be divided among 3 devices"):
        _stages([0, 5, 5, 0], 3)


class BatchNormalization:
    """The layer as Keras 3.0 to 3.13 have it: they know no `renorm`."""

    built = True
    axis = -1
    synchronized = False
    input_spec = SimpleNamespace(ndim=4)


@pytest.mark.parametrize(
    ("own", "same"),
    [
        ({}, True),
        ({"renorm": False}, True),
        ({"renorm": True}, False),
        ({"synchronized": True}, False),
        ({"fused": True}, False),
        ({"axis": 2}, False),
    ],
)
def test_a_plain_layer_of_every_keras_3_is_fused(own, same, monkeypatch):
    layers = SimpleNamespace(BatchNormalization=BatchNormalization)
    monkeypatch.setattr(fused, "tf", SimpleNamespace(keras=SimpleNamespace(layers=layers)))
    layer = BatchNormalization()
    vars(layer).update(own)
    assert fused._can(layer) is same

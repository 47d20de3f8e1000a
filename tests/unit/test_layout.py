"""Layouts: CPU only, one GPU, part of a node, whole nodes; everything else is refused with help."""

from dataclasses import replace
from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdl.jobs import JobSpec, plan_layout
from hpcdl.system.errors import BadInput
from tests.unit.conftest import shipped


def layout(site, partition, **asked):
    return plan_layout(site, JobSpec(partition, **asked))


def refusal(site, partition, **asked):
    with pytest.raises(BadInput) as caught:
        layout(site, partition, **asked)
    return f"{caught.value.message}; {caught.value.hint}"


# What is asked: nodes, ranks per node, CPUs per rank, GPUs per node, MB per node, exclusive.
# K80: 24 cores, 48 CPUs, 8 GPUs, 250 GB. P100: 28, 56, 4, 250. V100: 40, 80, 8, 500. CPU: 332 nodes
# of 16 cores and 62 GB.
@pytest.mark.parametrize(
    ("partition", "asked", "expected"),
    [
        ("p100", {}, (1, 1, 14, 1, 62500, False)),
        ("p100", {"gpus": 1}, (1, 1, 14, 1, 62500, False)),
        ("p100", {"gpus": 2}, (1, 2, 14, 2, 125000, False)),
        ("p100", {"gpus": 4}, (1, 4, 14, 4, 0, True)),
        ("p100", {"gpus": 8}, (2, 4, 14, 4, 0, True)),
        ("p100", {"nodes": 2}, (2, 4, 14, 4, 0, True)),
        ("p100", {"nodes": 3, "gpus_per_node": 2}, (3, 2, 14, 2, 125000, False)),
        ("p100", {"gpus_per_node": 3}, (1, 3, 14, 3, 187500, False)),
        ("p100", {"gpus": 6, "nodes": 2}, (2, 3, 14, 3, 187500, False)),
        ("p100", {"gpus": 6, "gpus_per_node": 3}, (2, 3, 14, 3, 187500, False)),
        ("v100", {"nodes": 2, "gpus_per_node": 6}, (2, 6, 10, 6, 375000, False)),
        ("k80", {"gpus": 3}, (1, 3, 6, 3, 93750, False)),
        ("p100", {"gpus": 4, "cpus_per_task": 2}, (1, 4, 2, 4, 0, True)),
        ("p100", {"gpus": 2, "launcher": "single"}, (1, 1, 28, 2, 125000, False)),
        ("p100", {"gpus": 4, "launcher": "single"}, (1, 1, 56, 4, 0, True)),
        ("cpu", {}, (1, 1, 16, 0, 0, True)),
        ("cpu", {"nodes": 4}, (4, 1, 16, 0, 0, True)),
        ("cpu", {"tasks_per_node": 4}, (1, 4, 4, 0, 0, True)),
        ("cpu", {"tasks_per_node": 16}, (1, 16, 1, 0, 0, True)),
        ("cpu", {"tasks_per_node": 3}, (1, 3, 5, 0, 58125, False)),
        ("cpu", {"cpus_per_task": 4}, (1, 1, 4, 0, 15500, False)),
        ("cpu", {"tasks_per_node": 2, "cpus_per_task": 4}, (1, 2, 4, 0, 31000, False)),
    ],
)
def test_a_rank_per_gpu_has_its_share(three_generations, pi, partition, asked, expected):
    found = layout(pi if partition == "cpu" else three_generations, partition, **asked)
    names = "nodes tasks_per_node cpus_per_task gpus_per_node memory_mb exclusive"
    assert attrgetter(*names.split())(found) == expected


@pytest.mark.parametrize(
    ("partition", "asked", "said"),
    [
        ("v100", {"gpus": 12}, "2 nodes x 6 (--nodes 2 --gpus-per-node 6), or --gpus 16, or"),
        ("v100", {"gpus": 12}, "--partition p100"),
        ("v100", {"gpus": 9}, "3 nodes x 3 (--nodes 3 --gpus-per-node 3), or --gpus 16"),
        ("v100", {"gpus": 11}, "ask for --gpus 16"),
        ("v100", {"gpus": 56}, "at most --gpus 48, all of the partition"),
        ("v100", {"gpus": 10**6}, "not 125000 with 1000000 GPUs; ask for at most --gpus 48"),
        ("p100", {"gpus": 2, "nodes": 4}, "give --gpus alone, or --nodes and --gpus-per-node"),
        ("p100", {"gpus": 1, "nodes": 2}, "--gpus 1 cannot be spread evenly over 2 nodes"),
        ("p100", {"gpus": 4, "cpus_per_task": 15}, "at most --cpus-per-task 14"),
        ("p10", {"gpus": 1}, "no partition 'p10'; did you mean 'p100'?"),
        ("cpu", {"gpus": 1}, "'cpu' has no GPUs; partitions with GPUs: k20, k80, p100"),
        ("cpu", {"nodes": 333}, "'cpu' has 332 nodes, not 333; ask for at most --nodes 332"),
        ("cpu", {"tasks_per_node": 4, "cpus_per_task": 5}, "at most --cpus-per-task 4"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_does(three_generations, pi, partition, asked, said):
    assert said in refusal(pi if partition == "cpu" else three_generations, partition, **asked)


def test_the_default_time_is_an_hour_or_what_the_partition_allows(three_generations):
    assert layout(three_generations, "p100").minutes == 60
    assert layout(three_generations, "p100", minutes=2880).minutes == 2880


SITES = [shipped(name) for name in ("pi", "p100-v100-k80", "a100-h100", "embedded")]
COUNT = st.none() | st.integers(1, 40)


@given(
    st.sampled_from([(site, name) for site in SITES for name in site.partitions]),
    COUNT,
    COUNT,
    COUNT,
    COUNT,
    COUNT,
    st.sampled_from(["horovod", "single"]),
)
def test_any_layout_fits_or_is_refused(place, gpus, nodes, per_node, tasks, cpus, launcher):
    site, name = place
    part = site.partition(name)
    spec = JobSpec(
        name,
        gpus=gpus,
        nodes=nodes,
        gpus_per_node=per_node,
        tasks_per_node=tasks,
        cpus_per_task=cpus,
        launcher=launcher,
    )
    try:
        found = plan_layout(site, spec)
    except BadInput as fault:
        assert fault.hint or "CPUs per node" in fault.message  # noqa: PT017 - it says what to do
        return
    assert 1 <= found.nodes <= part.nodes
    assert 0 <= found.gpus_per_node <= part.gpus_per_node
    assert found.tasks_per_node * found.cpus_per_task <= part.cpus
    assert found.memory_mb <= part.memory_gb * 1000
    if gpus:
        assert found.nodes * found.gpus_per_node == gpus
    if part.gpu and launcher == "horovod":
        assert found.tasks_per_node == found.gpus_per_node
    assert found.exclusive == (found.memory_mb == 0)


@pytest.mark.parametrize(
    ("asked", "in_order"),
    [
        ({"gpus": 16}, True),
        ({"gpus": 4}, False),  # part of a node: which sockets it gets is not known
        ({"gpus": 8, "cpus_per_task": 4}, False),  # the first socket would hold all ranks
        ({"gpus": 8, "launcher": "single"}, False),
    ],
)
def test_ranks_that_fill_whole_nodes_go_socket_by_socket(three_generations, asked, in_order):
    assert layout(three_generations, "v100", **asked).by_socket == in_order


def test_ranks_without_gpus_and_on_one_socket_are_left_to_slurm(modern):
    """Nor have three GPUs a place on two sockets."""
    a100 = modern.partition("a100")
    one = replace(a100, sockets=1, cores_per_socket=128)
    odd = replace(a100, gpu=a100.gpu._replace(per_node=3), cores_per_socket=3)
    assert not layout(modern, "cpu", nodes=1, tasks_per_node=2).by_socket
    for part, gpus in ((one, 8), (odd, 3)):
        site = replace(modern, partitions={"a100": part})
        assert not layout(site, "a100", gpus=gpus).by_socket


def test_a_rank_takes_its_share_where_cores_are_fewer_than_gpus(three_generations):
    """4 cores of 2 threads and 8 GPUs: one GPU has one CPU, not all eight."""
    p100 = three_generations.partition("p100")
    part = replace(
        p100, sockets=1, cores_per_socket=4, threads_per_core=2, gpu=p100.gpu._replace(per_node=8)
    )
    site = replace(three_generations, partitions={"p100": part})
    assert [layout(site, "p100", gpus=gpus).cpus_per_task for gpus in (1, 4, 8)] == [1, 1, 1]
    assert layout(site, "p100", gpus=4, launcher="single").cpus_per_task == 4

"""`site init` and `site check` on what Slurm 20.11, 22.05 and 24.11 print."""

from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl.site import Site, load_site
from hpcdl.site.detect import draft
from hpcdl.site.gpu_models import model_of_type
from hpcdl.site.live import LiveCluster, describe
from hpcdl.site.site_drift import compare
from hpcdl.slurm import parse
from tests.unit import slurm_output as said


def cluster(release: str, **nodes: str) -> LiveCluster:
    """The cluster of `slurm_output`, as the live one would be read."""
    records = [parse.node(line) for line in said.nodes(release, **nodes).splitlines()]
    config = parse.config(said.config(release))
    return LiveCluster(
        name=config["ClusterName"],
        version=f"{release}.5",
        mpi_plugins=parse.mpi_plugins(said.MPI_LISTS[release]),
        mpi_default="pmix",
        accounting="slurmdbd" in config["AccountingStorageType"],
        partitions=tuple(
            describe(parse.partition(line), records)
            for line in said.partitions(release).splitlines()
        ),
    )


@pytest.fixture
def drafted(tmp_path: Path) -> Site:
    file = tmp_path / "site.yaml"
    file.write_text(draft(cluster("22.05")).text)
    return load_site(file)


@pytest.mark.parametrize("release", said.RELEASES)
def test_the_draft_of_a_cluster_is_a_valid_file_that_agrees_with_it(
    release: str, tmp_path: Path
) -> None:
    found = draft(cluster(release))
    assert found.questions == ()
    (tmp_path / "site.yaml").write_text(found.text)
    site = load_site(tmp_path / "site.yaml")
    assert compare(site, cluster(release)) == ()
    part = site.partition("p100")
    assert (part.nodes, part.cpus, part.memory_gb, part.max_time) == (2, 56, 250, "2-00:00:00")
    assert part.gpu is not None
    assert (part.gpu.model, part.gpu.per_node) == ("P100-PCIe", 4)
    assert site.partition("cpu").max_time == "unlimited"
    assert site.slurm.accounting
    assert site.default_partition == "p100"


def test_a_gpu_that_slurm_does_not_name_is_asked_for_not_guessed(tmp_path: Path) -> None:
    found = draft(cluster("22.05", gres="gpu:4"))
    assert found.questions == ("partitions.p100.gpu.model: Slurm says no type",)
    assert "gpu_typed: false" in found.text
    assert "model: FILL-IN" in found.text


def test_a_gpu_type_that_nobody_knows_is_asked_for_with_the_nearest() -> None:
    found = draft(cluster("22.05", gres="gpu:p1000:4"))
    assert found.questions[0].startswith("partitions.p100.gpu.model: Slurm says 'p1000'")


@pytest.mark.parametrize(
    ("gres_type", "model"),
    [
        ("p100", "P100-PCIe"), ("P100", "P100-PCIe"), ("tesla_v100", "V100-SXM2"),
        ("nvidia_a100-sxm4-40gb", "A100-SXM4-40GB"), ("a100-sxm4-80gb", "A100-SXM4-80GB"),
        ("k80", "K80"), ("gpu", None), (None, None), ("", None),
    ],
)  # fmt: skip
def test_gres_types_name_models_as_sites_write_them(
    gres_type: str | None, model: str | None
) -> None:
    assert model_of_type(gres_type) == model


def test_nodes_that_differ_are_named() -> None:
    records = [parse.node(line) for line in said.nodes("22.05").splitlines()]
    odd = records[1]._replace(memory_mb=128000)
    partition = parse.partition(said.partitions("22.05").splitlines()[0])
    live = describe(partition, [records[0], odd, records[0]._replace(name="p100-03")])
    assert live.memory_gb == 250
    assert live.odd_nodes == ("p100-02",)


def test_a_partition_without_nodes_is_still_described() -> None:
    partition = parse.partition(
        "PartitionName=empty Nodes=(null) TotalNodes=0 MaxTime=1:00 State=UP"
    )
    live = describe(partition, [])
    assert (live.nodes, live.gpus_per_node) == (0, 0)


def drift_keys(site: Site, live: LiveCluster) -> list[str]:
    return [one.key for one in compare(site, live)]


def test_agreement_is_no_drift(drafted: Site) -> None:
    assert compare(drafted, cluster("22.05")) == ()


def test_each_difference_is_one_row_with_its_key(drafted: Site) -> None:
    live = cluster("22.05")
    p100, cpu = live.partitions
    other = replace(
        live,
        version="23.02.1",
        mpi_plugins=("none", "pmi2"),
        accounting=False,
        partitions=(
            replace(
                p100, nodes=3, hostlist="p100-[01-03]", sockets=1, memory_gb=128, gpu_type="v100",
                gpus_per_node=2, max_time="1:00:00", odd_nodes=("p100-02",), features=("p100",),
            ),
            replace(cpu, name="fat"),
        ),
    )  # fmt: skip
    found = {one.key: (one.file, one.cluster) for one in compare(drafted, other)}
    assert found == {
        "slurm.version": ("22.05.5", "23.02.1"),
        "slurm.mpi": ("pmix", "none, pmi2"),
        "slurm.accounting": ("on", "off"),
        "partitions.p100.nodes": ("equal nodes", "differing: p100-02"),
        "partitions.p100.sockets": ("2", "1"),
        "partitions.p100.memory_gb": ("250", "128"),
        "partitions.p100.hostlist": ("p100-[01-02]", "p100-[01-03]"),
        "partitions.p100.gpu.per_node": ("4", "2"),
        "partitions.p100.gpu.gres_type": ("p100", "v100"),
        "partitions.p100.max_time": ("2-00:00:00", "1:00:00"),
        "partitions.p100.features": ("nvlink", "p100"),
        "partitions.cpu": ("described", "no such partition"),
        "partitions.fat": ("not described", "1 nodes"),
    }


def test_less_memory_and_time_than_the_cluster_has_is_the_sites_choice(drafted: Site) -> None:
    live = cluster("22.05")
    p100, cpu = live.partitions
    roomy = replace(p100, memory_gb=999, max_time="UNLIMITED")
    assert drift_keys(drafted, replace(live, partitions=(roomy, cpu))) == []


def test_hostlists_that_name_the_same_nodes_are_the_same(drafted: Site) -> None:
    live = cluster("22.05")
    p100, cpu = live.partitions
    same = replace(p100, hostlist="p100-02,p100-01")
    assert drift_keys(drafted, replace(live, partitions=(same, cpu))) == []

"""`site init` and `site check` on what Slurm 20.11, 22.05 and 24.11 print."""

import re
from dataclasses import replace

import pytest

from hpcdl.jobs.layout import cluster_of
from hpcdl.jobs.lint import lint
from hpcdl.results.gpus import canonical, known_names, model_of_type
from hpcdl.site import load_site
from hpcdl.site.free_gpus import gpu_rows, gpus_of_nodes
from hpcdl.site.live import (
    LiveCluster,
    closed,
    compare,
    describe,
    draft,
    is_unedited,
    plugins_of,
    reserved,
)
from hpcdl.slurm import parse
from hpcdl.system.errors import MissingPrerequisite
from tests.unit import slurm_output as said


def nodes(release="22.05", **changes):
    return [parse.node(line) for line in said.nodes(release, **changes).splitlines()]


def cluster(release="22.05", **changes):
    """The cluster of `slurm_output`, as the live one would be read."""
    config = parse.config(said.config(release))
    partitions = [parse.partition(line) for line in said.partitions(release).splitlines()]
    plugins = {"TaskPlugin": "task/affinity,task/cgroup,task/else"}
    return LiveCluster(
        name=config["ClusterName"],
        version=f"{release}.5",
        mpi_default="pmix",
        mpi_plugins=parse.mpi_plugins(said.MPI_LISTS[release]),
        select="cons_tres",
        accounting="slurmdbd" in config["AccountingStorageType"],
        partitions=tuple(describe(one, nodes(release, **changes)) for one in partitions),
        task_plugins=plugins_of(plugins, "TaskPlugin"),
        plugin_options=("no", "1up"),
    )


@pytest.fixture
def drafted(tmp_path):
    return loaded(cluster(), tmp_path)[0]


@pytest.mark.parametrize("release", said.RELEASES)
def test_the_draft_of_a_cluster_is_a_valid_file_that_agrees_with_it(release, tmp_path):
    site, questions = loaded(cluster(release), tmp_path)
    assert (questions, compare(site, cluster(release))) == ((), ())
    part = site.partition("p100")
    assert (part.nodes, part.cpus, part.memory_gb, part.max_time) == (2, 56, 250, "2-00:00:00")
    assert (part.gpu.model, part.gpu.per_node) == ("P100-PCIe", 4)
    assert (site.partition("cpu").max_time, site.default_partition) == ("unlimited", "p100")
    assert site.slurm.accounting
    assert (site.slurm.select, site.slurm.task_plugins) == ("cons_tres", ("affinity", "cgroup"))
    assert site.slurm.plugin_options == ("no", "1up"), "text, though YAML has a `no` of its own"


@pytest.mark.parametrize(
    ("gres", "said"),
    [
        ("gpu:4", "Slurm says no type"),
        ("gpu:p1000:4", "Slurm says 'p1000'"),
        # 7 of MIG's slices are not 7 GPUs of 40 GB.
        ("gpu:nvidia_a100-sxm4-40gb_1g.5gb:7", "(MIG): describe it as a model under `gpus`"),
    ],
)
def test_a_gpu_that_nobody_knows_is_asked_for_not_guessed(gres, said):
    found = draft(cluster(gres=gres))
    (question,) = found.questions
    assert question.startswith("partitions.p100.gpu.model: ")
    assert said in question
    assert "model: FILL-IN" in found.text
    assert ("gpu_typed: false" in found.text) == (gres == "gpu:4")


@pytest.mark.parametrize(
    ("gres_type", "model"),
    [
        ("nvidia_h100_80gb_hbm3", "H100-SXM5"),
        ("nvidia_a100_80gb_pcie", "A100-PCIe-80GB"),
        ("nvidia_geforce_rtx_4090", "RTX-4090"),
        ("nvidia_rtx_6000_ada_generation", "RTX-6000-Ada"),
        ("nvidia_gh200_480gb", "GH200"),
        ("mi250", None),
        ("l400", None),
        ("p100", "P100-PCIe"),
        ("tesla_v100", "V100-SXM2"),
        ("gpu", None),
        (None, None),
        ("", None),
        ("a100_1g.5gb", None),
        ("nvidia_h100_80gb_hbm3_3g.40gb", None),
        ("a100-mig-1g", None),
        # Each word must be one of the model.
        ("tesla_v100-sxm2-16gb", "V100-SXM2"),
        ("tesla_v100-sxm2-32gb", "V100-SXM2-32GB"),
        ("tesla_v100-pcie-32gb", "V100-PCIe-32GB"),
        ("v100_32gb", "V100-SXM2-32GB"),
        ("tesla_p100-pcie-16gb", "P100-PCIe"),
        ("tesla_p100-sxm2-16gb", "P100-SXM2"),
        ("tesla_p100-pcie-12gb", None),
        ("a100_80g", "A100-SXM4-80GB"),
        ("a100_40gb", "A100-SXM4-40GB"),
        ("a100_64gb", None),
        ("nvidia_h100_nvl", "H100-NVL"),
        ("nvidia_h200_nvl", None),
        ("h100_dgx", None),
        ("nvidia_geforce_rtx_2080_ti", "RTX-2080-Ti"),
        ("nvidia_rtx_a5000", "RTX-A5000"),
        ("a6000", "RTX-A6000"),
        ("nvidia_rtx_pro_6000_blackwell_server_edition", "RTX-PRO-6000"),
        ("tesla_k40m", "K40"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("A100-SXM-80GB", "A100-SXM4-80GB"),
        ("Tesla V100-SXM3-32GB", "V100-SXM3-32GB"),
        ("NVIDIA H200", "H200-SXM"),
        ("GH200", "GH200"),
    ],
)
def test_gres_types_name_models_as_sites_write_them(gres_type, model):
    assert model_of_type(gres_type) == model


def test_a_draft_says_which_cards_a_type_leaves_open():
    found = draft(cluster(gres="gpu:h100:4"))
    line = next(line for line in found.text.splitlines() if "model:" in line)
    assert line.endswith(
        "model: H100-SXM5    # Slurm does not say which: H100-SXM5, H100-PCIe, H100-NVL"
    )
    assert "model: L40S    # check the form factor" in draft(cluster(gres="gpu:l40s:4")).text
    assert "\n\n      gres_type" not in found.text


@pytest.mark.parametrize("name", known_names())
def test_every_name_that_may_be_written_is_a_gres_type_too(name):
    forms = (name.upper(), name.replace("-", "_").lower(), name.replace("-", ""), f"nvidia_{name}")
    assert {model_of_type(form) for form in forms} == {canonical(name)}


def test_nodes_that_differ_are_named():
    first, second, *_ = nodes()
    odd = second._replace(memory_mb=128000)
    partition = parse.partition(said.partitions("22.05").splitlines()[0])
    live = describe(partition, [first, odd, first._replace(name="p100-03")])
    assert (live.memory_gb, live.odd_nodes) == (250, ("p100-02",))


def test_a_partition_without_nodes_is_still_described():
    text = "PartitionName=empty Nodes=(null) TotalNodes=0 MaxTime=1:00 State=UP"
    live = describe(parse.partition(text), [])
    assert (live.nodes, live.gpus_per_node) == (0, 0)


def test_each_difference_is_one_row_with_its_key(drafted):
    p100, cpu = cluster().partitions
    p100 = replace(
        p100,
        nodes=3,
        hostlist="p100-[01-03]",
        sockets=1,
        memory_gb=128,
        gpu_type="v100",
        gpus_per_node=2,
        max_time="1:00:00",
        odd_nodes=("p100-02",),
        features=("p100",),
    )
    other = replace(
        cluster(),
        version="23.02.1",
        mpi_plugins=("none", "pmi2"),
        accounting=False,
        partitions=(p100, replace(cpu, name="fat")),
    )
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


@pytest.mark.parametrize(
    "change", [{"memory_gb": 999, "max_time": "UNLIMITED"}, {"hostlist": "p100-02,p100-01"}]
)
def test_less_than_the_cluster_has_and_another_order_are_no_drift(drafted, change):
    p100, cpu = cluster().partitions
    assert compare(drafted, replace(cluster(), partitions=(replace(p100, **change), cpu))) == ()


def mixed(*gres):
    """A cluster whose partition p100 has nodes with these Gres, one after the other."""
    each = [nodes()[0]._replace(name=f"p100-{n:02d}", gres=one) for n, one in enumerate(gres, 1)]
    partition = parse.partition(said.partitions("22.05").splitlines()[0])
    p100 = partition._replace(nodes=f"p100-[01-{len(gres):02d}]", node_count=len(gres))
    return replace(cluster(), partitions=(describe(p100, each),))


def loaded(live, tmp_path):
    """The site of a cluster's draft, and what the draft asks."""
    found = draft(live)
    (tmp_path / "site.yaml").write_text(found.text.replace("FILL-IN", "T4"))
    return load_site(tmp_path / "site.yaml"), found.questions


NO_TYPE = "partitions.p100.groups.2.gpu.model: Slurm says no type"


@pytest.mark.parametrize(
    ("gres", "groups", "models", "asked"),
    [
        (
            ["gpu:a100:4", "gpu:l40s:8", "gpu:a100:4(S:0-1)", "(null)"],
            [(2, 4, "a100"), (1, 8, "l40s"), (1, 0, None)],
            "A100-SXM4-40GB L40S",
            (),
        ),
        # Typed and untyped GPUs are each asked for in their own form.
        (["gpu:a100:4", "gpu:4"], [(1, 4, "a100"), (1, 4, None)], "A100-SXM4-40GB T4", (NO_TYPE,)),
        # Two models in one node are two groups of it.
        (
            ["gpu:a100:2,gpu:l40s:2"] * 2,
            [(2, 2, "a100"), (2, 2, "l40s")],
            "A100-SXM4-40GB L40S",
            (),
        ),
    ],
)
def test_nodes_of_different_gpus_are_drafted_as_groups(tmp_path, gres, groups, models, asked):
    live = mixed(*gres)
    site, questions = loaded(live, tmp_path)
    part = site.partition("p100")
    found = [(g.nodes, g.gpus_per_node, g.gpu and g.gpu.gres_type) for g in part.groups]
    assert (found, " ".join(part.gpu_models), questions) == (groups, models, asked)
    assert (part.nodes, part.gpus_per_node) == (len(gres), groups[0][1])
    assert compare(site, live) == ()


def test_gpus_of_other_vendors_leave_a_cpu_partition_and_a_line(tmp_path):
    live = mixed("gpu:mi250:8", "gpu:mi250:8")
    site, (question,) = loaded(live, tmp_path)
    assert question.startswith("partitions.p100: 'mi250' is a GPU of AMD, which hpcdl does not")
    assert site.partition("p100").gpu is None
    assert compare(site, live) == ()


def test_a_file_without_groups_is_told_of_the_nodes_it_leaves_out(tmp_path):
    site, _ = loaded(mixed("gpu:a100:4", "gpu:a100:4"), tmp_path)
    found = compare(site, mixed("gpu:a100:4", "gpu:l40s:8"))
    assert [(one.key, one.file, one.cluster) for one in found] == [
        ("partitions.p100.nodes", "2", "1"),
        ("partitions.p100.hostlist", "p100-[01-02]", "p100-01"),
        ("partitions.p100.groups", "not described", "1 node x 8 l40s: p100-02"),
    ]


def with_node(**fields):
    """The cluster with these fields in every line of `scontrol show node`."""
    lines = said.nodes("24.11").splitlines()
    for name, value in fields.items():
        lines = [re.sub(rf"\b{name}=\S+", "", line) + f" {name}={value}" for line in lines]
    return [parse.node(line) for line in lines]


@pytest.mark.parametrize(
    ("fields", "usable", "memory"),
    [
        ({}, 56, 250),
        ({"CPUEfctv": "48", "CoreSpecCount": "4"}, 48, 250),
        # 20.11 has no CPUEfctv.
        ({"CPUEfctv": "", "CoreSpecCount": "4"}, 48, 250),
        ({"MemSpecLimit": "10000"}, 56, 240),
    ],
)
def test_what_slurm_keeps_for_itself_is_not_offered_to_jobs(tmp_path, fields, usable, memory):
    part = parse.partition(said.partitions("24.11").splitlines()[0])
    live = replace(cluster("24.11"), partitions=(describe(part, with_node(**fields)),))
    site, _ = loaded(live, tmp_path)
    found = site.partition("p100")
    assert (found.cpus, found.usable_cores, found.memory_gb) == (usable, usable // 2, memory)
    assert found.cores == 28
    assert compare(site, live) == ()
    text = (tmp_path / "site.yaml").read_text()
    assert ("usable_cpus" in text) == (usable < 56)
    # A file that promises more than jobs get is a difference.
    (tmp_path / "site.yaml").write_text(re.sub(r".*usable_cpus.*\n", "", text))
    drift = compare(load_site(tmp_path / "site.yaml"), live)
    wanted = [("partitions.p100.usable_cpus", "56", str(usable))] if usable < 56 else []
    assert [tuple(one) for one in drift] == wanted


def test_a_partition_without_nodes_is_left_out_of_the_draft(tmp_path):
    spare = parse.partition("PartitionName=spare Nodes=(null) TotalNodes=0 MaxTime=1:00 State=UP")
    live = replace(cluster(), partitions=(*cluster().partitions, describe(spare, [])))
    site, questions = loaded(live, tmp_path)
    assert ("spare" in site.partitions, questions, compare(site, live)) == (False, (), ())
    assert "# spare has no nodes: left out" in (tmp_path / "site.yaml").read_text()
    with pytest.raises(MissingPrerequisite, match="no partition of this Slurm has nodes"):
        draft(replace(live, partitions=live.partitions[-1:]))


def test_a_partition_whose_name_no_file_takes_is_left_out_of_the_draft(tmp_path):
    """One such partition would make the whole draft a file that no command reads."""
    odd = replace(cluster().partitions[0], name="gp\xfc+x", default=True)
    live = replace(cluster(), partitions=(*cluster().partitions, odd))
    site, questions = loaded(live, tmp_path)
    assert (odd.name in site.partitions, questions, compare(site, live)) == (False, (), ())
    note = "# gp\\xfc+x has a name that a site file does not take: left out"
    assert note in (tmp_path / "site.yaml").read_text()


def test_features_are_taken_as_slurm_has_them(tmp_path):
    """A site that writes `gpu:a100` or `net=ib` had a draft that no command read."""
    names = ("intel:cascade", "gpu=a100", "a+b", "x/y@z")
    part = replace(cluster().partitions[0], features=names)
    live = replace(cluster(), partitions=(part,))
    site, _ = loaded(live, tmp_path)
    assert site.partition(part.name).features == names
    assert compare(site, live) == ()
    script = "#!/bin/bash\n#SBATCH --constraint=intel:cascade&gpu=a100&x/y@z\nsrun x\n"
    version = site.slurm.version
    assert lint(script, name="x.sh", version=version, cluster=cluster_of(site)) == ()


def test_slices_beside_whole_gpus_make_no_second_node(tmp_path):
    live = mixed(*["gpu:a100:2,gpu:a100_1g.5gb:14"] * 2)
    site, questions = loaded(live, tmp_path)
    part = site.partition("p100")
    assert (part.nodes, part.gpu.per_node, part.groups, questions) == (2, 2, (), ())
    assert compare(site, live) == ()
    assert "slices of GPUs, too (a100_1g.5gb)" in (tmp_path / "site.yaml").read_text()


def test_the_limits_of_a_partition_s_qos_are_read(tmp_path):
    text = said.partitions("24.11").splitlines()[0]
    text = text.replace("QoS=N/A", "QoS=short").replace("AllowQos=ALL", "AllowQos=SMALL,long")
    record = parse.partition(text)
    limits = parse.qos_limits("short|08:00:00||gres/gpu=4|2|")
    part = describe(record, nodes(), limits)
    site, _ = loaded(replace(cluster(), partitions=(part,)), tmp_path)
    assert site.partition("p100").max_time == "08:00:00"
    text = (tmp_path / "site.yaml").read_text()
    assert "# its QOS short has MaxWall=08:00:00, MaxTRESPU=gres/gpu=4, MaxJobsPU=2" in text
    assert "# qos: SMALL or long" in text


def test_a_partition_that_is_closed_is_a_note():
    text = said.partitions("24.11").replace("State=UP", "State=DRAIN", 1)
    (note,) = closed([parse.partition(line) for line in text.splitlines()])
    assert note.startswith("partition 'p100' is DRAIN")


def test_a_reservation_of_all_nodes_is_a_note():
    line = (
        "ReservationName=maint StartTime=2026-12-01T06:00:00 EndTime=2026-12-01T18:00:00 "
        "Duration=12:00:00 Nodes=p100-[01-02] NodeCnt=2 Flags=MAINT,SPEC_NODES State=INACTIVE"
    )
    (note,) = reserved(cluster().partitions, [parse.reservation(line)])
    assert note.startswith("all nodes of 'p100' are reserved by 'maint' from 2026-12-01T06:00:00")


def test_only_a_draft_that_nobody_edited_may_be_replaced():
    text = draft(cluster()).text
    assert is_unedited(text)
    assert not is_unedited(text.replace("p100", "p101", 1))
    assert not is_unedited(text + "private: true\n")
    assert not is_unedited("schema: 1\n")


# Free and busy GPUs from what `scontrol show node -d -o` prints.


def line(name="g1", state="IDLE", gres="gpu:v100:4(S:0-1)", used="gpu:v100:0(IDX:N/A)", **more):
    fields = {"CPUAlloc": 0, "CPUEfctv": 62, "CPUTot": 64, "Partitions": "gpu,long", **more}
    return (
        f"NodeName={name} Arch=x86_64 CoresPerSocket=16  CPUAlloc={fields['CPUAlloc']} "
        f"CPUEfctv={fields['CPUEfctv']} CPUTot={fields['CPUTot']} CPULoad=0.01 "
        f"AvailableFeatures=v100 Gres={gres} GresDrain=N/A GresUsed={used} NodeAddr={name} "
        f"OS=Linux 5.14 #1 SMP @0 RealMemory=515000 State={state} ThreadsPerCore=1 "
        f"Partitions={fields['Partitions']} BootTime=2026-11-01T10:00:00 Reason=none [root@now]"
    )


def rows(*lines):
    return {(row.partition, row.kind): row for row in gpu_rows(gpus_of_nodes(lines))}


@pytest.mark.parametrize(
    ("node", "counts"),
    [
        (line(), "free 4, used 0, blocked 0, down 0"),
        (line(state="MIXED", used="gpu:v100:3(IDX:0-2)"), "free 1, used 3, blocked 0, down 0"),
        # Two of 64 CPUs are Slurm's own (CoreSpecCount): 62 in use are all there are.
        (line(state="MIXED", CPUAlloc=62), "free 0, used 0, blocked 4, down 0"),
        (line(state="MIXED+DRAIN", used="gpu:v100:1(IDX:0)"), "free 0, used 1, blocked 0, down 3"),
        (line(state="DOWN*"), "free 0, used 0, blocked 0, down 4"),
        (line(state="IDLE+MAINT+RESERVED"), "free 0, used 0, blocked 0, down 4"),
        (line(state="IDLE+PLANNED"), "free 4, used 0, blocked 0, down 0"),
        (line(state="IDLE+RESERVED"), "free 0, used 0, blocked 0, down 4"),
        (line(state="IDLE+BLOCKED"), "free 0, used 0, blocked 0, down 4"),
        (line(state="IDLE+DRAIN+INVALID_REG"), "free 0, used 0, blocked 0, down 4"),
        (line(used="gpu:3(IDX:0-2)"), "free 1, used 3, blocked 0, down 0"),
        (line(state="IDLE+POWERING_DOWN"), "free 0, used 0, blocked 0, down 4"),
        # Slurm starts such a node for the next job.
        (line(state="IDLE+CLOUD+POWERED_DOWN"), "free 4, used 0, blocked 0, down 0"),
    ],
)
def test_a_gpu_is_free_where_a_job_can_have_it(node, counts):
    row = rows(node)["gpu", "v100"]
    found = f"free {row.free}, used {row.used}, blocked {row.blocked}, down {row.down}"
    assert found == counts


@pytest.mark.parametrize("used", ["gpu:(null):3(IDX:0-2)", "gpu:3(IDX:0-2)", "gpu:v100:3(IDX:0-2)"])
def test_gpus_without_a_type_are_in_use_under_any_name(used):
    row = rows(line(gres="gpu:4(S:0-1)", used=used))["gpu", ""]
    assert (row.free, row.used) == (1, 3)


def test_every_partition_and_type_has_a_row_and_slices_have_no_model():
    mixed = line("g2", gres="gpu:tesla_p100:2,gpu:a100_1g.5gb:7", used="gpu:a100_1g.5gb:1(IDX:0)")
    found = rows(line(), line("g3"), mixed, line("c1", gres="(null)", used="N/A"))
    assert set(found) == {
        (partition, kind)
        for partition in ("gpu", "long")
        for kind in ("v100", "tesla_p100", "a100_1g.5gb")
    }
    assert (found["gpu", "v100"].free, found["gpu", "v100"].largest) == (8, 4)
    assert (found["gpu", "a100_1g.5gb"].free, found["gpu", "a100_1g.5gb"].model) == (6, "")
    assert found["gpu", "tesla_p100"].model.startswith("P100")

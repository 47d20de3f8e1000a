"""The batch script: right directives, right rules, readable, and clean for every layout."""

import re
import subprocess
import sys
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdl.jobs import JobSpec, Module, plan_on
from hpcdl.jobs.launch import with_version
from hpcdl.jobs.lint import lint
from hpcdl.slurm.rules import as_release, known_releases, rule
from hpcdl.system.errors import BadInput
from hpcdl.system.resources import folder
from hpcdl.system.run import run
from tests.golden.matrix import cells
from tests.make.sites import shipped
from tests.make.specs import script as script_of

MODULE = Module(("tensorflow/2.20.0",), Path("/apps/hpcdl/releases/r1/modules"), "r1")
TEMPLATES = folder("templates") / "sbatch"
SCRIPTS = cells()


def render(site, partition="p100", module=MODULE, **asked):
    return script_of(site, partition, module, **asked)


@pytest.mark.parametrize("name", SCRIPTS)
def test_directives_stand_once_before_the_first_command_and_the_text_is_tidy(name):
    lines = SCRIPTS[name].splitlines()
    assert lines[0] == "#!/bin/bash"
    first = next(n for n, line in enumerate(lines) if line and not line.startswith("#"))
    assert [line for line in lines[first:] if line.startswith("#SBATCH")] == []
    names = [line.split("=")[0] for line in lines if line.startswith("#SBATCH")]
    assert len(names) == len(set(names)) > 8
    assert not re.search(r"\n\n\n|[ \t]+$|.{201}", SCRIPTS[name], re.M)


def test_every_rule_that_the_template_names_is_a_row_of_the_data():
    template = "".join(path.read_text() for path in TEMPLATES.glob("*.j2"))
    found = re.findall(r'why\(.*?, "([a-z0-9 -]+)"\)', template)
    named = {one for ids in found for one in ids.split()}
    assert len(named) > 12
    for one in named:
        rule(one)


@pytest.mark.parametrize("version", known_releases())
def test_a_rule_that_explain_names_holds_in_that_release(three_generations, version):
    script = render(with_version(three_generations, version), gpus=8)
    named = {line.rule(version) for line in script.lines} - {""}
    assert len(named) > 8
    assert all(rule(one).holds(as_release(version)) for one in named)


@pytest.mark.parametrize("asked", [{"gpus": 8}, {"launcher": "multiworker", "nodes": 2}])
def test_what_explain_prints_is_the_same_script_with_reasons_between(three_generations, asked):
    script = render(three_generations, trusted_network=True, **asked)
    shown = script.explained.splitlines()
    reasons = [index for index, line in enumerate(shown) if line.lstrip().startswith("#  ")]
    assert len(reasons) > 20
    assert not any(shown[index - 1].endswith("\\") for index in reasons)
    rest = [line for index, line in enumerate(shown) if index not in reasons]
    assert rest == script.text.splitlines()
    subprocess.run(["bash", "-n"], input="\n".join(shown), text=True, check=True)
    at = shown.index("#SBATCH --open-mode=append")
    assert shown[at - 1].startswith("#  a requeued job")
    assert "[requeue-truncates]" in shown[at - 1]


def test_explain_changes_nothing_in_the_script(three_generations):
    """Reasons ride on a separator: not even a value that holds it can leak one."""
    text = render(three_generations, program=("a\x1f", "b\x1f\x1fc")).text
    assert "\x1f" not in text
    assert "$'a\\x1f'" in text


def test_a_variable_of_the_script_cannot_be_set_by_a_user():
    """Else a value would not arrive, or would be taken for the script's own."""
    text, site = "".join(SCRIPTS.values()), shipped("p100-v100-k80")
    own = set(re.findall(r"(?:^ *|& )(?:export )?([A-Za-z_]\w*)=", text, re.M))
    own -= {"A", "CUDA_DEVICE_ORDER", "SLURM_WHOLE", "SLURM_PMIX_FENCE", "HPCDL_DATA"}
    own -= {"SLURM_EXPORT_ENV"}  # the last one counts, and that is the user's
    own -= {"waited"}  # of a rank's own shell, once its program has ended
    assert {"HPCDL_RANK", "hpcdl_step"} <= own
    for name in own:
        if not name.startswith(("NCCL_", "OMPI_", "OMP_", "MASTER_", "JAX_", "left")):
            with pytest.raises(BadInput, match=f"cannot set the variable {name}"):
                render(site, environment={name: "x"})


def body(script):
    lines = script.text.splitlines()
    return lines[lines.index("") + 1 :]


@pytest.mark.parametrize(
    ("most", "asked"),
    [
        (45, {"gpus": 1, "program": ("python", "train.py"), "module": Module(())}),
        (90, {"nodes": 2}),
        (90, {"nodes": 2, "program": ("python", "train.py")}),
    ],
)
def test_a_script_is_one_that_an_expert_would_sign(most, asked):
    """Only what the job uses is in it; its functions and variables have a prefix."""
    text = render(shipped("embedded"), **asked).text
    assert sum(map(bool, text.splitlines())) <= most
    assert set(re.findall(r"^(\w+)\(\)", text, re.M)) == {"hpcdl_leave"}
    assert "shellcheck disable" not in text
    assert max(map(len, text.splitlines())) <= 200


def test_a_job_without_gpus_says_nothing_of_gpus(modern):
    text = render(modern, "cpu", nodes=2, launcher="mpi", program=("./a.out",)).text
    body = text.partition("export SLURM_EXPORT_ENV")[2]
    assert not re.search("gpu(?!s-per-node=0)|cuda", body, re.I)


@pytest.mark.parametrize(
    ("before", "after", "rule_id"),
    [
        ("", "", ""),
        ("hpcdl train & hpcdl_step", "hpcdl train; hpcdl_step", "trap-deferred"),
        ("--open-mode=append", "--open-mode=truncate", "requeue-truncates"),
        ("srun --mpi=pmix --cpus-per-task=16", "srun --mpi=pmix", "cpus-per-task-default"),
        ("--signal=B:USR2@120", "--signal=USR2@120", "signal-steps-only"),
        ("--signal=B:USR2@120", "--signal=B:USR1@120", "signal-not-trapped"),
    ],
)
def test_the_linter_sees_what_is_taken_out_of_a_script(modern, before, after, rule_id):
    text = render(with_version(modern, "22.05"), "a100", nodes=2).text
    assert before in text
    found = lint(text.replace(before, after), name="x", version="22.05")
    assert (not rule_id and not found) or rule_id in {one.rule.id for one in found}


def test_gpus_are_asked_for_once_in_the_form_of_the_site(three_generations, pi):
    p100 = three_generations.partition("p100")
    plain = replace(p100, gpu=p100.gpu._replace(gres_type=None))
    untyped = replace(three_generations, partitions={"p100": plain})
    for site, name, form in (
        (three_generations, "p100", "--gpus-per-node=p100:2"),
        (pi, "k80", "--gres=gpu:k80:2"),
        (untyped, "p100", "--gpus-per-node=2"),
    ):
        directives = render(site, name, gpus=2).directives
        assert [one for one in directives if "gpu" in one] == [form]


def test_account_and_qos_come_from_request_then_partition_then_site(modern):
    assert "--qos=h100" in render(modern, "h100").directives
    assert "--qos=normal" in render(modern, "a100").directives
    assert "--qos=fast" in render(modern, "h100", qos="fast").directives
    assert "--account=ai" in render(modern, "a100").directives


def test_modules_are_pinned_to_the_release(three_generations):
    text = render(three_generations).text
    assert "module use /apps/hpcdl/releases/r1/modules\n" in text
    assert "module load tensorflow/2.20.0 || hpcdl_leave 20\n" in text
    assert "module" not in render(three_generations, module=Module(())).text
    planned = render(three_generations, module=Module(("tensorflow/2.20.0",))).text
    assert "# No release is published yet" in planned


def test_the_environment_of_the_partition_yields_to_the_request_and_is_checked_like_it(pi):
    p100 = pi.partition("p100")
    site, wrong = (
        replace(pi, partitions={"p100": replace(p100, environment=values)})
        for values in ({"A": "site", "B": "site"}, {"UID": "0"})
    )
    text = render(site, environment={"A": "mine"}).text
    assert text.index("export A=site\n") < text.index("hpcdl_name in A;")
    assert "export B=site\n" in text
    assert "mine" not in text
    with pytest.raises(BadInput, match="cannot set the variable UID"):
        render(wrong)


def test_mpi_and_nccl_take_the_interface_that_the_site_names(three_generations):
    lines = [f"export {name}=ib0" for name in ("NCCL_SOCKET_IFNAME", "OMPI_MCA_btl_tcp_if_include")]
    text = render(three_generations, nodes=2, environment={"NCCL_SOCKET_IFNAME": "eth0"}).text
    assert all(line in text.splitlines() for line in lines)
    # Later lines win: what a person says is of more weight than the site.
    assert text.index("NCCL_SOCKET_IFNAME=ib0") < text.index("hpcdl_name in NCCL_SOCKET_IFNAME;")
    assert "IFNAME" not in render(three_generations, nodes=1).text


def variables_unset(site, version, **asked):
    text = render(with_version(site, version), **asked).text
    lists = ",".join(re.findall(r"SLURM_\{([A-Z_,]+)\}", text)).split(",")
    return {f"SLURM_{name}" for name in lists}


@pytest.mark.parametrize(
    ("version", "launcher", "whole"),
    [
        ("20.11.0", "horovod-mpirun", True),
        ("20.11.2", "horovod-mpirun", True),
        ("20.11.3", "horovod-mpirun", False),
        ("20.11.2", "horovod", False),
        ("22.05", "horovod-mpirun", False),
    ],
)
def test_mpirun_s_daemons_get_whole_nodes_where_steps_are_exclusive(pi, version, launcher, whole):
    script = render(with_version(pi, version), gpus=4, launcher=launcher)
    lines = {line.text: line.rule(version) for line in script.lines}
    assert lines.get("export SLURM_WHOLE=1") == ("steps-exclusive" if whole else None)


@pytest.mark.parametrize(
    ("nodes", "launcher", "mpi", "said"),
    [
        (2, "horovod", "pmix", True),
        (2, "mpi", "pmix_v3", True),
        (1, "horovod", "pmix", False),
        (2, "horovod", "pmi2", False),
        (2, "horovod-mpirun", "pmix", False),
        (2, "torch", "pmix", False),
    ],
)
def test_ranks_of_several_nodes_meet_in_the_barrier_that_loses_none(pi, nodes, launcher, mpi, said):
    site = replace(pi, slurm=replace(pi.slurm, mpi=mpi))
    script = render(site, partition="k80", nodes=nodes, gpus_per_node=2, launcher=launcher)
    assert ("export SLURM_PMIX_FENCE=ring" in script.text.splitlines()) is said


def test_what_another_job_left_is_cleared_but_not_what_sbatch_sets(three_generations, pi):
    assert "SLURM_GPUS_PER_NODE" not in variables_unset(three_generations, "26.05", gpus=1)
    # Asked by --gres, an inherited SLURM_GPUS_PER_NODE would be the forbidden second request.
    assert "SLURM_GPUS_PER_NODE" in variables_unset(pi, "26.05", gpus=1)
    for site in (three_generations, pi):
        assert {"SLURM_NTASKS_PER_GPU", "SLURM_MEM_PER_NODE"} <= variables_unset(site, "22.05")
        assert "SLURM_CPUS_PER_TASK" not in variables_unset(site, "23.11")


def test_an_mpi_plugin_that_the_release_never_had_is_refused(three_generations):
    site = replace(three_generations, slurm=replace(three_generations.slurm, mpi="pmix_v5"))
    assert "--mpi=pmix_v5" in render(with_version(site, "24.11"), gpus=1).text
    with pytest.raises(BadInput, match=r"Slurm 20\.11 has no MPI plug-in 'pmix_v5'"):
        render(with_version(site, "20.11"), gpus=1)


@pytest.mark.parametrize(
    ("minutes", "signal"),
    [(1, None), (2, None), (3, 30), (4, 60), (5, 90), (6, 120), (60, 120), (2880, 120)],
)
def test_the_warning_never_comes_before_half_of_the_time(three_generations, minutes, signal):
    """Slurm may send it a minute early; a job that is warned at its start would only requeue."""
    directives = render(three_generations, minutes=minutes).directives
    warned = [one for one in directives if one.startswith("--signal")]
    assert warned == ([f"--signal=B:USR2@{signal}"] if signal else [])
    assert minutes * 60 - (signal or 0) - 60 >= minutes * 30 or signal is None


@pytest.mark.parametrize(
    ("path", "directive"),
    [
        ("/work/a", "--output=/work/a/job.log"),
        ("/work/a b", '--output="/work/a b/job.log"'),
        ("/work/100%j", "--output=/work/100%%j/job.log"),
        ('/work/"x"', '--output="/work/\\"x\\"/job.log"'),
        ("/work/#x", '--output="/work/#x/job.log"'),
        ("/work/$HOME`id`", '--output="/work/$HOME`id`/job.log"'),
        ("/work/é", '--output="/work/é/job.log"'),
    ],
)
def test_a_directory_with_signs_is_named_as_sbatch_reads_it(three_generations, path, directive):
    assert directive in render(three_generations, job_dir=Path(path)).directives


def test_a_full_disk_of_the_cache_does_not_keep_a_script_from_being_rendered(tmp_path):
    """Compiled templates cannot be kept: no file may grow in this process."""
    program = (
        "import resource, sys\nfrom hpcdl.cli import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    words = [sys.executable, "-c", program, "job", "render", "--site", "embedded", "--gpus", "1"]
    assert "#SBATCH" in run(words, env={"HPCDL_CACHE": str(tmp_path)}).stdout


# Layouts: CPU only, one GPU, part of a node, whole nodes; everything else is refused with help.


def layout(site, partition, **asked):
    return plan_on(site, JobSpec(partition, **asked))[1]


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
        found = plan_on(site, spec)[1]
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

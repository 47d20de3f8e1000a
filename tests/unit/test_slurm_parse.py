"""What Slurm's commands print, as releases from 20.11 to 24.11 print it; its lists of nodes."""

import os
import re
import shutil
import subprocess
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdl.slurm import parse
from hpcdl.slurm.hostlist import MOST_NODES, expand_hostlist
from hpcdl.system.errors import BadInput
from tests.unit import slurm_output as said


@pytest.mark.parametrize("release", said.RELEASES)
def test_nodes_are_read_alike_from_every_release(release):
    first, second, cpu = (parse.node(line) for line in said.nodes(release).splitlines())
    assert (first.name, second.name, cpu.name) == ("p100-01", "p100-02", "cpu-01")
    assert (first.sockets, first.cores_per_socket, first.threads_per_core) == (2, 14, 2)
    assert (first.cpus, first.memory_mb, first.gpus) == (56, 250000, (("p100", 4),))
    assert (first.features, first.partitions) == (("p100", "nvlink"), ("p100", "all"))
    assert second.reason == "bad DIMM, see #17 [root@2024-11-01T09:00:00]"
    assert (second.state, cpu.gpus, cpu.features) == ("IDLE+DRAIN", (), ())


@pytest.mark.parametrize("release", said.RELEASES)
def test_partitions_configuration_and_mpi_plugins_are_read_alike_from_every_release(release):
    config = parse.config(said.config(release))
    assert config["ClusterName"] == "pi"
    assert config["AccountingStorageType"] == "accounting_storage/slurmdbd"
    p100, cpu = (parse.partition(line) for line in said.partitions(release).splitlines())
    assert (p100.name, p100.nodes, p100.node_count) == ("p100", "p100-[01-02]", 2)
    assert (p100.default, p100.max_time) == (True, "2-00:00:00")
    assert (cpu.default, cpu.max_time) == (False, "UNLIMITED")
    found = set(parse.mpi_plugins(said.MPI_LISTS[release]))
    versioned = {name for name in found if re.fullmatch(r"pmix_v\d", name)}
    assert versioned
    assert found - versioned == {"none", "pmi2", "cray_shasta", "pmix"}


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("", ()),
        ("gpu:4", ((None, 4),)),
        ("gpu:p100:4(S:0-1)", (("p100", 4),)),
        ("gpu:2080ti:8(S:0,1)", (("2080ti", 8),)),
        ("gpu:a100_1g.5gb:7", (("a100_1g.5gb", 7),)),
        ("craynetwork:4,gpu:v100:8(IDX:0-7),nvme:1", (("v100", 8),)),
        ("gpu:k20:2,gpu:k80:4", (("k20", 2), ("k80", 4))),
        ("gpu:a100:2(S:0),gpu:a100:2(S:1)", (("a100", 4),)),
        ("shard:8", ()),
        ("mps:gpu:100", ()),
    ],
)
def test_gres_tells_types_and_counts_of_gpus(gres, gpus):
    assert parse.node(f"NodeName=n Gres={gres} RealMemory=1").gpus == gpus


@pytest.mark.parametrize(
    ("state", "takes", "out"),
    [
        ("IDLE", True, False),
        ("MIXED+PLANNED", True, False),
        ("IDLE+CLOUD+POWERED_DOWN", True, False),  # Slurm starts it for the next job
        ("IDLE+CLOUD+POWERING_UP", True, False),
        ("DOWN*", False, True),
        ("IDLE+DRAIN", False, True),
        ("mixed+draining", False, True),
        ("IDLE+FAIL", False, True),
        ("IDLE+NOT_RESPONDING", False, True),
        ("IDLE*", False, False),
        ("IDLE+MAINTENANCE", False, False),
        ("IDLE+POWERING_DOWN", False, False),
        ("MIXED+REBOOT_REQUESTED", False, False),
        ("FUTURE", False, False),
        ("UNKNOWN", False, False),
    ],
)
def test_the_state_of_a_node_says_whether_it_starts_jobs(state, takes, out):
    assert (parse.takes_jobs(state), parse.is_out(state)) == (takes, out)


MARK = "5f0c9a"
JOB = (
    "4711",
    "RUNNING",
    "4711",
    "N/A",
    "p100",
    "p100-[01-02]",
    "2024-11-01T08:00:00",
    "2024-11-01T08:00:05",
    "2024-11-01T09:00:05",
    "1:00:00",
    "None",
    "/home/me/my jobs/job.sh",
    "a b=c",
)


def answer(*jobs):
    """What squeue prints to the format of a call with this mark."""
    heading = ["JOBID"] + ["X"] * (len(parse.JOB_FORMAT) - 1)
    return "".join(parse.marked_format(job, MARK) + "\n" for job in (heading, *jobs))


def test_a_job_is_read_with_blanks_and_signs_in_its_values():
    (fields,) = parse.marked(answer(JOB), MARK)
    job = parse.job(fields, (75, 0, 2))
    assert (job.id, job.name, job.state, job.reason) == (4711, "a b=c", "RUNNING", "None")
    assert (job.exit_code, job.signal, job.restarts) == (75, 0, 2)
    assert (job.nodes, job.script) == ("p100-[01-02]", "/home/me/my jobs/job.sh")
    assert (job.active, job.array_job) == (True, None)
    waits = [*JOB[:1], "PENDING", *JOB[2:5], "", JOB[6], "N/A", "N/A", *JOB[9:]]
    job = parse.job(parse.marked(answer(waits), MARK)[0])
    assert (job.nodes, job.started, job.ended) == ("", "", "")


@pytest.mark.parametrize(
    "name",
    [
        "x JobState=COMPLETED JobId=64",
        "x\nJobId=77 JobState=COMPLETED",
        "x|5f0c9b|y",
        "<5f0c9b>1|5f0c9b|RUNNING",
        "x\n64 COMPLETED",
    ],
)
def test_no_name_or_path_of_a_user_makes_a_field_or_a_record(name):
    rows = parse.marked(answer([*JOB[:-2], f"/tmp/{name}", name], JOB), MARK)
    jobs = [parse.job(row) for row in rows]
    assert [(one.id, one.state, one.name) for one in jobs] == [
        (4711, "RUNNING", name),
        (4711, "RUNNING", "a b=c"),
    ]


@pytest.mark.parametrize("text", ["", "\n", "garbage", "JobId=7 JobState=RUNNING", "JOBID|STATE"])
def test_an_answer_without_its_heading_is_not_an_empty_queue(text):
    with pytest.raises(ValueError, match="heading"):
        parse.marked(text, MARK)
    assert parse.marked(answer(), MARK) == []


def test_the_name_of_one_cluster_may_stand_above_the_heading():
    assert parse.marked(f"CLUSTER: one\n{answer(JOB)}", MARK) == parse.marked(answer(JOB), MARK)
    ends = "CLUSTER: one\nJOBID EXIT_CODE RESTARTS\n7 0 2\n"
    assert parse.exits(ends) == {7: (0, 0, 2)}
    for jobs in ((), (JOB,)):
        with pytest.raises(ValueError, match="several"):
            parse.marked(f"CLUSTER: one\n{answer(*jobs)}\nCLUSTER: two\n{answer()}", MARK)
    with pytest.raises(ValueError):
        parse.exits(f"{ends}\n{ends}")


@pytest.mark.parametrize(("code", "end"), [("768", (3, 0)), ("3:0", (3, 0)), ("9", (0, 9))])
def test_ends_of_jobs_are_numbers_only(code, end):
    text = f"JOBID       EXIT_CODE   RESTART_COUN\n7           {code:12}2\n"
    assert parse.exits(text) == {7: (*end, 2)}


def test_an_accounted_job_that_was_cancelled_is_read():
    line = "7|CANCELLED by 1000|0:15|p100|None assigned|2024-01-01T00:00:00|None|Unknown|1:00|a|b"
    job = parse.accounted_job([line])
    assert (job.id, job.state, job.signal, job.nodes) == (7, "CANCELLED", 15, "")
    assert (job.name, job.cancelled_by) == ("a|b", 1000)
    assert not job.active
    assert parse.accounted_job([line.replace(" by 1000", "")]).cancelled_by is None


def test_accounting_has_a_line_for_each_run_of_a_requeued_job():
    line = "7|{}|0:0|p100|n1|2024-01-01T00:00:00|None|Unknown|1:00|{}"
    lines = [
        line.format("COMPLETED", "of long ago"),
        line.format("NODE_FAIL", "train"),
        line.format("COMPLETED", "train"),
    ]
    job = parse.accounted_job(lines)
    assert (job.state, job.restarts) == ("COMPLETED", 1)


@given(st.text(max_size=200))
def test_nonsense_makes_no_pairs_fail_and_for_a_record_is_an_error_the_client_knows(text):
    assert all(isinstance(value, str) for value in parse.pairs(text).values())
    parse.mpi_plugins(text)
    parse.config(text)
    for reader in (parse.exits, parse.node, parse.partition):
        with suppress(KeyError, ValueError, IndexError):
            reader(text)
    for reader in (parse.accounted_job, parse.job):
        with suppress(KeyError, ValueError, IndexError):
            reader(text.splitlines())


def test_only_a_number_from_1_is_a_job_s_id():
    assert parse.job_id("7\n") == parse.job_id("7;cluster\n") == 7
    for text in ("", "0", "-5", "7\nx", "Submitted batch job 7"):
        with pytest.raises(ValueError):
            parse.job_id(text)


@pytest.mark.parametrize(
    ("hostlist", "names"),
    [
        ("", ""),
        ("a,b", "a b"),
        ("p100-[01-02,04],login", "p100-01 p100-02 p100-04 login"),
        ("n[9-11]", "n9 n10 n11"),
        ("n[08-10]", "n08 n09 n10"),
        ("r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"),
        ("n[7]", "n7"),
        ("n[1-2].cluster.org", "n1.cluster.org n2.cluster.org"),
    ],
)
def test_ranges_are_written_out_with_their_zeros(hostlist, names):
    assert list(expand_hostlist(hostlist)) == names.split()


@pytest.mark.parametrize(
    ("why", "hostlists"),
    [
        ("no list of nodes", ["n[1-", "n1-3]", "n[a-b]", "n[]", "a,,b", "a b", "a],b", ",a"]),
        ("runs backwards", ["n[5-1]"]),
        (
            "names more than 100,000 nodes",
            [
                "n[1-999999999999]",
                "r[1-1000]n[1-1000]",
                "n[1-60000],m[1-60000]",
                "a[1-" + "9" * 5000 + "]",
            ],
        ),
    ],
)
def test_what_names_no_nodes_is_refused_and_takes_no_memory(why, hostlists):
    for hostlist in hostlists:
        with pytest.raises(BadInput, match=why):
            expand_hostlist(hostlist)


@given(st.text(alphabet="ab[]-,01 9.", max_size=30))
def test_any_text_is_expanded_within_bounds_or_refused(text):
    with suppress(BadInput):
        assert len(expand_hostlist(text)) <= MOST_NODES


@pytest.mark.skipif(not shutil.which("scontrol"), reason="scontrol is not installed")
@pytest.mark.parametrize("hostlist", ["p100-[01-02,04],login", "n[9-11]", "r[1-2]n[08-10]"])
def test_scontrol_gives_the_same_names(hostlist, tmp_path):
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=x\nSlurmctldHost=localhost\n")
    words = ["scontrol", "show", "hostnames", hostlist]
    env = {**os.environ, "SLURM_CONF": str(conf)}
    asked = subprocess.run(words, capture_output=True, text=True, check=True, env=env)
    assert asked.stdout.split() == list(expand_hostlist(hostlist))

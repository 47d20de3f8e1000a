"""The transport between GPUs, from what NCCL prints, against what the partition declares."""

import pytest

from hpcdl.jobs.preflight import Link, NoLibrary, exchange, identity_name, judge_links, read_links

# Forms of NCCL 2.4 to 2.27: with and without the sub-channel, bus ids and the direction.
LOG = """
p100-01:99:120 [0] NCCL INFO Channel 00/02 :    0   1   2   3
p100-01:99:120 [0] NCCL INFO Channel 00 : 0[1b000] -> 1[3d000] via P2P/IPC
p100-01:99:121 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM/read
p100-01:99:121 [1] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0/GDRDMA
p100-02:98:120 [0] NCCL INFO Channel 01/0 : 2[0] -> 3[1] via SHM/direct/direct
p100-02:98:121 [1] NCCL INFO Channel 01/0 : 3[1] -> 0[0] [receive] via NET/Socket/1
"""
HOSTS = {0: "p100-01", 1: "p100-01", 2: "p100-02", 3: "p100-02"}


def test_links_are_read_from_every_form_that_nccl_prints():
    assert read_links(LOG) == (
        Link(0, 1, "P2P"), Link(1, 0, "P2P"), Link(1, 2, "NET/IB"), Link(2, 3, "SHM"),
        Link(3, 0, "NET/Socket"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("links", "nvlink", "fabric", "wrong"),
    [
        (read_links(LOG), False, "infiniband", "nodes talk by TCP sockets, though infiniband is"),
        (read_links(LOG), True, "ethernet", "GPUs of a node talk by SHM"),
        ([Link(0, 1, "NET/IB")], False, "infiniband", "GPUs of a node talk through the network"),
        (read_links(LOG), False, "ethernet", None),
    ],
    ids=["no InfiniBand", "no NVLink", "the network inside a node", "PCIe and Ethernet"],
)
def test_links_are_judged_by_what_the_partition_declares(links, nvlink, fabric, wrong):
    found = judge_links(links, HOSTS, nvlink=nvlink, fabric=fabric)
    assert len(found) == (wrong is not None)
    assert all(sentence.startswith(wrong) for sentence in found)


def test_without_nccl_it_says_so(tmp_path):
    with pytest.raises(NoLibrary, match="libnccl"):
        exchange(0, 1, 0, tmp_path)


def test_ranks_meet_in_no_file_of_another_step_run_or_job_of_a_chain():
    first = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    others = [first | {"SLURM_STEP_ID": "1"}, first | {"SLURM_JOB_ID": "8"},
              first | {"SLURM_RESTART_COUNT": "1"}]  # fmt: skip
    assert len({identity_name(env) for env in [first, *others]}) == 4
    assert identity_name(first) == identity_name(dict(first))

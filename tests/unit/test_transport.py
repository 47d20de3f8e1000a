"""The transport between GPUs, from what NCCL prints, against what the partition declares."""

import pytest

from hpcdl.jobs.transport import Link, NoLibrary, exchange, identity_name, judge_links, read_links

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


def test_sockets_between_nodes_are_wrong_where_infiniband_is_declared():
    (sentence,) = judge_links(read_links(LOG), HOSTS, nvlink=False, fabric="infiniband")
    assert sentence == "nodes talk by TCP sockets, though infiniband is declared (1 links)"


def test_shared_memory_inside_a_node_is_wrong_where_nvlink_is_declared():
    (sentence,) = judge_links(read_links(LOG), HOSTS, nvlink=True, fabric="ethernet")
    assert sentence.startswith("GPUs of a node talk by SHM")


def test_what_a_pcie_partition_on_ethernet_does_is_right():
    assert judge_links(read_links(LOG), HOSTS, nvlink=False, fabric="ethernet") == ()


def test_the_network_inside_a_node_is_always_wrong():
    found = judge_links([Link(0, 1, "NET/IB")], HOSTS, nvlink=False, fabric="infiniband")
    assert "through the network" in found[0]


def test_without_nccl_it_says_so(tmp_path):  # type: ignore[no-untyped-def]
    with pytest.raises(NoLibrary, match="libnccl"):
        exchange(0, 1, 0, tmp_path)


def test_ranks_meet_in_no_file_of_another_step_run_or_job_of_a_chain():
    first = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    others = [first | {"SLURM_STEP_ID": "1"}, first | {"SLURM_JOB_ID": "8"},
              first | {"SLURM_RESTART_COUNT": "1"}]  # fmt: skip
    assert len({identity_name(env) for env in [first, *others]}) == 4
    assert identity_name(first) == identity_name(dict(first))

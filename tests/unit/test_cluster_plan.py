"""A site laid out on one machine: names, addresses, ports and configuration, all pure."""

import ipaddress
import json
import os
import re
import socket
import string
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdl import facts
from hpcdl.cluster import LOOPBACK, NAMESPACES, cluster_plan, lifecycle, network, rootfs, teardown
from hpcdl.cluster.identity import MARK
from hpcdl.cluster.needs import choose_mode
from hpcdl.cluster.shape import Ports, link_name
from hpcdl.cluster.state import claim, is_ours_or_empty
from hpcdl.site import find_site_file, load_site
from hpcdl.slurm.hostlist import expand_hostlist, fold_hostlist
from hpcdl.slurm.rules import SlurmRelease, known_releases
from hpcdl.system.errors import BadInput, CheckFailed, MissingPrerequisite
from hpcdl.workflows.embedded import request, site_of
from tests.make.sites import shipped
from tests.unit.test_cluster_environment import STATE

HERE = Path("/var/tmp/hpcdl")
SITES = ("embedded", "pi", "p100-v100-k80", "a100-h100")


@pytest.fixture
def embedded():
    return shipped("embedded")


class Laid:
    """A site laid out: what was asked for, its state, and its files by path."""

    def __init__(self, site, mode=NAMESPACES, *, accounting=False):
        self.request = request(site, mode, accounting, 3)
        nodes = cluster_plan.lay_out(self.request, "10.77.5", Ports(21000))
        self.state = replace(
            STATE,
            directory=HERE,
            site=site.name,
            mode=mode,
            nodes=nodes,
            accounting=accounting,
            network="10.77.5",
        )
        own = cluster_plan.files(self.request, self.state, mpi="pmix", first_job=1, slurmd="slurmd")
        self.files = {file.path: file for file in own}


def settings(laid):
    lines = laid.files["etc/slurm.conf"].text.splitlines()
    return dict(line.split("=", 1) for line in lines if re.match(r"^(?!Node|Part)\w+=", line))


@pytest.mark.parametrize("name", SITES)
def test_slurm_gets_the_names_and_the_hardware_of_the_site(name):
    site, laid = shipped(name), Laid(shipped(name))
    whole = request(site, LOOPBACK, False)
    for partition, queue in zip(site.partitions.values(), whole.queues, strict=True):
        assert len(queue.nodes) == partition.nodes
        if partition.hostlist:
            assert queue.nodes == expand_hostlist(partition.hostlist)
    lines = [one for one in laid.files["etc/slurm.conf"].text.splitlines() if one[:4] == "Node"]
    for line, group in zip(lines, laid.request.groups, strict=True):
        words = dict(word.split("=", 1) for word in line.split())
        partition, gpu = site.partitions[group.partition], site.partitions[group.partition].gpu
        assert expand_hostlist(words["NodeName"]) == group.names
        assert len(expand_hostlist(words["NodeAddr"])) == len(group.names)
        assert int(words["CPUs"]) == partition.cpus
        assert int(words["RealMemory"]) == int(partition.memory_gb * 1024)
        assert words.get("Gres") == (f"gpu:{gpu.gres_type}:{gpu.per_node}" if gpu else None)


@pytest.mark.parametrize("mode", [NAMESPACES, LOOPBACK])
def test_no_two_nodes_share_address_and_port(mode):
    state = Laid(shipped("p100-v100-k80"), mode).state
    places = {(node.address, node.port) for node in state.nodes}
    assert len(places) == len(state.nodes)
    assert (state.controller_address, state.port_base) not in places
    assert state.ports.database not in {port for _, port in places}


def test_most_nodes_are_cut_down_on_request():
    asked = request(shipped("pi"), LOOPBACK, False, 2)
    assert all(len(queue.nodes) <= 2 for queue in asked.queues)
    whole = cluster_plan.fingerprint(request(shipped("pi"), LOOPBACK, False))
    fewer = cluster_plan.fingerprint(asked)
    assert {key for key in whole if whole[key] != fewer[key]} == {"partitions"}


def test_a_cluster_of_another_site_is_not_taken_for_the_one_that_is_asked_for():
    asked = request(shipped("embedded"), LOOPBACK, False)
    print_of = cluster_plan.fingerprint(asked)
    current = replace(STATE, fingerprint={**print_of, "site": "alpha"})
    with pytest.raises(CheckFailed, match="is up already, with site alpha"):
        lifecycle._refuse_change(current, asked)
    lifecycle._refuse_change(replace(current, fingerprint=print_of), asked)


def test_loopback_nodes_differ_by_port():
    laid = Laid(shipped("embedded"), LOOPBACK)
    lines = "\n".join(cluster_plan.node_lines(laid.request, laid.state))
    ports = [port for one in re.findall(r"Port=(\S+)", lines) for port in expand_hostlist(one)]
    assert [int(port) for port in ports] == [node.port for node in laid.state.nodes]


def test_partitions_share_nodes_that_they_describe_alike(embedded):
    p100 = embedded.partitions["p100"]
    debug = replace(p100, name="debug", hostlist="p100-[01-02]")
    site = replace(embedded, partitions={"p100": p100, "debug": debug})
    asked = request(site, LOOPBACK, False)
    assert asked.node_names == ("p100-01", "p100-02")
    assert [queue.nodes for queue in asked.queues] == [asked.node_names] * 2
    site = replace(embedded, partitions={"p100": p100, "other": replace(debug, sockets=1)})
    with pytest.raises(BadInput, match="describe the node p100-01 in different ways"):
        request(site, LOOPBACK, False)


def test_gpus_get_device_files_with_their_numbers(embedded):
    lines = Laid(embedded).files["etc/gres.conf"].text.splitlines()
    assert "NodeName=p100-[01-02] Name=gpu Type=p100 File=/var/tmp/hpcdl/dev/p100.[0-3]" in lines
    assert not any("cpu-" in line for line in lines)


def test_times_are_within_the_limit_of_the_partition(embedded):
    short = replace(embedded.partitions["cpu"], max_time="00:30:00", max_minutes=30)
    laid = Laid(replace(embedded, partitions={"cpu": short}, default_partition="cpu"))
    line = laid.files["etc/slurm.conf"].text.split("PartitionName=cpu")[1]
    assert "MaxTime=00:30:00 DefaultTime=00:30:00" in line


def test_accounting_is_on_the_private_database_only(embedded):
    assert settings(Laid(embedded))["AccountingStorageType"] == "accounting_storage/none"
    laid = Laid(embedded, accounting=True)
    tres = "gres/gpu,gres/gpu:k80,gres/gpu:p100,gres/gpu:v100"
    assert settings(laid)["AccountingStorageTRES"] == tres
    secret = laid.files["etc/slurmdbd.conf"]
    assert secret.mode == 0o600
    assert "StorageHost=localhost" in secret.text


def test_everything_lies_below_the_state_directory(embedded):
    for key, value in settings(Laid(embedded, accounting=True)).items():
        if value.startswith("/") and key != "MailProg":
            assert value.startswith(f"{HERE}/"), key


def test_paths_that_slurm_cannot_hold_are_refused():
    usual = Path("/home/someone/.local/share/hpcdl/cluster/embedded")
    cluster_plan.check_directory(usual, ["p100-01"])
    with pytest.raises(BadInput, match="too long for unix sockets") as caught:
        cluster_plan.check_directory(Path("/home/someone") / ("x" * 60), ["p100-01"])
    assert "HPCDL_CLUSTER_DIR" in caught.value.hint
    for character in " #%$'\"\n[,\udcff":
        with pytest.raises(BadInput, match="cannot hold the path"):
            cluster_plan.check_directory(Path(f"/tmp/a{character}b"), ["p100-01"])


NAME = st.tuples(
    st.text(string.ascii_lowercase, min_size=1, max_size=3),
    st.sampled_from(["", "-"]),
    st.text(string.digits, max_size=3),
).map("".join)


@given(st.lists(NAME, max_size=20))
def test_host_ranges_expand_to_what_they_were_made_of(names):
    assert list(expand_hostlist(fold_hostlist(names))) == names


def test_names_of_links_fit_into_linux():
    node = replace(Laid(shipped("embedded")).state.nodes[0], index=249)
    names = [network.new_bridge_name() for _ in range(2)]
    assert len(link_name(names[0], node)) <= 15
    assert names[0] != names[1]


def test_networks_that_are_routed_are_not_taken():
    table = (
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
        "eth0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
        "hpc1\t00004D0A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
    )
    routed = network._routed(table)
    assert routed == [ipaddress.IPv4Network("10.77.0.0/24")]
    assert next(network._free_networks(routed)) == "10.77.1"
    assert next(network._free_networks([ipaddress.IPv4Network("10.0.0.0/8")])) == "172.29.0"


@pytest.mark.parametrize(
    ("version", "plugins"),
    [
        ("21.08.5", []),
        ("22.05.8", ["cgroup/v1"]),
        ("24.05.2", ["disabled"]),
        ("24.11.5", ["disabled"]),
        ("26.05.5", ["disabled"]),
    ],
)
def test_options_follow_the_release_that_runs(version, plugins):
    assert [
        row["value"] for row in cluster_plan.release_options(SlurmRelease.parse(version))
    ] == plugins


def test_groups_of_a_partition_are_nodes_of_their_own_in_one_queue(tmp_path):
    said = (Path(__file__).parents[1] / "golden" / "mixed.yaml").read_text()
    (tmp_path / "site.yaml").write_text(said.replace('hostlist: "g[05-06]", ', ""))
    asked = request(load_site(tmp_path / "site.yaml"), LOOPBACK, accounting=False)
    shapes = {group.names: (group.gpu_type, group.gpus) for group in asked.groups}
    typed = ("g01", "g02", "g03", "g04", "g05", "g06")
    assert (shapes[typed[:4]], shapes[typed[4:]]) == (("a100", 4), ("l40s", 8))
    assert shapes["u3", "u4"] == (None, 4)
    assert [queue.nodes for queue in asked.queues if queue.name == "typed"] == [typed]


@pytest.mark.parametrize(
    ("mode", "address", "parameters"),
    [
        ("namespaces", "", "NoCtldInAddrAny"),
        ("loopback", "127.0.1.1", ""),
        ("loopback", "", ""),
        ("loopback", "127.0.0.1", "NoCtldInAddrAny,NoInAddrAny"),
    ],
)
def test_daemons_bind_to_the_address_of_the_name(embedded, mode, address, parameters, monkeypatch):
    """Debian's /etc/hosts has 127.0.1.1 for the machine's name, a container may have nothing."""
    answer = {"return_value": address} if address else {"side_effect": OSError("not known")}
    monkeypatch.setattr(socket, "gethostbyname", Mock(**answer))
    laid = Laid(embedded, mode)
    assert cluster_plan.listening(laid.state) == parameters
    assert settings(laid).get("CommunicationParameters", "") == parameters


def test_what_another_up_has_begun_or_left_unfinished_is_no_other_file(tmp_path, monkeypatch):
    (tmp_path / "lock").touch()
    with monkeypatch.context() as killed:
        killed.setattr(Path, "replace", lambda *_: None)  # its mark has a temporary name still
        claim(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert is_ours_or_empty(tmp_path)
    claim(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"lock", MARK}
    (tmp_path / MARK).unlink()
    (tmp_path / "precious").touch()
    assert not is_ours_or_empty(tmp_path)
    assert not is_ours_or_empty(tmp_path / "precious")
    assert is_ours_or_empty(tmp_path / "none")


# Roots of other Slurm releases: which is taken, and what is not taken for one.


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HPCDL_CACHE", str(tmp_path))
    return tmp_path / "rootfs"


def make(cache, suite, version, folder=None):
    place = cache / (folder or suite)
    place.mkdir(parents=True)
    record = {"schema": 1, "suite": suite, "version": version, "mirror": "m"}
    (place / "hpcdl-root.json").write_text(json.dumps(record))


def test_the_release_that_a_root_really_has_decides(cache):
    make(cache, "sid", "26.11.5")
    found = [one for one in ("26.05", "26.11", "26.11.5", "26.11.50") if rootfs.find(one)]
    assert found == ["26.11", "26.11.5"]
    with pytest.raises(BadInput):
        rootfs.find("26.1")


def test_half_a_root_is_none(cache):
    make(cache, "trixie", "24.11.5", folder=".trixie.partial")
    (cache / "sid/usr").mkdir(parents=True)
    (cache / "bullseye").mkdir()
    (cache / "bullseye/hpcdl-root.json").write_text("{")
    assert rootfs.built() == ()


def test_every_suite_s_release_is_one_that_rules_know():
    assert set(rootfs.releases()) <= set(known_releases())
    for row in facts.load("slurm_suites")["suites"]:
        assert row["version"].startswith(f"{row['release']}.")
        assert row["source"]
        assert row["proof"] in facts.PROOFS


def test_what_cannot_be_had_is_told_before_anything_is_made(cache, monkeypatch, tmp_path):
    assert choose_mode("auto", "24.11") == "loopback"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(MissingPrerequisite, match="needs root"):
        rootfs.check("24.11")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(BadInput, match=r"Slurm 24\.05"):
        rootfs.check("24.05")
    # Neither debootstrap, nor keys to check signatures with: nothing is fetched.
    for found, keys in ((None, rootfs.KEYRING), ("/usr/sbin/debootstrap", tmp_path / "none.gpg")):
        monkeypatch.setattr(rootfs, "find_program", lambda _, found=found: found)
        monkeypatch.setattr(rootfs, "KEYRING", keys)
        with pytest.raises(MissingPrerequisite, match="needs") as refused:
            rootfs.check("24.11")
        assert "install" in refused.value.hint


def test_a_cluster_s_own_site_outlives_it_and_leads_back_to_its_source(tmp_path):
    """YAML 1.1 would take 24:00:00 for seconds, and 0123 and 2.10 for other numbers."""
    source, place = tmp_path / "site.yaml", tmp_path / "cluster"
    gpu = "    gpu: {model: P100"
    text = find_site_file("embedded").read_text()
    source.write_text(text.replace(gpu, f"    account: 0123\n{gpu}"))
    state = SimpleNamespace(root=tmp_path, slurm_version="24.11.5", directory=place)
    rootfs.write_own(source, state, "pmix")
    own = rootfs.own_site(place)
    assert load_site(own).slurm.version == "24.11.5"
    assert load_site(own).partition("p100").account == "0123", "as its source, to the letter"
    assert own.relative_to(place).parts[0] not in teardown._PASSING
    for named in (own, source):
        assert site_of(str(named)).source == source
    source.unlink()
    assert site_of(str(own)).source == own, "it stands for itself"


def test_a_pipe_is_no_site_file_and_holds_nothing_up(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert rootfs.original_site(tmp_path / "pipe") == tmp_path / "pipe"

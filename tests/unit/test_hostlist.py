"""Slurm's lists of nodes: the same names as `scontrol show hostnames`, or one clear refusal."""

import os
import shutil
import subprocess
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdl.slurm.hostlist import MOST_NODES, expand_hostlist
from hpcdl.system.errors import BadInput


@pytest.mark.parametrize(("hostlist", "names"), [
    ("", ""), ("a,b", "a b"), ("p100-[01-02,04],login", "p100-01 p100-02 p100-04 login"),
    ("n[9-11]", "n9 n10 n11"), ("n[08-10]", "n08 n09 n10"),
    ("r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"), ("n[7]", "n7"),
    ("n[1-2].cluster.org", "n1.cluster.org n2.cluster.org"),
])  # fmt: skip
def test_ranges_are_written_out_with_their_zeros(hostlist, names):
    assert list(expand_hostlist(hostlist)) == names.split()


@pytest.mark.parametrize(("why", "hostlists"), [
    ("no list of nodes",
     ["n[1-", "n1-3]", "n[a-b]", "n[]", "a,,b", "a b", "a],b", ",a"]),
    ("runs backwards", ["n[5-1]"]),
    ("names more than 100,000 nodes",
     ["n[1-999999999999]", "r[1-1000]n[1-1000]", "n[1-60000],m[1-60000]",
      "a[1-" + "9" * 5000 + "]"]),
])  # fmt: skip
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

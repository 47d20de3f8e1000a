"""Paths on a shared machine: what another user can prepare is never used."""

import os
import pwd
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdl.jobs.stage import stage
from hpcdl.system.errors import MissingPrerequisite
from hpcdl.system.files import make_directory
from hpcdl.system.resources import scratch_directory
from hpcdl.system.trust import require_own, require_private
from tests.strangers import STRANGER, as_root, stranger


def refused(path, reason):
    with pytest.raises(MissingPrerequisite, match=reason) as caught:
        require_private(path)
    return caught.value


@pytest.mark.parametrize("mode", [0o777, 0o702])
def test_what_others_may_write_to_is_not(shared, mode):
    place = shared / "open"
    place.mkdir()
    place.chmod(mode)
    assert f"chmod g-w,o-w {place}" in str(refused(place, "others may write").hint)
    (place / "below").mkdir()
    refused(place / "below", "not sticky")


def test_below_what_is_closed_to_others_their_permissions_mean_nothing(shared):
    (shared / "home").mkdir(mode=0o700)
    for name in ("home/work", "home/work/cluster", "open"):
        (shared / name).mkdir()
        (shared / name).chmod(0o777)
    require_private(shared / "home/work/cluster")
    (shared / "open/cluster").mkdir()
    (shared / "home/out").symlink_to(shared / "open")
    refused(shared / "home/out/cluster", "not sticky")
    (shared / "open/in").symlink_to(shared / "home/work")
    refused(shared / "open/in/cluster", "not sticky")
    (shared / "home").chmod(0o710)
    refused(shared / "home/work/cluster", "not sticky")


def test_a_link_at_the_end_or_to_nowhere_is_not_trusted(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real/file").touch()
    for name in ("real", "real/file"):
        require_private(tmp_path / name)
    (tmp_path / "link").symlink_to("real")
    refused(tmp_path / "link", "it is a link")
    (tmp_path / "real/below").mkdir()
    require_private(tmp_path / "link/below")
    (tmp_path / "loop").symlink_to("loop")
    refused(tmp_path / "loop/x", "too many links")
    refused(tmp_path / "none", "no such file")


@as_root
def test_a_group_is_trusted_where_it_is_this_user_s_own(shared):
    (shared / "mine").mkdir()
    (shared / "mine").chmod(0o770)
    require_private(shared / "mine")
    shutil.chown(shared / "mine", group="nogroup")
    refused(shared / "mine", "others may write")


def test_links_on_the_way_lead_where_the_kernel_goes(shared):
    """`..` behind a link leads above its target: the text of the path alone says otherwise."""
    for name in ("a/deep", "a/cluster", "b/cluster", "open/cluster"):
        (shared / name).mkdir(parents=True)
    (shared / "open").chmod(0o777)
    (shared / "b/in").symlink_to("../a/deep")
    (shared / "b/out").symlink_to("in/../../open")
    refused(shared / "b/out/cluster", "not sticky")
    (shared / "b/fine").symlink_to("in/..")
    require_private(shared / "b/fine/cluster")
    (shared / "a/cluster").rmdir()
    refused(shared / "b/fine/cluster", "no such file")


@as_root
@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("mkdir target; chmod 777 target", "belongs to nobody"),
        ("mkdir -m 700 target", "belongs to nobody"),
        ("ln -s /root target", "it is a link"),
    ],
)
def test_what_another_user_prepared_is_refused(shared, command, reason):
    stranger(command, shared)
    refused(shared / "target", reason)
    stranger("mkdir -p deep/target", shared)
    refused(shared / "deep/target", "belongs to nobody")


@as_root
def test_an_access_list_that_lets_a_stranger_write_is_seen(shared):
    """The mode is that of a directory of the user's own group; a parent's default list does it."""
    place = shared / "mine"
    place.mkdir(mode=0o700)
    entries = [
        (1, 7, -1),
        (2, 7, pwd.getpwnam(STRANGER).pw_uid),
        (4, 0, -1),
        (16, 7, -1),
        (32, 0, -1),
    ]
    rows = b"".join(struct.pack("<HHi", *entry) for entry in entries)  # linux/posix_acl_xattr.h
    os.setxattr(place, "system.posix_acl_access", struct.pack("<I", 2) + rows)
    stranger("touch mine/planted", shared)
    for path in (place, place / "below"):
        (place / "below").mkdir(exist_ok=True)
        refused(path, r"others may write|not sticky")


@as_root
def test_no_link_of_a_stranger_leads_to_another_cluster(shared, monkeypatch, hpcdl):
    """`down --purge` removed the cluster that it led to."""
    (shared / "mine").mkdir(mode=0o700)
    (shared / "mine/.hpcdl-cluster").touch()
    stranger("ln -s mine cluster", shared)
    monkeypatch.setenv("HPCDL_CLUSTER_DIR", str(shared / "cluster"))
    assert "belongs to nobody" in hpcdl("cluster", "down", "--purge", code=3).err
    assert (shared / "mine/.hpcdl-cluster").exists()


@as_root
def test_data_is_staged_neither_into_nor_through_what_another_user_prepared(shared, tmp_path):
    """A directory of the target's name, with a file of the right size in it, or a link."""
    for name, text in (("data", b"mine"), ("home", b"thesis")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "shard").write_bytes(text)
    planted = "mkdir target; printf evil > target/shard; chmod -R a+rwX target"
    stranger(f"{planted}; ln -s {tmp_path}/home link", shared)
    for name, reason in (("target", "belongs to nobody"), ("link", "it is a link")):
        with pytest.raises(MissingPrerequisite, match=reason):
            stage(tmp_path / "data", shared / name, reserve=0)
    assert (tmp_path / "home/shard").read_bytes() == b"thesis"


_PLANTED = """mkdir -p cluster/etc; touch cluster/.hpcdl-cluster
echo '{"schema": 1}' > cluster/cluster.json"""


@as_root
@pytest.mark.parametrize("action", ["up", "down", "status", "env"])
def test_root_reads_no_cluster_where_others_may_write(shared, action, monkeypatch, hpcdl):
    (shared / "home").mkdir(mode=0o755)
    make_directory(shared / "home/cluster/embedded")
    (shared / "home/cluster/embedded").chmod(0o777)
    stranger(_PLANTED.replace("cluster/", "home/cluster/embedded/"), shared)
    monkeypatch.setenv("HPCDL_HOME", str(shared / "home"))
    assert "others may write to it" in hpcdl("cluster", action, "--site", "embedded", code=3).err


@as_root
@pytest.mark.parametrize("action", ["up", "down", "status", "env"])
@pytest.mark.parametrize("command", ["mkdir -m 777 cluster", _PLANTED])
def test_root_runs_nothing_in_a_stranger_s_directory(shared, command, action, monkeypatch, hpcdl):
    """Owning the directory of a cluster was enough to become root."""
    stranger(command, shared)
    monkeypatch.setenv("HPCDL_CLUSTER_DIR", str(shared / "cluster"))
    assert "belongs to nobody" in hpcdl("cluster", action, code=3).err


@as_root
@pytest.mark.parametrize("prepared", ["mkdir -m 777 root", "mkdir his && ln -s his root"])
def test_a_directory_with_my_name_that_another_made_is_refused(shared, prepared):
    """A site's /scratch/$USER was a stranger's, who could swap the scripts that were submitted."""
    stranger(prepared, shared)
    stranger("mkdir -pm 777 root/work", shared)
    (shared / "root/work/mine").mkdir()
    with pytest.raises(MissingPrerequisite, match="/root cannot be trusted: it belongs to nobody"):
        require_own(shared / "root/work/mine")
    (shared / "mine").mkdir()
    require_own(shared / "mine")


KILLED = """
import os, signal
from hpcdl.system.resources import scratch_directory
with scratch_directory() as place:
    (place / "file").write_text("")
    print(place, flush=True)
    if not input():
        os.kill(os.getpid(), signal.SIGKILL)
"""


def scratch_of(tmpdir):
    """A command that has a scratch directory, and where; an empty line kills it."""
    words, pipe = [sys.executable, "-c", KILLED], subprocess.PIPE
    env = {**os.environ, "TMPDIR": str(tmpdir)}
    process = subprocess.Popen(words, env=env, stdin=pipe, stdout=pipe, text=True)
    return process, Path(process.stdout.readline().strip())


def test_what_a_killed_command_left_in_tmpdir_is_cleared_by_the_next(tmp_path, monkeypatch):
    """And nothing else: of one that runs, of another boot, container or user, or a link."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (killed, left), (running, used) = scratch_of(tmp_path), scratch_of(tmp_path)
    killed.communicate("\n")
    boot, namespace = left.name.removeprefix(".hpcdl-scratch-").split(".")
    others = (f"1{boot}.{namespace}", f"{boot}.1{namespace}")
    kept = [left.with_name(f".hpcdl-scratch-{one}") for one in others]
    for place in kept:
        place.mkdir()
    link = left.with_name(left.name + "x")
    link.symlink_to(tmp_path)
    if not os.getuid():
        kept.append(left.with_name(left.name + "y"))
        kept[-1].mkdir()
        os.chown(kept[-1], 65534, -1)
    with scratch_directory():
        assert not left.exists()
    assert (used / "file").exists()
    assert all(one.exists() for one in (*kept, link))
    running.communicate("go on\n")
    assert not used.exists()

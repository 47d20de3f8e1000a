"""Staging: data on the node's own disk, whole or linked, never half a file."""

import os
import subprocess
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from hpcdl.jobs.stage import remove_left, stage
from hpcdl.system.errors import MissingPrerequisite
from hpcdl.system.files import umask
from hpcdl.system.text import bash_expandable
from tests.strangers import as_root, stranger

OLD, NEW = "0" * 16, "f" * 16


@pytest.fixture
def data(tmp_path):
    source = tmp_path / "data set"
    (source / "train").mkdir(parents=True)
    for number in range(5):
        (source / "train" / f"shard-{number}").write_bytes(bytes([number]) * 1000)
    return source


def test_a_program_sees_the_whole_data_set_either_way(data, tmp_path, monkeypatch):
    room = SimpleNamespace(free=2500)
    monkeypatch.setattr("hpcdl.jobs.stage.shutil.disk_usage", lambda _: room)
    done = stage(data, tmp_path / "node", reserve=0)
    assert [name.name for name, _ in done.copied] == ["shard-0", "shard-1"]
    assert len(done.linked) == 3
    for number in range(5):
        shard = tmp_path / "node" / "train" / f"shard-{number}"
        assert shard.read_bytes() == bytes([number]) * 1000


def test_what_staging_makes_on_the_way_is_not_open_to_the_group(data, shared):
    with umask(0o002):
        stage(data, shared / "user" / "deep" / "node", reserve=0)
    assert [(shared / n).stat().st_mode & 0o777 for n in ("user", "user/deep")] == [0o755] * 2


def test_nodes_that_share_a_disk_fill_one_directory(data, tmp_path):
    for _ in range(2):
        stage(data, tmp_path / "node", reserve=0)
        stage(data, tmp_path / "full", reserve=10**15)
    assert len([path for path in tmp_path.glob("node/**/*") if path.is_file()]) == 5
    assert all(path.is_symlink() for path in tmp_path.glob("full/train/*"))


def test_a_link_inside_the_copy_is_not_followed(data, tmp_path):
    (tmp_path / "node").mkdir(mode=0o700)
    (tmp_path / "home/train").mkdir(parents=True)
    (tmp_path / "node/train").symlink_to(tmp_path / "home/train")
    with pytest.raises(MissingPrerequisite, match="is a link"):
        stage(data, tmp_path / "node", reserve=0)
    assert not list((tmp_path / "home/train").iterdir())


def test_linked_directories_belong_to_the_data_set(data, tmp_path):
    """A set put together from others; links back to itself end."""
    whole, node = tmp_path / "whole", tmp_path / "node"
    (whole / "more").mkdir(parents=True)
    for name, target in (
        ("digits", data / "train"),
        ("more/same", data / "train"),
        ("more/back", whole),
        ("gone", tmp_path / "nothing"),
    ):
        (whole / name).symlink_to(target)
    stage(whole, node, reserve=0)
    staged = sorted(str(path.relative_to(node)) for path in node.rglob("shard-*"))
    assert staged == [f"{folder}/shard-{n}" for folder in ("digits", "more/same") for n in range(5)]


def test_what_ended_jobs_left_is_removed_and_nothing_else(data, tmp_path):
    node = tmp_path / "node"
    kept = {f"hpcdl-{name}" for name in (f"my-site-8-{OLD}", f"other-7-{OLD}", "x")}
    for name in (*kept, f"hpcdl-my-site-7-{OLD}", f"hpcdl-my-site-9-{OLD}"):
        (node / name).mkdir(parents=True)
    link, own = node / f"hpcdl-my-site-6-{OLD}", node / f"hpcdl-my-site-9-{NEW}"
    link.symlink_to(data)
    own.mkdir()
    assert remove_left(own, lambda: {8, 9}) == 2, "of job 7, and of the earlier run of job 9"
    assert {place.name for place in node.iterdir()} == {*kept, link.name, own.name}
    assert remove_left(node / "data", lambda: {8, 9}) == 0


@as_root
def test_what_another_user_named_as_a_left_one_stays(shared):
    stranger(f"mkdir -m 777 hpcdl-c-7-{OLD}", shared)
    assert remove_left(shared / f"hpcdl-c-9-{NEW}", set) == 0
    assert (shared / f"hpcdl-c-7-{OLD}").is_dir()


def test_slurm_is_asked_only_where_something_lies(tmp_path):
    own, asked = f"hpcdl-c-9-{NEW}", Mock(side_effect=AssertionError("nothing was left"))
    (tmp_path / own).mkdir()
    assert remove_left(tmp_path / own, asked) == remove_left(tmp_path / "none" / own, asked) == 0


def test_a_directory_that_cannot_be_listed_is_no_empty_one(data, monkeypatch):
    (data / "more").mkdir()
    scan = os.scandir

    def refuse(path):
        if str(path).endswith("more"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(MissingPrerequisite, match=r"cannot read .*more: Permission denied"):
        stage(data, data.parent / "node", reserve=0)


def test_only_variables_expand_in_a_path_with_variables():
    text = bash_expandable('/a b/$NAME/`id`/$(id)/"q"/\\x/${NAME}/$')
    told = subprocess.check_output(["bash", "-c", f"printf %s {text}"], env={"NAME": "v"})
    assert told == b'/a b/v/`id`/$(id)/"q"/\\x/v/$'

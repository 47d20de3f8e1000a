"""A release is what its sealed record says, or it is broken."""

import json
import threading
from dataclasses import replace

import pytest

from hpcdl.stack.release import BrokenRelease, as_record, current_release, read_release, seal
from hpcdl.stack.tree import build_lock, build_slot
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.files import locked
from tests.make.releases import make_release
from tests.make.sites import small_site


@pytest.fixture
def made(site):
    return make_release(site, "tensorflow-2.21.0-cpu-00000001")


def test_a_release_is_read_as_it_was_written(site, made):
    read = read_release(site, made.id)
    assert read == made
    root = site.paths.prefix / "releases" / made.id
    assert (read.modules, read.python) == (root / "modules", root / "stack/bin/python")


def test_an_unknown_id_gets_the_nearest_one(site, made):
    with pytest.raises(BadInput) as caught:
        read_release(site, "tensorflow-2.21.0-cpu-0000001")
    assert caught.value.hint == f"did you mean '{made.id}'?"


@pytest.mark.parametrize("name", ["../x", "", "a/b", ".hidden", "x" * 5000, "a\nb", "-rf"])
def test_a_hostile_id_is_only_unknown(site, name):
    with pytest.raises(BadInput, match="there is no release"):
        read_release(site, name)


def sealed(record):
    return json.dumps({**record, "seal": seal(record)})


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda text: text.replace("2.21.0", "2.99.0"), "seal"),
        (lambda text: text[:100], "is damaged"),
        (lambda text: "[]", "not a release record"),
        (lambda text: text.replace('"schema": 1', '"schema": 2'), "not a release record"),
        (lambda text: "\udcff", "is damaged"),
        (lambda text: "[" * 100_000, "is damaged: nested too deep"),
        (lambda text: sealed({"schema": 1, "id": "tensorflow-2.21.0-cpu-00000001"}), "describe"),
        (lambda text: sealed({**json.loads(text), "id": "other"}), "does not describe"),
        (lambda text: sealed({**json.loads(text), "versions": 1}), "does not match the format"),
    ],
)
def test_a_hand_edited_record_is_refused(site, made, tmp_path, damage, complaint):
    path = made.root / "release.json"
    path.write_text(damage(path.read_text()), errors="surrogateescape")
    with pytest.raises(BrokenRelease, match=complaint) as caught:
        read_release(site, made.id)
    assert f"mv {made.root} {tmp_path}/{made.id}.broken" in caught.value.hint


def test_a_tree_without_a_record_is_no_release(site, made):
    (made.root / "release.json").unlink()
    with pytest.raises(BadInput):
        read_release(site, made.id)


def test_nothing_is_current_before_a_publish_and_a_link_to_nowhere_says_so(site, tmp_path):
    assert current_release(site) is None
    (tmp_path / "current").symlink_to("releases/gone")
    with pytest.raises(BrokenRelease, match="'gone', which is no release"):
        current_release(site)


def test_a_release_of_a_backend_s_old_name_is_read_under_its_new_one(site, made):
    """Releases and site files written before call the backend from wheels `venv`."""
    record = as_record(replace(made, backend="venv"))
    (made.root / "release.json").write_text(json.dumps(record))
    assert read_release(site, made.id).backend == "wheels"


def test_a_build_waits_for_another_one_s_and_says_so(site):
    """A build from wheels holds the folder for minutes; one of Spack's comes after hours."""
    told, waiting = [], threading.Event()

    def say(words):
        told.append(words)
        waiting.set()

    def build():
        with build_slot(site, say):
            told.append("built")

    builder = threading.Thread(target=build)
    with locked(build_lock(site)):
        builder.start()
        assert waiting.wait(20)
        assert told[0].startswith("waiting: another hpcdl command is running here: held by ")
    builder.join(20)
    assert told[1:] == ["built"]


def test_a_prefix_that_cannot_be_written_is_an_error_and_nothing_to_wait_for(tmp_path):
    (tmp_path / "file").touch()
    slot = build_slot(small_site(tmp_path / "file"), lambda _: pytest.fail("it waits"))
    with pytest.raises(MissingPrerequisite, match="cannot write"), slot:
        pass

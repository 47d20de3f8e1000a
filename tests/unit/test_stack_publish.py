"""Publishing moves one link, after the gate; rolling back walks the way back."""

import json
import os
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdl.cli import main
from hpcdl.stack import publish as publish_module
from hpcdl.stack.modules import Event, previous, read_history
from hpcdl.stack.publish import (
    newest,
    overview,
    plan_publish,
    publish,
    publish_lock,
    rollback,
    switch_lock,
    verify,
)
from hpcdl.stack.release import current_id, current_release
from hpcdl.system.errors import BadInput, CheckFailed
from hpcdl.system.files import LockBusy, locked, switch_link
from tests.make.releases import failing, make_current, make_release, passing, silent
from tests.make.sites import small_site


@pytest.fixture
def site(tmp_path):
    site = small_site(tmp_path)
    for number, name in enumerate(("a", "b", "c")):
        make_release(site, name, created=f"2026-01-0{number + 1}T00:00:00Z")
    return site


def go(site, *names):
    for name in names:
        publish(site, name, passing, say=silent)


def test_a_published_release_is_current_with_proof_and_modules(site):
    before = sorted(site.paths.prefix.rglob("*"))
    assert plan_publish(site, "a").after == "a"
    assert sorted(site.paths.prefix.rglob("*")) == before, "planning changes nothing"
    go(site, "a")
    release = current_release(site)
    assert release.id == "a"
    assert (release.modules / f"{release.module}.lua").is_file()
    assert json.loads((release.root / "proof.json").read_text())["passed"] is True
    assert (site.paths.prefix / "current").readlink() == Path("releases/a")


def test_a_rollback_waits_for_no_publish_and_says_soon_who_switches(site, monkeypatch):
    """A publish compares every file with the seal: minutes, in which a rollback is possible."""
    go(site, "a", "b")
    with locked(publish_lock(site)):
        assert rollback(site).after == "a"
    assert current_id(site) == "a"
    assert publish_module.SOON_SECONDS <= 10
    monkeypatch.setattr(publish_module, "SOON_SECONDS", 0.5)
    with switch_lock(site), pytest.raises(LockBusy, match=f"held by .* pid {os.getpid()} on"):
        rollback(site)


@pytest.mark.parametrize("moment", ["before", "gate"])
def test_a_publish_sees_a_rollback_that_came_in_between(site, monkeypatch, moment):
    """Nothing is locked while a job of the gate waits for its nodes."""
    go(site, "a", "b")

    def gate(*args):
        if moment == "gate":
            assert rollback(site).after == current_id(site) == "a"
        return passing(*args)

    if moment == "before":
        monkeypatch.setattr(publish_module, "require_safe_modes", lambda *_: rollback(site))
    done = publish(site, "c", gate, say=silent)
    assert (done.before, done.after) == ("a", "c")
    assert [event.release for event in read_history(site)] == ["a", "b", "a", "c"]
    assert rollback(site).after == "a"


@pytest.mark.parametrize(
    ("gate", "fault"), [(failing, CheckFailed), (Mock(side_effect=RuntimeError), RuntimeError)]
)
def test_a_gate_that_fails_or_breaks_leaves_the_old_one(site, gate, fault):
    go(site, "a")
    assert newest(site) == "c", "the one built last"
    with pytest.raises(fault) as caught:
        publish(site, newest(site), gate, say=silent)
    if fault is CheckFailed:
        assert "the ops differ" in caught.value.details[0]
        assert overview(site)[2]["state"] == "failed the gate"
    assert current_id(site) == "a"


@pytest.mark.parametrize("backend", ["wheels", "spack"])
def test_a_build_for_cpus_serves_gpus_only_where_the_site_asks(site, backend):
    wanted = replace(site.stacks["tensorflow"], variant=None, backend=backend)
    strict = replace(site, stacks={"tensorflow": wanted})
    with pytest.raises(CheckFailed, match="leave the GPUs of p100, v100, k80 idle") as caught:
        publish(strict, "a", passing, say=silent)
    assert "`variant: cpu`" in caught.value.hint
    assert current_id(site) is None
    make_current(strict, "for-cpus", partitions=("cpu",))
    strict = replace(strict, agreements={"cuda": "the tests"})
    gpus = {"tensorflow": "2.21.0", "cuda": "12.9.1", "mpi": "Open MPI 4.1.4"}
    make_current(strict, "for-gpus", versions=gpus, partitions=("p100", "v100"))
    assert current_id(site) == "for-gpus"


def test_a_proof_is_asked_for_once(site):
    go(site, "a", "b")
    assert publish(site, "a", failing, say=silent).proof.passed
    with pytest.raises(CheckFailed):
        publish(site, "a", failing, say=silent, enough=lambda _: False)


def test_a_proof_of_another_release_or_a_damaged_one_does_not_count(site):
    go(site, "a")
    root = site.paths.prefix / "releases"
    for text in ((root / "a" / "proof.json").read_text(), "[" * 100_000):
        (root / "b" / "proof.json").write_text(text)
        with pytest.raises(CheckFailed):
            publish(site, "b", failing, say=silent)


def test_rolling_back_twice_goes_back_twice(site):
    go(site, "a", "b", "c")
    assert rollback(site).after == "b"
    assert rollback(site).after == "a"
    with pytest.raises(BadInput, match="no earlier release"):
        rollback(site)
    assert current_id(site) == "a"


def test_a_plain_rollback_undoes_one_to_a_release_that_was_named(site):
    go(site, "a", "b", "c")
    assert rollback(site, "a").after == "a"
    assert [rollback(site).after for _ in "cba"[:2]] == ["c", "b"]


def test_only_what_never_passed_the_gate_is_refused_for_a_rollback(site):
    go(site, "a", "b")
    with pytest.raises(CheckFailed, match="never published"):
        rollback(site, "c")
    verify(site, "a", failing)
    assert rollback(site).after == "a", "it had passed"


@pytest.mark.parametrize(("published", "current"), [("abc", "b"), ("ab", "c")])
def test_a_killed_switch_or_one_by_hand_does_not_lose_the_way_back(site, published, current):
    """A publish of c killed between its history entry and the switch, or a link set by hand."""
    go(site, *published)
    link = site.paths.prefix / "current"
    link.unlink()
    link.symlink_to(f"releases/{current}")
    assert rollback(site).after == "a"
    if current == "b":
        assert [event.release for event in read_history(site)] == ["a", "b", "a"]


def test_a_file_in_the_prefix_s_place_is_no_damaged_history(tmp_path):
    site = small_site(tmp_path)
    site = replace(site, paths=replace(site.paths, prefix=tmp_path / "file"))
    (tmp_path / "file").touch()
    assert read_history(site) == []


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"events": [{}]}', "[" * 100_000, '{"events": 1}']
)
def test_a_damaged_history_is_refused_with_the_way_out(site, text):
    go(site, "a", "b")
    path = site.paths.prefix / "history.json"
    path.write_text(text)
    for act in (lambda: go(site, "c"), lambda: rollback(site), lambda: plan_publish(site, "c")):
        with pytest.raises(CheckFailed, match="damaged") as caught:
            act()
        assert f"mv {path} {path}.broken" in caught.value.hint
    assert path.read_text() == text
    assert current_id(site) == "b"
    path.rename(f"{path}.broken")
    go(site, "c")
    assert [event.release for event in read_history(site)] == ["b", "c"]
    assert rollback(site).after == "b"
    assert rollback(site, "a").after == "a", "it passed the gate"


@pytest.mark.parametrize(
    "name",
    [
        ".history.json",
        *(f"releases/a/.{one}" for one in ("proof.json", "audit.json", ".content-checked")),
    ],
)
def test_half_a_file_of_a_killed_publish_does_not_stop_the_next_one(site, name):
    """Only its owner may read it, which a release with such a file would be refused for."""
    left = site.paths.prefix / f"{name}.abcd1234"
    left.touch(mode=0o600)
    go(site, "a")
    assert not left.exists()


def test_damaged_records_alone_are_said_to_be_damaged(site):
    """Not that there is no release."""
    for name in "abc":
        (site.paths.prefix / "releases" / name / "release.json").write_text("[" * 100_000)
    with pytest.raises(CheckFailed, match="can be read") as caught:
        newest(site)
    assert len(caught.value.details) == 3
    assert all("release.json is damaged" in line for line in caught.value.details)


def test_the_list_shows_states_and_the_broken_ones_too(site):
    assert not verify(site, "a", failing).passed
    assert verify(site, "b", passing).passed
    assert [row["state"] for row in overview(site)] == ["failed the gate", "proven", "built"]
    assert current_id(site) is None, "verifying moves nothing"
    go(site, "b")
    (site.paths.prefix / "releases/c/release.json").write_text("{}")
    assert {row["id"]: row["state"] for row in overview(site)}["c"].startswith("broken")
    assert [row["id"] for row in overview(site) if row["current"]] == ["b"]


@pytest.mark.parametrize("target", ["/elsewhere/releases/b", "../b", "/etc"])
def test_a_link_that_leaves_the_releases_is_none_of_them(site, target):
    """One of a release's name elsewhere once was that release: rollback then did nothing."""
    assert verify(site, "b", passing).passed
    go(site, "b")
    switch_link(site.paths.prefix / "current", target)
    last = overview(site)[0]
    assert last["current"]
    assert f"leads to '{target}', which is no release" in last["state"]
    rollback(site, "b")
    assert current_id(site) == "b"
    switch_link(site.paths.prefix / "current", str(site.paths.prefix / "releases/b"))
    assert current_id(site) == "b"


def test_the_list_names_a_current_release_without_its_record(site):
    go(site, "b")
    (site.paths.prefix / "releases/b/release.json").unlink()
    assert [(row["id"], row["state"][:6]) for row in overview(site) if row["current"]] == [
        ("b", "broken")
    ]


def test_without_an_id_the_published_release_is_meant(tmp_path, monkeypatch, capsys):
    """`verify --integrity` once read the newest one built: a damaged current one passed."""
    monkeypatch.setenv("HPCDL_HOME", str(tmp_path))
    site = small_site(tmp_path / "embedded/prefix")
    old, _ = make_release(site, "a"), make_release(site, "b", created="2027-01-01T00:00:00Z")

    def ask(*words):
        code = main(["stack", *words, "--site", "embedded"])
        return code, "".join(capsys.readouterr())

    for words in (["verify", "--integrity"], ["sbom", "--dry-run"]):
        code, text = ask(*words)
        assert (code, "nothing is published" in text, "built: a, b" in text) == (2, True, True)
    go(site, "a")
    (old.prefix / "extra").write_text("not of the build")
    code, text = ask("verify", "--integrity")
    assert (code, "a: " in text, "extra" in text) == (1, True, True)
    assert '"release": "a"' in ask("sbom", "--dry-run", "--json")[1]
    assert ask("verify", "--integrity", "b")[0] == 0


def test_a_rollback_leaves_out_what_cannot_be_read_and_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HPCDL_HOME", str(tmp_path))
    site = small_site(tmp_path / "embedded/prefix")
    broken = [make_release(site, name) for name in "abc"][-1]
    go(site, "a", "b")
    (broken.root / "release.json").write_text("{")
    assert main(["stack", "rollback", "--site", "embedded"]) == 0
    assert current_id(site) == "a"
    assert capsys.readouterr().err.startswith("no partition gets c, which is broken: ")


NAMES = st.sampled_from("abcd")


@given(st.lists(st.tuples(st.sampled_from(["publish", "rollback"]), NAMES)), NAMES, st.sets(NAMES))
def test_a_way_back_never_leads_to_itself_or_to_what_is_gone(moves, current, existing):
    target = previous([Event(action, name, "") for action, name in moves], current, existing)
    assert target is None or (target != current and target in existing)


@given(st.lists(NAMES, min_size=1, unique=True))
def test_publishing_then_rolling_back_all_the_way_retraces_it(names):
    events = [Event("publish", name, "") for name in names]
    seen = [names[-1]]
    while (target := previous(events, seen[-1], set(names))) is not None:
        events.append(Event("rollback", target, ""))
        seen.append(target)
    assert seen == names[::-1]

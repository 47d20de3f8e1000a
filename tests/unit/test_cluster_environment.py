"""`hpcdl cluster env` works in sh and bash, twice, and with any path."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl.cluster import LOOPBACK
from hpcdl.cluster.identity import elsewhere, place
from hpcdl.cluster.shape import ClusterState
from hpcdl.cluster.state import claim, environment, read_state, recorded, shell_exports, write_state
from hpcdl.system.errors import BadInput, CheckFailed

STATE = ClusterState(
    directory=Path("/var/tmp/c"),
    site="it's here",
    prefix=Path("/apps/my apps/$x"),
    site_file=Path("/home/some one/it's $HOME/site.yaml"),
    lmod_init=Path("/nowhere/init/bash"),
    mode=LOOPBACK,
    accounting=False,
    fingerprint={},
    slurm_version="22.05.8",
    network="127.0.0",
    port_base=21000,
    nodes=(),
)
MODULES = "/apps/my apps/$x/current/modules"


@pytest.fixture(autouse=True)
def no_directory(monkeypatch):
    monkeypatch.delenv("HPCDL_CLUSTER_DIR", raising=False)


@pytest.mark.parametrize("shell", ["bash", "sh"])
@pytest.mark.parametrize("before", [None, "/opt/a b:/opt/c"])
def test_values_reach_the_shell_as_they_are(shell, before):
    show = 'printf "%s\\n" "$SLURM_CONF" "$HPCDL_SITE" "$MODULEPATH"'
    lines = f"{shell_exports(STATE)}\n{shell_exports(STATE)}\n{show}"
    env = {"PATH": "/usr/bin:/bin", **({"MODULEPATH": before} if before else {})}
    done = subprocess.run([shell, "-euc", lines], env=env, capture_output=True, text=True)
    path = MODULES if before is None else f"{MODULES}:{before}"
    shown = ["/var/tmp/c/etc/slurm.conf", str(STATE.site_file), path]
    assert (done.stderr, done.stdout.splitlines()) == ("", shown)


def test_lmod_is_started_once_in_a_strict_shell_too_and_may_read_what_is_not_set(tmp_path):
    (tmp_path / "bash").write_text('echo "started $FPATH"; module() { :; }\n')
    lines = shell_exports(replace(STATE, lmod_init=tmp_path / "bash"))
    for options, expected in (("-euc", "started \nuB"), ("-c", "started \nB")):
        words = ["bash", options, f'{lines}\n{lines}\necho "${{-//[^uB]/}}"']
        done = subprocess.run(words, capture_output=True, text=True, env={"PATH": "/bin"})
        assert (done.stdout, done.stderr) == (f"{expected}\n", "")


def test_programs_get_the_modules_in_front_once(monkeypatch):
    one = environment(STATE, {"MODULEPATH": "/opt/a b:/opt/c", "KEEP": "me"})
    assert one["MODULEPATH"] == f"{MODULES}:/opt/a b:/opt/c"
    assert environment(STATE, one) == one
    assert one["KEEP"] == "me"
    monkeypatch.setenv("HPCDL_CLUSTER_DIR", "/var/tmp/c")
    assert "export HPCDL_CLUSTER_DIR=/var/tmp/c" in shell_exports(STATE), "it is passed on"


def test_state_is_read_as_it_was_written(tmp_path):
    assert read_state(tmp_path) is None
    assert read_state(tmp_path / "none") is None
    state = replace(STATE, directory=tmp_path, killed=("a",), token="b", place=place())
    assert read_state(write_state(state).directory) == state


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '{"schema": 2}', '{"schema": 1, "nodes": 3}', "\x00"]
)
def test_damaged_state_is_one_clear_error(tmp_path, text):
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(BadInput, match="not a cluster's state"):
        read_state(tmp_path)


HERE = {"host": "a", "boot": "1", "network": "net:[1]", "processes": "pid:[1]"}


@pytest.mark.parametrize(
    ("change", "owner"),
    [
        ({}, ""),
        ({"boot": "0"}, ""),  # this host has booted since: namespaces have new numbers
        ({"boot": "0", "network": "net:[9]"}, ""),
        ({"host": "renamed"}, ""),
        ({"host": "b", "boot": "2"}, "the host b"),
        ({"network": "net:[2]"}, "a container or namespace (a, network of its own)"),
        ({"host": "b", "processes": "pid:[2]"}, "a container or namespace (b, processes of"),
    ],
)
def test_a_cluster_belongs_to_one_host_and_its_namespaces(tmp_path, change, owner):
    assert elsewhere({}, HERE) == "", "of an older hpcdl"
    found = elsewhere({**HERE, **change}, HERE)
    assert found.startswith(owner)
    assert bool(found) == bool(owner)
    other = {**place(), "boot": "0", "host": "b"}
    state = write_state(replace(STATE, directory=tmp_path, place=other))
    with pytest.raises(CheckFailed, match="belongs to the host b, not to this place"):
        read_state(tmp_path)
    assert recorded(tmp_path) == state, "`hpcdl clean` keeps what it uses"


def test_a_cluster_keeps_its_name_over_down_and_no_other_has_it(tmp_path):
    places = [tmp_path / "a", tmp_path / "b"]
    for one in places:
        one.mkdir()
    tokens = {claim(one) for one in places * 2}
    assert len(tokens) == 2
    names = {replace(STATE, token=token).cluster_name for token in tokens}
    assert len(names) == 2
    assert all(re.fullmatch(r"itshere[0-9a-f]{6}", name) for name in names)

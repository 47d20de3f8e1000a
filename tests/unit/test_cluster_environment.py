"""`hpcdl cluster env` works in sh and bash, twice, and with any path."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl.cluster import environment, shell_exports
from hpcdl.cluster.model import LOOPBACK, ClusterState
from hpcdl.cluster.state import read_state, write_state
from hpcdl.system.errors import BadInput

STATE = ClusterState(
    directory=Path("/var/tmp/c"),
    site="it's here",
    site_file=Path("/home/some one/it's $HOME/site.yaml"),
    prefix=Path("/apps/my apps/$x"),
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
def no_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HPCDL_CLUSTER_DIR", raising=False)


@pytest.mark.parametrize("shell", ["bash", "sh"])
@pytest.mark.parametrize("before", [None, "/opt/a b:/opt/c"])
def test_values_reach_the_shell_as_they_are(shell: str, before: str | None) -> None:
    lines = shell_exports(STATE)
    show = 'printf "%s\\n" "$SLURM_CONF" "$HPCDL_SITE" "$MODULEPATH"'
    env = {"PATH": "/usr/bin:/bin", **({"MODULEPATH": before} if before else {})}
    done = subprocess.run(
        [shell, "-euc", f"{lines}\n{lines}\n{show}"], env=env, capture_output=True, text=True
    )
    assert done.stderr == ""
    path = MODULES if before is None else f"{MODULES}:{before}"
    assert done.stdout.split("\n")[:3] == [
        "/var/tmp/c/etc/slurm.conf", str(STATE.site_file), path,
    ]  # fmt: skip


def test_lmod_is_started_once_in_a_strict_shell_too_and_may_read_what_is_not_set(
    tmp_path: Path,
) -> None:
    (tmp_path / "bash").write_text('echo "started $FPATH"; module() { :; }\n')
    lines = shell_exports(replace(STATE, lmod_init=tmp_path / "bash"))
    for options, expected in (("-euc", "started \nuB"), ("-c", "started \nB")):
        done = subprocess.run(
            ["bash", options, f'{lines}\n{lines}\necho "${{-//[^uB]/}}"'],
            capture_output=True, text=True, env={"PATH": "/bin"},
        )  # fmt: skip
        assert (done.stdout, done.stderr) == (f"{expected}\n", "")


def test_programs_get_the_modules_in_front_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one = environment(STATE, {"MODULEPATH": "/opt/a b:/opt/c", "KEEP": "me"})
    assert one["MODULEPATH"] == f"{MODULES}:/opt/a b:/opt/c"
    assert environment(STATE, one) == one
    assert one["KEEP"] == "me"
    monkeypatch.setenv("HPCDL_CLUSTER_DIR", "/var/tmp/c")
    assert "export HPCDL_CLUSTER_DIR=/var/tmp/c" in shell_exports(STATE), "it is passed on"


def test_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None
    assert read_state(tmp_path / "none") is None
    state = replace(STATE, directory=tmp_path, killed=("a",), boot="b")
    assert read_state(write_state(state).directory) == state


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '{"schema": 2}', '{"schema": 1, "nodes": 3}', "\x00"]
)
def test_damaged_state_is_one_clear_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(BadInput, match="not a cluster's state"):
        read_state(tmp_path)

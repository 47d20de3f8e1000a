"""Root file systems of other Slurm releases: minimal Debians of the suite that has each.

A rootfs's /usr takes the place of the machine's own in a mount namespace of each process that
runs in it; all other paths stay what they are, so that jobs' files are the same inside and
outside, and the kernel takes the mounts away with the process. Debootstrap builds it aside, in
separate namespaces, and renames it when it is complete.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcdl import facts
from hpcdl.cluster.shape import ClusterState
from hpcdl.slurm.rules import SlurmRelease
from hpcdl.system.errors import BadInput, HpcdlError, MissingPrerequisite
from hpcdl.system.files import (
    explain_os_errors,
    locked,
    read_regular,
    switch_link,
    write_atomic,
    write_json,
)
from hpcdl.system.frozen import dataclass
from hpcdl.system.packages import apt_line, find_program, look, missing_names
from hpcdl.system.resources import cache
from hpcdl.system.run import run
from hpcdl.system.trust import require_private

_RECORD = "hpcdl-root.json"
_MADE_FROM = re.compile(r"# (/.*) as of Slurm \S+\. Written by `hpcdl cluster up`\.")
_BUILD_SECONDS = 1800
_NEED_MB = 700
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_SCRIPTS = Path("/usr/share/debootstrap/scripts")
# Mounts are private, and go with the process; so does a build that is killed.
ALONE = ("unshare", "--mount", "--propagation", "private")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Root:
    """A complete rootfs, and the point release of Slurm that it really has."""

    directory: Path
    suite: str
    version: str

    @property
    def usr(self) -> Path:
        """The directory that replaces /usr."""
        return self.directory / "usr"

    def has(self, release: str) -> bool:
        """Whether it has a release, named as 24.11 or as 24.11.5."""
        return f"{self.version}.".startswith(f"{SlurmRelease.parse(release)}.")


def folder() -> Path:
    """The directory of the root file systems."""
    return cache("rootfs")


def releases() -> tuple[str, ...]:
    """The releases that some suite is known to have."""
    return tuple(dict.fromkeys(row["release"] for row in facts.load("slurm_suites")["suites"]))


def built() -> tuple[Root, ...]:
    """The root file systems that are there."""
    found = (read(path.parent) for path in sorted(folder().glob(f"[a-z]*/{_RECORD}")))
    return tuple(root for root in found if root)


def read(directory: Path) -> Root | None:
    """The whole rootfs in a directory, if any; MissingPrerequisite: somebody else can change it."""
    if directory.is_dir():
        require_private(directory)
    try:
        record = json.loads((directory / _RECORD).read_text())
        return Root(directory, str(record["suite"]), str(record["version"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def find(release: str) -> Root | None:
    """A rootfs that has a release, by what it really has."""
    return next((root for root in built() if root.has(release)), None)


def check(release: str) -> None:
    """Everything about a requested release that can be checked before anything changes."""
    wanted = SlurmRelease.parse(release)
    if os.geteuid() != 0:
        raise MissingPrerequisite(
            "another release of Slurm needs root, to mount and to build",
            hint="without --slurm the machine's own release runs as any user",
        )
    if not Path("/bin").is_symlink():
        raise MissingPrerequisite(
            "this machine's /bin is no link into /usr: no other /usr can replace it"
        )
    if not Path("/etc/hosts").exists():
        message = "another release of Slurm needs an /etc/hosts, to see its own in its place"
        raise MissingPrerequisite(message, hint="an empty one is enough: touch /etc/hosts")
    if find(release) is None:
        if wanted.series not in releases():
            message = f"no Debian suite is known to have Slurm {release}"
            raise BadInput(message, hint=f"known releases: {', '.join(releases())}")
        _check_tools()


def get(release: str, say: Say) -> Root:
    """The rootfs of a release, built where there is none yet."""
    check(release)
    if (found := find(release)) is not None:
        return found
    failures = list[str]()
    series, suites = SlurmRelease.parse(release).series, facts.load("slurm_suites")["suites"]
    for suite in (row for row in suites if row["release"] == series):
        try:
            root = _build(suite, say)
        except HpcdlError as fault:
            failures += [f"{suite['suite']}: {fault.message}", *fault.details[-4:]]
            continue
        if root.has(release):
            return root
        failures.append(f"{suite['suite']} has Slurm {root.version} now")
    raise MissingPrerequisite(
        f"no suite of Debian gives Slurm {release} at present",
        details=failures,
        hint=f"built are {', '.join(built_root.version for built_root in built()) or 'none'}",
    )


def _build(suite: Mapping[str, Any], say: Say) -> Root:
    """Build the rootfs of a suite aside and rename it; one that is there meanwhile is kept."""
    name, mirror = suite["suite"], suite["mirror"] or own_mirror()
    target = folder() / name
    with locked(target.with_name(f".{name}.lock"), wait_seconds=_BUILD_SECONDS):
        there = read(target)
        if there is not None:
            return there
        aside = target.with_name(f".{name}.partial")
        say(f"building a rootfs of {name} from {mirror}, once: a minute or two, 300 MB")
        try:
            root = _bootstrap(suite, mirror, aside)
            with explain_os_errors(target):
                shutil.rmtree(target, ignore_errors=True)
                aside.rename(target)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return replace(root, directory=target)


def _bootstrap(suite: Mapping[str, Any], mirror: str, aside: Path) -> Root:
    name = suite["suite"]
    shutil.rmtree(aside, ignore_errors=True)
    # Suites younger than debootstrap are built as sid is.
    script = () if (_SCRIPTS / name).exists() else (_SCRIPTS / "sid",)
    run(
        [
            *ALONE,
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            str(find_program("debootstrap")),
            "--variant=minbase",
            "--merged-usr",
            f"--include={','.join(facts.load('slurm_suites')['packages'])}",
            f"--keyring={KEYRING}",
            name,
            aside,
            mirror,
            *script,
        ],
        timeout=_BUILD_SECONDS,
        log=aside.with_name(f".{name}.log"),
        hint="is the mirror reachable? it is the one of this machine's apt",
        tied=True,
    )
    if "link" in suite:
        for library in aside.glob(suite["link"]["name"]):
            library.with_name(suite["link"]["as"]).symlink_to(library.name)
    for left in facts.load("slurm_suites")["unused"]:
        shutil.rmtree(aside / left, ignore_errors=True)
    answer = ask(aside / "usr", "slurmctld", "-V")
    found = re.search(r"\d+\.\d+\.\d+", answer)
    if found is None:
        raise HpcdlError(f"Slurm does not run in {name}'s rootfs: {answer.strip()[:200]}")
    record = {"schema": 1, "suite": name, "version": found.group(), "mirror": mirror}
    write_json(aside / _RECORD, record)
    return Root(aside, name, found.group())


def ask(usr: Path, *argv: str, configuration: Path | None = None) -> str:
    """Return the output of a program, run with a rootfs's /usr."""
    command = [*ALONE, "sh", "-c", 'mount --bind "$0" /usr && exec "$@"', str(usr), *argv]
    env = {"SLURM_CONF": str(configuration)} if configuration else {}
    base = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
    answer = run(command, base_env=base, env=env, check=False, timeout=20)
    return answer.stdout + answer.stderr


def program(usr: Path, name: str) -> str:
    """The path of a program of a rootfs where that is mounted; MissingPrerequisite: it has none."""
    for place in ("sbin", "bin"):
        if (usr / place / name).exists():
            return f"/usr/{place}/{name}"
    message = f"the rootfs {usr.parent} has no '{name}'"
    raise MissingPrerequisite(message, hint=f"remove it, and it is built again: rm -r {usr.parent}")


def own_site(directory: Path) -> Path:
    """The site file of a cluster whose release is not the one that its site was written for.

    A shell may name it in HPCDL_SITE for longer than the cluster is up: it outlives `down`.
    """
    return directory / "site.yaml"


def original_site(path: Path) -> Path:
    """The file that a cluster's own site file was written from; any other is its own original."""
    try:
        line = read_regular(path).partition(b"\n")[0].decode()
    except (BadInput, OSError, ValueError):
        return path  # whoever loads it says what is wrong
    found = _MADE_FROM.fullmatch(line)
    source = Path(found.group(1)) if found else path
    return source if source.is_file() else path


def write_own(site_file: Path, state: ClusterState, mpi: str) -> Path:
    """Write the site as the Slurm that runs has it, its release and plug-in; gives the file."""
    import yaml

    # As nodes, not values: YAML would take 24:00:00 and 2.10 for numbers, and write others.
    document = yaml.compose(site_file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    assert isinstance(document, yaml.MappingNode)
    slurm = next(value for key, value in document.value if key.value == "slurm")
    own = {"version": state.slurm_version, "mpi": mpi}
    text = "tag:yaml.org,2002:str"
    slurm.value = [(key, value) for key, value in slurm.value if key.value not in own]
    slurm.value += [
        (yaml.ScalarNode(text, key), yaml.ScalarNode(text, value, style='"'))
        for key, value in own.items()
    ]
    head = f"# {site_file} as of Slurm {state.slurm_version}. Written by `hpcdl cluster up`.\n"
    write_atomic(own_site(state.directory), head + yaml.serialize(document))
    return own_site(state.directory)


def link_commands(state: ClusterState) -> None:
    """Link the commands of a cluster from a rootfs."""
    assert state.root is not None
    for name in facts.load("slurm_suites")["commands"]:
        if (state.root / "bin" / name).exists():
            switch_link(state.directory / "bin" / name, "../etc/client.sh")


def _check_tools() -> None:
    packages = look(facts.load("packages")["packages"], ["matrix"])
    # Without the keyring debootstrap would check no signature, and what it fetches is run by root.
    if find_program("debootstrap") is None or not KEYRING.exists():
        message = f"another release of Slurm needs {' and '.join(missing_names(packages))}"
        raise MissingPrerequisite(message, hint=f"install with: {apt_line(packages)}")
    folder().mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder()).free // 2**20
    if free < _NEED_MB:
        raise MissingPrerequisite(
            f"not enough space for a rootfs: {folder()} has {free} MB free, it needs {_NEED_MB} MB",
            hint="set HPCDL_CACHE to a directory on another disk",
        )


def own_mirror() -> str:
    """The mirror of Debian that the machine's apt uses, else the facts' one."""
    apt = find_program("apt-get")
    words = ("indextargets", "--format", "$(REPO_URI)", "Created-By: Packages")
    output = run([apt, *words], check=False, timeout=20).stdout if apt else ""
    own = (uri.rstrip("/") for uri in output.split() if uri.startswith("http"))
    default = str(facts.load("slurm_suites")["mirror"])
    return next((uri for uri in own if uri.endswith("/debian")), default)

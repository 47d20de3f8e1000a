"""A minimal Debian as a machine of its own, made from the matrix's root file system.

A release's root file system lends its /usr only; a copy of it is entered here as a whole, with
mounts, processes and a host name of its own (and the machine's network, for apt and pip). It is
kept below the cache with what the demo installed and built: only the first run takes minutes.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from hpcdl.cluster import network, rootfs
from hpcdl.system.resources import cache

CHECKOUT = Path(__file__).resolve().parents[2]
_SLURM = {12: "22.05", 13: "24.11"}
_OTHERS = (".git", ".venv*", "build", "dist", "__pycache__", "*.egg-info", ".*_cache")
# The host's, where there are any: a site's mirror, proxy and certificates.
_CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"
_ACCESS = {
    "etc/resolv.conf": "etc/resolv.conf",
    "etc/pip.conf": "etc/pip.conf",
    _CERTIFICATES: "etc/ssl/host.crt",
}
_ENTER = """
cd "$1"; shift
hostname fresh-box
[ -e etc/hosts ] || echo 127.0.0.1 localhost > etc/hosts
mount --bind . . && cd "$PWD"
mount -t proc proc proc; mount --rbind /dev dev; mount --rbind /sys sys; mount -t tmpfs tmpfs run
mkdir -p .host && pivot_root . .host && umount -l /.host
exec env -i "$@"
"""


@dataclass(frozen=True)
class Debian:
    """A root file system, and where its clusters lie: two of one path would share a bridge."""

    root: Path
    home: Path

    def __call__(self, script, seconds):
        """Run a script of bash in it; every process that it leaves is ended."""
        variables = {
            "HOME": "/root",
            "HPCDL_HOME": str(self.home),
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        }
        if (self.root / _ACCESS[_CERTIFICATES]).is_file():
            variables |= dict.fromkeys(("PIP_CERT", "SSL_CERT_FILE"), f"/{_ACCESS[_CERTIFICATES]}")
        pairs = [f"{name}={value}" for name, value in variables.items()]
        alone = ("--uts", "--pid", "--fork", "--kill-child")
        return subprocess.run(
            [
                *rootfs.ALONE,
                *alone,
                "bash",
                "-ec",
                _ENTER,
                "enter",
                self.root,
                *pairs,
                "bash",
                "-euo",
                "pipefail",
                "-c",
                script,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )

    def clear(self):
        """Remove what its last run left: the cluster's bridge, the release, the jobs."""
        network.remove_bridge(self.home / "cluster/embedded")
        for directory in self.root.glob("home/hpcdl-*"):
            shutil.rmtree(directory)


def debian(suite, checkout="root/hpcdl"):
    """The machine, with the checkout as it is now below its root directory, and `make`.

    Raises:
        HpcdlError: there is no root file system to make it from.
    """
    target = cache() / "tests" / f"debian-{suite}"
    if not target.is_dir():
        source = rootfs.get(_SLURM[suite], print).directory
        aside = target.with_name(f"{target.name}.partial")
        shutil.rmtree(aside, ignore_errors=True)
        aside.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", source, aside], check=True)
        aside.rename(target)
    for name, copy in _ACCESS.items():
        if Path("/", name).is_file():
            (target / copy).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path("/", name), target / copy)
    shutil.rmtree(target / checkout, ignore_errors=True)
    shutil.copytree(
        CHECKOUT, target / checkout, symlinks=True, ignore=shutil.ignore_patterns(*_OTHERS)
    )
    return Debian(target, Path(f"/home/hpcdl-{os.getpid()}"))

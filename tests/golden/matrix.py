"""The scripts that are kept: GPU generations x sizes x releases of Slurm.

Distinct texts are kept once, below the first release that has them; `index.txt` says which file
each release gets. `make golden` writes all of it anew; the diff then shows what changed where.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from hpcdl.jobs import JobSpec, Module, render_script
from hpcdl.jobs.functions import FILE
from hpcdl.jobs.slurm_compat import with_version
from hpcdl.site import Site, load_site
from hpcdl.slurm.rules import known_releases
from hpcdl.system.resources import folder

HERE = Path(__file__).parent
INDEX = HERE / "index.txt"
PARTITIONS = {
    "k80": "p100-v100-k80", "p100": "p100-v100-k80", "v100": "p100-v100-k80",
    "a100": "a100-h100", "h100": "a100-h100",
}  # fmt: skip
SIZES = {"1-gpu": {"gpus": 1}, "1-node": {"nodes": 1}, "4-nodes": {"nodes": 4}}
_RELEASE = Path("/apps/hpcdl/releases/tensorflow-1")
MODULE = Module(
    ("tensorflow/2.20.0",), _RELEASE / "modules", "tensorflow-1",
    _RELEASE / "stack" / "share" / "hpcdl" / FILE,
)  # fmt: skip


def script(partition: str, size: str, version: str) -> str:
    """The script of one cell, without what differs by person and by release of hpcdl."""
    site = with_version(_site(PARTITIONS[partition]), version)
    text = render_script(site, JobSpec(partition, **SIZES[size]), MODULE).text  # type: ignore[arg-type]
    return re.sub(r"(?m)^(# Written by hpcdl) \S+;", r"\1;", text)


def _site(name: str) -> Site:
    site = load_site(folder("templates") / "sites" / f"{name}.yaml")
    return replace(site, paths=replace(site.paths, work=Path("/work/me")))


def wanted() -> tuple[dict[str, str], str]:
    """Texts by file name, and the index."""
    files: dict[str, str] = {}
    lines = ["# Which file is the script of a partition and size on a release. `make golden`."]
    for partition in PARTITIONS:
        for size in SIZES:
            last, name = "", ""
            for version in known_releases():
                text = script(partition, size, version)
                # The release is named in the script's second line: no difference by itself.
                bare = text.replace(f"Slurm {version}.", "Slurm.")
                if bare != last:
                    last, name = bare, f"{partition}-{size}-{version}.sh"
                    files[name] = text
                lines.append(f"{partition:<5} {size:<8} {version}  {name}")
    return files, "\n".join(lines) + "\n"


def kept() -> tuple[dict[str, str], str]:
    """What lies in this folder."""
    files = {path.name: path.read_text() for path in HERE.glob("*.sh")}
    return files, INDEX.read_text() if INDEX.exists() else ""

"""The scripts that are kept: GPU generations x sizes x releases of Slurm, and variants.

Four are kept whole, as `NAME.sh`. Each of the others is
kept as its difference from the nearest of those, in `others.diff`: behind `@@` stands the line
before what differs. `make golden` writes all of it anew; the diff then shows what changed where.
"""

import difflib
import re
from pathlib import Path

from hpcdl.jobs import JobSpec, Module, render_script
from hpcdl.jobs.launch import with_version
from tests.make.sites import shipped

HERE = Path(__file__).parent
PARTITIONS = {
    "k80": "p100-v100-k80",
    "p100": "p100-v100-k80",
    "v100": "p100-v100-k80",
    "a100": "a100-h100",
    "h100": "a100-h100",
}
SIZES = {"1-gpu": {"gpus": 1}, "1-node": {"nodes": 1}, "4-nodes": {"nodes": 4}}
# The releases whose script differs from that of the release before.
FORMS = ("20.11", "22.05", "23.11")
WHOLE = ["a100-4-nodes-23.11", "a100-1-node-23.11", "a100-1-gpu-23.11", "launcher-horovod"]
# Not whole, yet nearer to their like than any that is.
SECOND = ["container-apptainer", "container-apptainer-staged", "gpu-model-gpus-per-node"]
_RELEASE = Path("/apps/hpcdl/releases/tensorflow-1")
MODULE = Module(("tensorflow/2.20.0",), _RELEASE / "modules", "tensorflow-1")


def script(partition, size, version):
    """The script of one cell, without what differs by person and by release of hpcdl."""
    site = with_version(shipped(PARTITIONS[partition], work=Path("/work/me")), version)
    return bare(render_script(site, JobSpec(partition, **SIZES[size]), MODULE).text)


def bare(text):
    """A script without the release of hpcdl."""
    return re.sub(r"(?m)( Written by hpcdl) \S+\.$", r"\1.", text)


def cells():
    """The scripts of one release for each partition and size, and of each form for one."""
    asked = [("a100", size, FORMS[-1]) for size in SIZES]
    asked += [(partition, "4-nodes", FORMS[-1]) for partition in PARTITIONS if partition != "a100"]
    asked += [("a100", "4-nodes", release) for release in FORMS[:-1]]
    return {"-".join(one): script(*one) for one in asked}


def differences(base, text):
    """The lines in which a text differs from another; before each group, the line it follows."""
    found = []
    before = base.splitlines()
    for line in difflib.unified_diff(before, text.splitlines(), n=0, lineterm=""):
        if at := re.match(r"@@ -(\d+)(,0)?", line):
            lines = before[: int(at[1]) - (0 if at[2] else 1)]
            last = lines[-1] if lines else ""
            found.append(f"@@ {last}" + f"  ({lines.count(last)})" * (before.count(last) > 1))
        elif not line.startswith(("--- ", "+++ ")):
            found.append(line)
    return found


def wanted(texts):
    """The content of each file: those kept whole, and what the others differ in."""
    lines = ["# Scripts by what differs from one that is known: matrix.py. `make golden`."]
    bases = list(WHOLE)
    for name in (name for name in texts if name not in WHOLE):
        found = {base: differences(texts[base], texts[name]) for base in bases}
        base = min(found, key=lambda base: len(found[base]))
        lines += [f"=== {name}: {base}", *found[base]]
        bases += [name] if name in SECOND else []
    files = {f"{name}.sh": texts[name] for name in WHOLE}
    return {**files, "others.diff": "\n".join(lines) + "\n"}


def kept():
    """What lies in this directory."""
    return {path.name: path.read_text() for path in (*HERE.glob("*.sh"), *HERE.glob("*.diff"))}

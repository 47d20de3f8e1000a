"""The compilers that build Horovod: a gcc that takes its sources, for GPUs also an nvcc.

All of them that the machine has are compared with the rules of hpcdl/facts: which GPUs an nvcc
compiles for, which gcc it takes. The first pair that fits is used; where none does, the error
names the rule that each one breaks. They are needed while building only.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcdl import facts
from hpcdl.site import Site, StackRequest
from hpcdl.stack.recipe import Recipe
from hpcdl.stack.resolve_facts import known
from hpcdl.stack.resolve_show import sentence
from hpcdl.stack.resolve_solver import Rule
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.run import run

SYSTEM_CUDAS = Path("/usr/local")
"""Where NVIDIA's installer puts toolkits, each in a directory `cuda-12.4`."""
_GCCS = ("g++", *(f"g++-{major}" for major in range(15, 8, -1)))
PACKAGES = "apt install libopenmpi-dev openmpi-bin g++ cmake make"


@dataclass(frozen=True)
class Tool:
    """A compiler and the version that it says it is."""

    path: Path
    version: str

    def __str__(self) -> str:
        return f"{self.path} {self.version}"


@dataclass(frozen=True)
class Toolchain:
    """Compilers that fit each other; `nvcc` is None where nothing is compiled for GPUs."""

    cxx: Tool
    nvcc: Tool | None = None

    def environment(self) -> dict[str, str]:
        """What tells CMake and nvcc of them."""
        cxx = str(self.cxx.path)
        cc = re.sub(r"g\+\+(?=[^/]*$)", "gcc", cxx)
        found = {"CXX": cxx, "CC": cc if Path(cc).exists() else cxx}
        if self.nvcc is not None:
            found |= {"CUDACXX": str(self.nvcc.path), "CUDAHOSTCXX": cxx}
        return found

    def __str__(self) -> str:
        return " and ".join(map(str, filter(None, (self.nvcc, self.cxx))))


def find_toolchain(site: Site, stack: StackRequest, recipe: Recipe) -> Toolchain:
    """The compilers for a stack's Horovod.

    Raises:
        MissingPrerequisite: a program is missing, or none that is here fits; says which rule
            each one breaks, and how to get one that does.
        BadInput: the site names an nvcc that is not there.
    """
    horovod = recipe.horovod
    assert horovod is not None
    missing = [command for command in horovod.commands if shutil.which(command) is None]
    if missing:
        raise MissingPrerequisite(
            f"Horovod cannot be built: there is no {', '.join(missing)} on PATH",
            hint=f"Debian and Ubuntu: {PACKAGES}",
        )
    base = {"horovod": horovod.version, "tensorflow": recipe.tensorflow, "backend": "venv"}
    nvccs = _fitting_nvccs(stack, recipe) if horovod.computes else [None]
    gccs = [tool for path in _gccs(site) if (tool := _asked(path, "-dumpfullversion", r"(\S+)"))]
    refused: list[str] = []
    for nvcc in nvccs:
        for gcc in gccs:
            cuda = {"cuda": nvcc.version} if nvcc else {}
            broken = broken_rules({**base, **cuda, "gcc": gcc.version}, "gcc")
            if not broken:
                return Toolchain(gcc, nvcc)
            refused += [f"{gcc}: {sentence(rule)}" for rule in broken]
    raise MissingPrerequisite(
        f"no gcc here fits {nvccs[0] or 'Horovod'}" if gccs else "there is no g++ on PATH",
        details=list(dict.fromkeys(refused)),
        hint=f"Debian and Ubuntu: {PACKAGES}, or an older one beside it, such as g++-13"
        + ("; without Horovod no compiler is needed: --without-horovod" if nvccs[0] else ""),
    )


def broken_rules(values: Mapping[str, str], need: str) -> list[Rule]:
    """The facts' rules about one component that these versions break.

    `values` are versions by component, where `gpu` is a compute capability; `need` is the component
    whose version may be refused.
    """
    return [
        rule
        for rule in known().rules
        if rule.origin == "fact"
        and rule.need.variable == need
        and all(condition.holds(values) for condition in rule.when)
        and not rule.need.holds(values)
    ]


def _fitting_nvccs(stack: StackRequest, recipe: Recipe) -> list[Tool]:
    """Every nvcc that compiles for the stack's GPUs, of the CUDA of its wheels; at least one."""
    assert recipe.horovod is not None
    computes, cuda = recipe.horovod.computes, recipe.versions["cuda"]
    refused, fits = [], []
    for path in _nvccs(stack):
        tool = _asked(path, "--version", r"release \S+, V([\d.]+)")
        if tool is None:
            refused.append(f"{path}: `{path} --version` fails, or names no release")
        elif broken := _broken_by(tool.version, computes, cuda):
            refused += [f"{tool}: {sentence(rule)}" for rule in broken]
        else:
            fits.append(tool)
    if fits:
        return fits
    gpus = ", ".join(f"sm_{one.replace('.', '')}" for one in computes)
    major = cuda.split(".")[0]
    release = ".".join(cuda.split(".")[:2]) if major == "11" else f"{major}.x"
    # The distributions whose own nvcc would fit.
    rows = [row for row in facts.load("distributions")["distributions"]
            if not _broken_by(str(row["cuda"]), computes, cuda)]  # fmt: skip
    names = " and ".join(f"{row['name']} ({row['cuda']})" for row in rows)
    packaged = f"apt install nvidia-cuda-toolkit on {names}, non-free; elsewhere " if rows else ""
    raise MissingPrerequisite(
        f"Horovod for {gpus} is compiled by nvcc of CUDA {release}, and "
        + ("none that is here fits" if refused else "there is none here"),
        details=list(dict.fromkeys(refused)),
        hint=f"load a CUDA {release} module, set CUDA_HOME or the stack's `cuda_home` "
        f"({packaged}developer.nvidia.com/cuda-toolkit-archive); or build without "
        "Horovod, for tf.distribute: --without-horovod",
    )


def _broken_by(nvcc: str, computes: Sequence[str], cuda: str) -> list[Rule]:
    """The rules that an nvcc breaks for these GPUs and the CUDA of the wheels."""
    broken = broken_rules({"cuda": cuda, "nvcc": nvcc}, "nvcc")
    return broken + [rule for one in computes
                     for rule in broken_rules({"gpu": one, "cuda": nvcc}, "cuda")]  # fmt: skip


def _nvccs(stack: StackRequest) -> Iterator[Path]:
    """Where an nvcc may be, the likeliest first."""
    if stack.cuda_home is not None:
        named = stack.cuda_home / "bin" / "nvcc"
        if not os.access(named, os.X_OK):
            raise BadInput(
                f"stack '{stack.name}' has the cuda_home {stack.cuda_home}, and there is no "
                f"{named}",
                hint="name the directory of a CUDA toolkit: its bin/nvcc is used",
            )
        yield named
        return
    homes = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    here = [*(Path(home, "bin", "nvcc") for home in homes), Path(shutil.which("nvcc") or ""),
            *sorted(SYSTEM_CUDAS.glob("cuda*/bin/nvcc"), reverse=True)]  # fmt: skip
    found: dict[Path, Path] = {}
    for path in here:
        if path.is_file() and os.access(path, os.X_OK):
            found.setdefault(path.resolve(), path)  # `cuda` is a link to `cuda-12.4`
    yield from found.values()


def _gccs(site: Site) -> Iterator[Path]:
    """Where a g++ may be: what the environment says, else PATH's own, the site's, newer ones."""
    named = os.environ.get("CUDAHOSTCXX") or os.environ.get("CXX")
    if named:
        names = [named]
    else:
        prefixes = [one.prefix for one in site.spack.externals if one.name == "gcc"]
        names = ["g++", *(str(one / "bin" / "g++") for one in prefixes), *_GCCS]
    found = (shutil.which(name) for name in names)
    yield from dict.fromkeys(Path(path) for path in found if path)


def _asked(path: Path, option: str, pattern: str) -> Tool | None:
    """A compiler with its version; None where it does not say one."""
    said = run([path, option], check=False, timeout=60)
    match = re.search(pattern, said.stdout)
    return Tool(path, match.group(1)) if said.ok and match else None

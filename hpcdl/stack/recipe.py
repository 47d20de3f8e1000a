"""Which wheels make a stack, and how Horovod is built against them: facts, never code.

From a resolution (`hpcdl stack resolve`) to a `Recipe` by hpcdl/facts/wheels.yaml and
nvidia_wheels.yaml, with the reason where none fits. Digests of a recipe name what is cached, so a
changed fact never meets a stale file.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdl import facts
from hpcdl.site import Site, StackRequest
from hpcdl.stack.release import MODULE, variant_of
from hpcdl.stack.resolve import Resolver, computes_of
from hpcdl.stack.resolve_facts import conditions, gpus_of, needs_of
from hpcdl.system.errors import MissingPrerequisite
from hpcdl.system.run import run
from hpcdl.system.text import one_of

_EACH = "resolved only, each version by itself: `hpcdl stack resolve`"


@dataclass(frozen=True)
class SourceEdit:
    """A text that occurs once in a source file, its replacement, and why."""

    name: str
    file: str
    find: str
    replace: str
    why: str


@dataclass(frozen=True)
class HorovodRecipe:
    """How Horovod is built from its sdist.

    `environment` is set while it builds, `commands` must be on PATH, `leave_out` are files of
    the installation that are removed again. `computes` are the GPUs that it is compiled for,
    such as `6.0`; none for CPUs.
    """

    version: str
    sdist: str
    sha256: str
    environment: Mapping[str, str]
    commands: tuple[str, ...]
    leave_out: tuple[str, ...]
    edits: tuple[SourceEdit, ...]
    computes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """A set of wheels that belongs together, and how sure it is that it works.

    `variant` is `cpu` or such as `cuda12.9-sm60-sm70`; `python` such as `3.11`; `versions` are
    those of Horovod, Keras, CUDA, cuDNN and NCCL, as far as they are in it; `horovod` is None
    without it, for tf.distribute. `environment` is what the module sets (`{packages}` stands for
    Python's site-packages); `packages` are requirements that the site adds, `alone` wheels that
    are fetched without what they ask for; `fetch_gb` and `tree_gb` say how much is fetched and how
    large the tree gets.
    """

    tensorflow: str
    package: str
    variant: str
    python: str
    requirements: tuple[str, ...]
    horovod: HorovodRecipe | None
    proof: str
    source: str
    needs: Mapping[str, Any]
    fetch_gb: float
    tree_gb: float
    versions: Mapping[str, str]
    environment: Mapping[str, str]
    packages: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()

    @property
    def module(self) -> str:
        """Name and version of the modulefile, such as `tensorflow/2.21.0-cpu`."""
        return f"{MODULE}/{self.tensorflow}-{self.variant}"

    @property
    def edits(self) -> tuple[SourceEdit, ...]:
        """The changes to Horovod's sources."""
        return self.horovod.edits if self.horovod else ()


@dataclass(frozen=True)
class Interpreter:
    """The Python that a stack is built on: the one below the running one's virtual environment."""

    path: Path
    version: str

    @property
    def minor(self) -> str:
        """`3.11`."""
        return ".".join(self.version.split(".")[:2])

    @property
    def tag(self) -> str:
        """Python and machine, as part of a file name: `py311-x86_64`."""
        return f"py{self.minor.replace('.', '')}-{platform.machine()}"


def running_interpreter() -> Interpreter:
    """The base of the Python that runs now."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    return Interpreter(Path(base).resolve(), platform.python_version())


def interpreter(minor: str) -> Interpreter:
    """The Python of a release such as `3.11`: the running one's base, else one of PATH."""
    own = running_interpreter()
    if own.minor == minor:
        return own
    ask = "import platform, sys; print(sys._base_executable, platform.python_version())"
    answer = run(
        [f"python{minor}", "-c", ask],
        directory=Path("/"),
        timeout=60,
        hint=f"is Python {minor} whole?",
    )
    path, version = answer.stdout.split()
    return Interpreter(Path(path).resolve(), version)


def recipe_of(site: Site, request: StackRequest, names: tuple[str, ...]) -> Recipe:
    """The recipe of a stack for partitions that share one build.

    Raises:
        BadInput: pins that contradict each other or the facts.
        MissingPrerequisite: nothing fits, or the wheels of that CUDA are unknown.
    """
    resolution = Resolver(site).build(request, names)
    computes, own = computes_of(site, request, names), gpus_of(site, names)
    versions, table = resolution.versions, facts.load("wheels")
    kind = "cuda" if computes else "cpu"
    digits = tuple(one.replace(".", "") for one in computes)
    package, needs = table["packages"][kind], table["needs"][kind]
    parts = ("horovod", "keras", *(("cuda", "cudnn", "nccl") if computes else ()))
    return Recipe(
        tensorflow=versions["tensorflow"],
        package=package,
        variant=variant_of(digits, versions.get("cuda", "")),
        python=versions["python"],
        requirements=(
            f"{package}=={versions['tensorflow']}",
            *(_nvidia(versions) if computes else ()),
            *table["requirements"],
            f"keras=={versions['keras']}",
            *request.packages,
        ),
        horovod=_horovod(table["horovod"], versions, computes) if "horovod" in versions else None,
        proof=resolution.proof,
        source=resolution.tried.source if resolution.tried else _EACH,
        needs=needs_of(digits, versions.get("cuda", ""), "", own, wheels=True),
        fetch_gb=needs["fetch_gb"],
        tree_gb=needs["tree_gb"],
        versions={name: versions[name] for name in parts if name in versions},
        environment=facts.load("nvidia_wheels")["environment"] if computes else {},
        packages=request.packages,
        alone=tuple(
            row["wheel"]
            for row in table["alone"]
            if all(condition.holds(versions) for condition in conditions(row["when"]))
        ),
    )


def _nvidia(versions: Mapping[str, str]) -> tuple[str, ...]:
    """NVIDIA's wheels of a CUDA release, cuDNN and NCCL, each at one version."""
    cuda = versions["cuda"]
    toolkits = facts.load("nvidia_wheels")["toolkits"]
    if cuda not in toolkits:
        raise MissingPrerequisite(
            f"no NVIDIA wheels are listed for CUDA {cuda}",
            hint=f"pin cuda to {one_of(list(toolkits))}",
        )
    own = {"cudnn": versions["cudnn"], "nccl": versions["nccl"]}
    major = cuda.split(".")[0]
    return tuple(
        f"nvidia-{name}-cu{major}=={version}" for name, version in {**toolkits[cuda], **own}.items()
    )


def _horovod(
    built: Mapping[str, Any], versions: Mapping[str, str], computes: Sequence[str]
) -> HorovodRecipe:
    kind = "cuda" if computes else "cpu"
    codes = ",".join(one.replace(".", "") for one in computes)
    gpus = {**built["gpu_environment"], "HOROVOD_BUILD_CUDA_CC_LIST": codes} if computes else {}
    wanted = [
        SourceEdit(name, row["file"], row["find"], row["replace"], " ".join(row["why"].split()))
        for name, row in built["edits"].items()
        if row.get("variant", kind) == kind
        and all(condition.holds(versions) for condition in conditions(row.get("when", {})))
    ]
    return HorovodRecipe(
        version=versions["horovod"],
        sdist=built["sdist"],
        sha256=built["sha256"],
        environment={**built["environment"], **gpus},
        commands=tuple(built["commands"]),
        leave_out=tuple(built["leave_out"]),
        edits=tuple(wanted),
        computes=tuple(computes),
    )

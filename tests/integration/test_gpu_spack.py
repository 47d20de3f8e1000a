"""The GPU stack by Spack: built, adopted, published and loaded in a Debian 13 with nvcc 12.4.

`make test-gpu-build`, where Spack is (HPCDL_SPACK_ROOT, HPCDL_SPACK_PACKAGES): TensorFlow and
NVIDIA's libraries from wheels, Horovod compiled by Spack for P100 and V100, and no GPU.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl.stack.spack_backend.tool import find_spack
from hpcdl.system.resources import cache
from tests.gpu_roots import CASES, Root, install_hpcdl, root_of, write_site
from tests.integration.spack_fixture import PACKAGES, why_not
from tests.integration.test_gpu_build import SUM, Built

pytestmark = [
    pytest.mark.gpu_build,
    pytest.mark.spack,
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
    pytest.mark.timeout(5400),
]
_STACK_GB = 22.0
_EXTERNALS = """
spack:
  externals:
    - {spec: python@3.13.5, prefix: /usr}
    - {spec: gcc@13.3.0, prefix: /usr}
    - {spec: cuda@12.4.131, prefix: /usr/lib/nvidia-cuda-toolkit}
    - {spec: openmpi@5.0.7, prefix: /usr}
    - {spec: cmake@3.31.6, prefix: /usr}
    - {spec: gmake@4.4.1, prefix: /usr}
"""


def with_spack(root: Root) -> tuple[Root, dict[str, str]]:
    """A root that sees this machine's Spack and has what it starts, and the variables for it."""
    spack, packages = find_spack().parents[1], Path(os.environ["HPCDL_SPACK_PACKAGES"])
    install = "apt-get install -qy --no-install-recommends make patch"
    root.run("bash", "-c", f"apt-get update -q && {install}", DEBIAN_FRONTEND="noninteractive")
    root.run("python3", "-m", "venv", "--clear", "/opt/spack-python")
    root.run("/opt/spack-python/bin/python", "-m", "pip", "install", "--quiet", "clingo")
    settings = root.directory / "etc" / "spack-user"
    settings.mkdir(exist_ok=True)
    (settings / "repos.yaml").write_text(f"repos::\n  builtin: {PACKAGES}\n")
    (settings / "bootstrap.yaml").write_text(
        "bootstrap:\n  enable: true\n  sources:: []\n  trusted:: {}\n"
    )
    return replace(root, shared=(spack, packages)), {
        "HPCDL_SPACK_ROOT": str(spack),
        "HPCDL_SPACK_PACKAGES": str(packages),
        "SPACK_PYTHON": "/opt/spack-python/bin/python",
        "SPACK_USER_CONFIG_PATH": "/etc/spack-user",
        "SPACK_SYSTEM_CONFIG_PATH": "/etc/none",
        "SPACK_USER_CACHE_PATH": str(cache() / "tests" / "spack"),
    }


@pytest.fixture(scope="module")
def made() -> Iterator[tuple[Built, dict[str, str]]]:
    """Built and published by hpcdl's own commands, and the variables for Spack."""
    (case,) = (one for one in CASES if one.suite == "trixie")
    root, env = with_spack(root_of(case.suite, _STACK_GB))
    install_hpcdl(root)
    shutil.rmtree(root.prefix, ignore_errors=True)
    write_site(root, case, _EXTERNALS)
    build = ("stack", "build", "--backend", "spack", "--unsigned", "--json")
    record = json.loads(root.hpcdl(*build, **env).stdout)
    published = root.hpcdl("stack", "publish", str(record["id"]), "--local", "--json", **env)
    yield Built(case, root, record, json.loads(published.stdout)["proof"]), env
    shutil.rmtree(root.prefix)


def test_the_gate_found_every_library_in_its_packages_and_code_for_its_gpus(made):
    built, _ = made
    assert built.record["module"] == built.case.module
    checks = {one["name"]: one for one in built.proof["checks"]}  # type: ignore[attr-defined]
    assert all(one["ok"] for one in checks.values())
    assert checks["libraries"]["detail"].endswith(
        "shared objects find what they need in the release"
    )
    assert checks["device code of Horovod"]["detail"] == "sm_60, sm_70, as the release is for"


def test_two_ranks_agree_on_a_sum_with_one_nccl_of_its_packages(made):
    built, _ = made
    (built.root.directory / "tmp" / "sum.py").write_text(SUM)
    said = built.loaded("mpirun --allow-run-as-root --oversubscribe -np 2 python /tmp/sum.py")
    lines = re.findall(r"SEEN (\d+) ([\d.]+) (\d+) (\w+) (.*)", said)
    assert len(lines) == 2, said
    for size, total, nccl, cuda, maps in lines:
        assert (size, total, int(nccl), cuda) == ("2", "3.0", built.case.nccl, "True")
        (place,) = maps.split()
        assert place.startswith(f"{built.root.prefix}/spack/store/")


def test_the_same_environment_adopted_is_the_same_release(made):
    built, env = made
    where = f"{built.root.prefix}/spack/tensorflow/environments/tensorflow"
    told = json.loads(built.root.hpcdl("stack", "adopt", where, "--json", **env).stdout)
    assert (told["id"], told["built"]) == (built.record["id"], False)

"""Stack commands on small releases, each a process of its own: `python -m tests.drill.acts ...`.

They are what `hpcdl stack` calls, with a gate that always opens, no queue to ask, and releases
with one tiny wheel: the records, locks, seals, modulefiles and renames are the real ones.
"""

import dataclasses
import os
import sys
from pathlib import Path

from hpcdl.stack.build import BuildPlan, build
from hpcdl.stack.gc import collect
from hpcdl.stack.publish import publish, rollback
from hpcdl.stack.recipe import own_digest, pack, recipe_of, running_interpreter
from hpcdl.stack.release import current_release, read_release, release_ids
from hpcdl.stack.resolve import find_request
from hpcdl.stack.spack_backend import spack_build as adopting
from hpcdl.stack.tree import sha256
from hpcdl.system.errors import HpcdlError
from tests.make.releases import passing, silent
from tests.make.sites import small_site

_WHEELS = (
    *(Path.home() / ".cache" / "hpcdl" / "wheels").glob("*"),
    Path("/usr/share/python-wheels"),
    Path(os.__file__).parent / "ensurepip" / "_bundled",
)


def publish_anew(site, name, added):
    """All of a publish: the admin has added a partition, so there are modulefiles to write."""
    partitions = {**site.partitions, added: site.partitions["cpu"]}
    publish(
        dataclasses.replace(site, partitions=partitions),
        name,
        passing,
        say=silent,
        enough=lambda _: False,
    )


def build_tiny(site, version):
    build(tiny_plan(site, version), silent)


def tiny_plan(site, version):
    """The plan of a stack whose TensorFlow is one empty module."""
    request = dataclasses.replace(find_request(site), backend="wheels", horovod=False)
    site = dataclasses.replace(site, stacks={request.name: request})
    recipe = recipe_of(site, request, tuple(site.partitions))
    # Not on the disk that a drill lets fail: the wheels are the drill's own.
    house = Path(os.environ.get("HPCDL_CACHE", site.paths.prefix.parent), f"wheels-{version}")
    house.mkdir(parents=True, exist_ok=True)
    files = [_empty_wheel(house, recipe.package.replace("-", "_"), version)]
    for name in ("pip", "setuptools", "wheel"):
        found = next(path for place in _WHEELS for path in sorted(place.glob(f"{name}-*.whl")))
        files.append(house / found.name)
        _put(files[-1], found.read_bytes())
    lock = house / "requirements.txt"
    rows = ((*file.name.split("-")[:2], sha256(file)) for file in files)
    _put(lock, "".join(f"{name}=={v} --hash=sha256:{one}\n" for name, v, one in rows).encode())
    os.environ |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(house)}
    return BuildPlan(site, request, (), recipe, running_interpreter(), "", own_digest(), lock)


def _empty_wheel(house, name, version):
    path, info = house / f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
    texts = {
        "tensorflow/__init__.py": f"__version__ = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    members = {member: text.encode() for member, text in texts.items()}
    _put(path, pack(members, f"{info}/RECORD"))
    return path


def _put(path, data):
    """As a whole: another build may read it just now."""
    aside = path.with_name(f"{os.getpid()}-{path.name}")
    aside.write_bytes(data)
    aside.replace(path)


def adopt_small(site, environment):
    """Adopt an environment of small packages: all steps but the import of TensorFlow."""
    adopting.require_imports = lambda *_: None
    adopting.adopt_installed(adopting.plan_adoption(site, environment), silent)


def look(site):
    """What `hpcdl stack list` reads."""
    for name in release_ids(site):
        read_release(site, name)
    current_release(site)


ACTS = {
    "look": look,
    "publish": publish_anew,
    "rollback": rollback,
    "gc": lambda site: collect(site, dict, keep=1, unpublished=True),
    "build": build_tiny,
    "adopt": adopt_small,
}


def main(action, prefix, *rest):
    try:
        ACTS[action](small_site(Path(prefix)), *rest)
    except HpcdlError as error:
        print(error.render(), file=sys.stderr)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

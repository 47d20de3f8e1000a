"""What a release is, and how to read one.

A release is an immutable tree PREFIX/releases/ID with the software in `stack`, its modulefiles
in `modules` and a `release.json` that is written last: without it the tree is no release.
PREFIX/current is a link to the published one. This module only reads, and is light: whoever
renders a job script imports it. release.json carries a seal over its content, so that one
edited by hand is noticed before anything is built upon it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hpcdl.site.sections import OLD_BACKENDS
from hpcdl.system.errors import BadInput, HpcdlError
from hpcdl.system.frozen import dataclass
from hpcdl.system.text import did_you_mean

if TYPE_CHECKING:
    from hpcdl.site import Site, StackRequest

SCHEMA = 1
MODULE = "tensorflow"
"""The name of every release's module."""
DISPATCH_FILE = ".dispatch.json"
"""In a modules directory: which release serves which partition."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_TEXTS = ("id", "stack", "backend", "module", "hpcdl", "created", "proof", "content")
_TABLES = ("versions", "needs", "environment")


@dataclass(frozen=True)
class Release:
    """A built release.

    `root` is PREFIX/releases/ID; `module` its module's full name, such as
    `tensorflow/2.21.0-cpu`; `versions` what is inside, by component; `partitions` the ones it
    serves, none meaning all; `proof` a level of `hpcdl.facts.PROOFS`; `created` in UTC. `needs` is
    what its module's guard asks of a machine: `cpu_flags` as /proc/cpuinfo names them, `driver`
    with `from` (a version) and `branch` (the last one that drives the GPU), `gpus` (models); and
    `modules` that it loads itself, each with `name` and `directory`. `environment` is what
    the module sets beyond PATH: directories to put in front of a variable, or a text. `content` is
    the sha256 of the seal of its files (hpcdl.stack.tree).
    """

    id: str
    stack: str
    backend: str
    root: Path
    module: str
    versions: Mapping[str, str]
    partitions: tuple[str, ...]
    proof: str
    created: str
    hpcdl: str
    lock: tuple[Mapping[str, str], ...]
    needs: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    content: str = ""

    @property
    def module_version(self) -> str:
        """Its module's version, such as `2.21.0-cpu`."""
        return self.module.partition("/")[2]

    @property
    def prefix(self) -> Path:
        """The directory of the software itself."""
        return self.root / "stack"

    @property
    def modules(self) -> Path:
        """The MODULEPATH that a job of this release uses."""
        return self.root / "modules"

    @property
    def python(self) -> Path:
        """The interpreter that has TensorFlow and Horovod."""
        return self.prefix / "bin" / "python"


@dataclass(frozen=True)
class ReleasePlan:
    """The plan of a release: each way of making one has its own.

    `partitions` are those that it serves, none meaning all.
    """

    site: Site
    request: StackRequest
    partitions: tuple[str, ...]

    @property
    def release_id(self) -> str | None:
        """The id of the release; None until everything is locked."""
        raise NotImplementedError

    @property
    def root(self) -> Path:
        """Where the release will be."""
        return releases_folder(self.site) / (self.release_id or "ID")

    @property
    def exists(self) -> bool:
        """Return whether that release is there already."""
        return is_built(self.site, self.release_id)

    def steps(self) -> list[str]:
        """Return the remaining steps, in words; empty if the release exists."""
        return [] if self.exists else self.remaining()

    def remaining(self) -> list[str]:
        """Return the steps of a release that does not exist yet."""
        raise NotImplementedError

    def require_ready(self) -> None:
        """Raise MissingPrerequisite or BadInput for what this machine lacks to make it."""
        if not self.exists:
            self.require_tools()

    def require_tools(self) -> None:
        """Raise the same for a release that does not exist yet."""
        raise NotImplementedError

    def make(self, say: Callable[[str], None]) -> Release:
        """Build the release, or return it where it exists."""
        raise NotImplementedError

    def expected(self) -> Release:
        """The release as it will be recorded, its id perhaps unknown."""
        raise NotImplementedError

    def as_data(self) -> dict[str, Any]:
        """For machines; each way of building adds its own values."""
        expected = self.expected()
        return {
            "schema": 1,
            "stack": self.request.name,
            "backend": expected.backend,
            "release": self.release_id,
            "exists": self.exists,
            "module": expected.module,
            "versions": dict(expected.versions),
            "proof": expected.proof,
            "partitions": list(self.partitions),
            "steps": self.steps(),
        }


class BrokenRelease(HpcdlError):
    """A release whose record cannot be trusted (exit code 1)."""


def normal_name(name: str) -> str:
    """A package's name as PyPI compares it (PEP 503), as it is in a release's lock."""
    return re.sub(r"[-_.]+", "-", name).lower()


def variant_of(archs: Sequence[str], cuda: str) -> str:
    """Return the suffix of a module's version: `cpu`, or `cuda12.9-sm60` of CUDA 12.9.1 and 60.

    `archs` are the GPUs' capabilities as digits, none for CPUs.
    """
    return f"cuda{'.'.join(cuda.split('.')[:2])}-sm{'-sm'.join(archs)}" if archs else "cpu"


def digest(*parts: object) -> str:
    """Return a digest of values in eight hex digits."""

    def plain(value: object) -> object:
        return dict(value) if isinstance(value, Mapping) else getattr(value, "__dict__", str(value))

    text = json.dumps(parts, sort_keys=True, default=plain)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def releases_folder(site: Site) -> Path:
    """PREFIX/releases."""
    return site.paths.prefix / "releases"


def release_ids(site: Site) -> list[str]:
    """Ids of all finished releases, sorted; readable or not."""
    folder = releases_folder(site)
    names = (path.parent.name for path in folder.glob("*/release.json"))
    return sorted(name for name in names if is_built(site, name))


def is_built(site: Site, release_id: str | None) -> bool:
    """Return whether a release exists; None is an id that is not known yet."""
    if release_id is None or not _ID.match(release_id):
        return False
    return (releases_folder(site) / release_id / "release.json").is_file()


def read_release(site: Site, release_id: str) -> Release:
    """The release `release_id` of the site's prefix."""
    root = releases_folder(site) / release_id
    if not is_built(site, release_id):
        hint = did_you_mean(release_id, release_ids(site)) or "`hpcdl stack build` makes one"
        if release_id in site.partitions:
            hint = f"'{release_id}' is a partition: write --partition {release_id}"
        where = site.paths.prefix
        raise BadInput(f"there is no release '{release_id[:100]}' in {where}", hint=hint)
    return _parse(root)


def current_release(site: Site) -> Release | None:
    """The published release, None where there is none; BrokenRelease where it cannot be read."""
    release_id = current_id(site)
    if release_id is None:
        return None
    if not is_built(site, release_id):
        raise BrokenRelease(
            f"{site.paths.prefix}/current leads to '{release_id}', which is no release",
            hint="`hpcdl stack rollback` goes back to the one before",
        )
    return _parse(releases_folder(site) / release_id)


def find_release(site: Site, release_id: str | None = None) -> Release:
    """Return the release `release_id`, or the published one where none is named."""
    if release_id is not None:
        return read_release(site, release_id)
    current = current_release(site)
    if current is None:
        built = release_ids(site)
        known = f"built: {', '.join(built)}" if built else "`hpcdl stack build` makes one"
        raise BadInput(
            f"nothing is published in {site.paths.prefix}", hint=f"name a release; {known}"
        )
    return current


def release_for(site: Site, partition: str, model: str | None = None) -> Release | None:
    """The published release that serves a partition, or None where nothing is published.

    `model` is one of the partition's GPU models, where it has several.
    """
    current = current_release(site)
    if current is None:
        return None
    try:
        dispatch = json.loads((current.modules / DISPATCH_FILE).read_text())
        by_model = dispatch["models"].get(partition, {})
        return read_release(site, by_model.get(model) or dispatch["partitions"][partition])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, BadInput):
        return current


def current_id(site: Site) -> str | None:
    """The id that PREFIX/current names, whether or not that release is sound.

    Of a link that leaves the prefix, the whole path: another tree of that name is no release.
    """
    try:
        target = (site.paths.prefix / "current").readlink()
    except OSError:
        return None
    inside = (site.paths.prefix / target).parent.resolve() == releases_folder(site).resolve()
    return target.name if inside else str(target)


def seal(record: Mapping[str, Any]) -> str:
    """The digest of a record without its own seal: sha256 over canonical JSON."""
    content = {key: value for key, value in record.items() if key != "seal"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def as_record(release: Release) -> dict[str, Any]:
    """The content of release.json, sealed."""
    record = {
        key: dict(one) if isinstance(one, Mapping) else one
        for key, one in vars(release).items()
        if key != "root"
    }
    record |= {
        "schema": SCHEMA,
        "partitions": list(release.partitions),
        "lock": [dict(entry) for entry in release.lock],
    }
    return {**record, "seal": seal(record)}


def _parse(root: Path) -> Release:
    path = root / "release.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        matches = isinstance(record, dict) and record.get("seal") == seal(record)
    except (OSError, ValueError, RecursionError) as fault:
        why = "nested too deep" if isinstance(fault, RecursionError) else str(fault)[:200]
        raise _broken(path, f"is damaged: {why}") from fault
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise _broken(path, f"is not a release record of schema {SCHEMA}")
    if not matches:
        raise _broken(path, "was changed after the build: its seal does not match")
    if record.get("id") != root.name or not all(isinstance(record.get(k), str) for k in _TEXTS):
        raise _broken(path, "does not describe its directory")
    try:
        parts: dict[str, Any] = {key: MappingProxyType(dict(record[key])) for key in _TABLES}
        parts |= {key: record[key] for key in _TEXTS}
        parts["backend"] = OLD_BACKENDS.get(parts["backend"], parts["backend"])
        lock = tuple(MappingProxyType(dict(entry)) for entry in record["lock"])
        return Release(root=root, partitions=tuple(record["partitions"]), lock=lock, **parts)
    except (KeyError, TypeError, ValueError) as fault:
        raise _broken(path, f"does not match the format: {str(fault)[:200]}") from fault


def _broken(path: Path, what: str) -> BrokenRelease:
    tree = path.parent
    return BrokenRelease(
        f"{path} {what}",
        hint=f"releases are never edited: mv {tree} {tree.parents[1]}/{tree.name}.broken, then "
        "`hpcdl stack build` makes the same one again",
    )

"""Prints what the active environment holds, as JSON: `spack -e DIR python inventory.py`.

`packages` has one object per package: its prefix, whether it is installed, and its entry in a
release's lock: name, version, hash, and as far as known its archive (`url`, `sha256` or `commit`),
its licence, its prefix where it is the machine's own (`external`), the compilers with flags and
target that made it. `store` is the install tree, `padded` the length its paths are padded to,
`repos` the directories of the package repositories by namespace. Run by Spack's Python.
"""

import json

import spack.config
import spack.environment as ev
import spack.repo
import spack.store


def licence_of(spec):
    """The licence that the recipe declares for this version; None where the recipe is gone."""
    try:
        licences = getattr(spec.package, "licenses", {})
    except spack.repo.RepoError:
        return None
    for when, identifier in licences.items():
        if spec.satisfies(when):
            return str(identifier)
    return None


def archive_of(spec):
    """Where a package's own archive comes from, and how it is known to be the right one."""
    try:
        package = spec.package
    except spack.repo.RepoError:
        return {}
    if spec.external or not package.has_code:
        return {}
    names = {"url": "url", "sha256": "digest", "commit": "commit"}
    return {key: getattr(package.fetcher, name, None) for key, name in names.items()}


def compilers_of(spec):
    """The compilers, flags and target of what is compiled; empty of anything else."""
    used = spec.dependencies(virtuals=("c", "cxx", "fortran"))
    named = sorted({f"{one.name}@{one.version}" for one in used})
    flags = [f"{kind}='{' '.join(words)}'" for kind, words in spec.compiler_flags.items() if words]
    return " ".join([", ".join(named), *flags, f"target={spec.target}"]) if named else ""


def row_of(spec):
    """One package."""
    known = {
        **archive_of(spec),
        "licence": licence_of(spec),
        "external": spec.prefix if spec.external else None,
        "compilers": compilers_of(spec),
    }
    return {
        "name": spec.name,
        "version": str(spec.version),
        "hash": spec.dag_hash(),
        "prefix": str(spec.prefix),
        "installed": bool(spec.installed),
        **{key: str(value) for key, value in known.items() if value},
    }


environment = ev.active_environment()
print(
    json.dumps(
        {
            "packages": [row_of(spec) for spec in environment.all_specs() if spec.concrete],
            "store": str(spack.store.STORE.unpadded_root),
            "padded": spack.config.get("config:install_tree:padded_length", 0) or 0,
            "repos": {repo.namespace: str(repo.root) for repo in spack.repo.PATH.repos},
        }
    )
)

"""Prints what the active environment holds, as JSON: `spack -e DIR python inventory.py`.

`packages` has one object per package: name, version, hash, prefix, whether it is the machine's
own, whether it is installed, its licence, the compilers with flags and target that made it, and the
files that its build fetches. `store` is the
install tree, `padded` the length its paths are padded to, `repos` the directories of the package
repositories by namespace. Run by Spack's Python; hpcdl reads the output.
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


def source_of(fetcher):
    """Where a file comes from and how it is known to be the right one."""
    url = getattr(fetcher, "url", None)
    return {
        "url": str(url) if url else None,
        "sha256": getattr(fetcher, "digest", None),
        "commit": getattr(fetcher, "commit", None),
    }


def sources_of(spec):
    """All that is fetched to build one package: its archive, resources and patches."""
    try:
        package = spec.package
    except spack.repo.RepoError:
        return []
    if spec.external or not package.has_code:
        return []
    found = [source_of(package.fetcher)]
    for when, resources in getattr(package, "resources", {}).items():
        if spec.satisfies(when):
            found += [source_of(resource.fetcher) for resource in resources]
    for patch in spec.patches:
        if getattr(patch, "url", None):
            digest = getattr(patch, "archive_sha256", None) or patch.sha256
            found.append({"url": patch.url, "sha256": digest, "commit": None})
    return found


def compilers_of(spec):
    """The compilers, flags and target of what is compiled; empty of anything else."""
    used = spec.dependencies(virtuals=("c", "cxx", "fortran"))
    named = sorted({f"{one.name}@{one.version}" for one in used})
    flags = [f"{kind}='{' '.join(words)}'" for kind, words in spec.compiler_flags.items() if words]
    return " ".join([", ".join(named), *flags, f"target={spec.target}"]) if named else ""


def row_of(spec):
    """One package."""
    return {
        "name": spec.name,
        "version": str(spec.version),
        "hash": spec.dag_hash(),
        "prefix": str(spec.prefix),
        "external": bool(spec.external),
        "installed": bool(spec.installed),
        "licence": licence_of(spec),
        "compilers": compilers_of(spec),
        "files": sources_of(spec),
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

"""What tests of checks share: a site of the test's own on the embedded cluster."""

import os
from pathlib import Path

from hpcdl.site import load_site


def own_site(cluster_env, folder, monkeypatch):
    """The embedded site with a prefix and a work folder below `folder`, and its environment."""
    for key in list(os.environ):
        if key.startswith(("SLURM", "HPCDL")):
            monkeypatch.delenv(key)
    for key, value in cluster_env.items():
        monkeypatch.setenv(key, value)
    text = Path(cluster_env["HPCDL_SITE"]).read_text()
    file = folder / "site.yaml"
    file.write_text(text.replace("$HPCDL_HOME/embedded/", f"{folder}/"))
    return load_site(file)


def with_release(site, prefix, digits):
    """The site with the releases of another prefix and the digits; references stay its own."""
    site.paths.prefix.mkdir(parents=True)
    (site.paths.prefix / "releases").symlink_to(prefix / "releases")
    (site.paths.prefix / "current").symlink_to((prefix / "current").readlink())
    site.paths.datasets.mkdir()
    (site.paths.datasets / "digits").symlink_to(digits)
    return site


def statuses(outcome):
    return {verdict.name: verdict.status for verdict in outcome.verdicts}


def told(outcome):
    return "\n".join(f"{v.status.value} {v.name}: {v.reason}, {v.log}" for v in outcome.verdicts)


def value(verdict, metric):
    (found,) = [m.value for m in verdict.metrics if m.name == metric]
    return found

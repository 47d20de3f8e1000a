"""The built release that tests share: made once per machine, kept in the cache.

The next run finds wheels, Horovod and, while hpcdl's sources are the same, the very release.
"""

import json
import shutil
import sys
import time
from contextlib import suppress

import pytest

from hpcdl.system.errors import MissingPrerequisite
from hpcdl.system.resources import cache
from tests.make.sites import small_site

_KEPT = 3
_YOUNG = 3 * 3600.0
"""Seconds that a release is kept in any case: longer than a run of all tests."""


@pytest.fixture(scope="session")
def stack_site():
    """The embedded site; its software lies below the cache."""
    return small_site(cache() / "tests" / "prefix", lmod=True)


@pytest.fixture(scope="session")
def release(stack_site):
    """A published release with TensorFlow, Horovod and hpcdl as its sources are now."""
    from hpcdl.stack.build import build
    from hpcdl.stack.publish import publish
    from tests.make.releases import plan_build

    def say(what):
        print(what, file=sys.stderr)

    try:
        built = build(plan_build(stack_site), say)
    except MissingPrerequisite as lack:
        # What fails for another reason is a defect, and must not look like a missing package.
        pytest.skip(f"no release can be built here: {lack.message}")
    publish(stack_site, built.id, say=say)
    yield built
    _forget_old(stack_site, built)


def _forget_old(site, newest):
    """Keep the few newest releases: sources change often, and each takes room.

    A young one may be that of another checkout, whose tests run now.
    """
    from hpcdl.stack.publish import overview

    for row in overview(site)[:-_KEPT]:
        folder = site.paths.prefix / "releases" / row["id"]
        with suppress(FileNotFoundError):  # another worker may be at the same one
            old = time.time() - folder.stat().st_mtime > _YOUNG
            if old and row["id"] != newest.id and not row["current"]:
                shutil.rmtree(folder, ignore_errors=True)


def bill(release):
    """Components of its CycloneDX file, which the library's own judge takes."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text = (release.root / "sbom.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    return json.loads(text)["components"]

"""Jobs: a request is a `JobSpec`; here are its script, and what refuses it."""

from pathlib import Path

import pytest

from hpcdl.jobs.script import render_script
from hpcdl.jobs.spec import JobSpec, Module, check_spec
from hpcdl.system.errors import BadInput

QUICK = str(Path(__file__).with_name("quick.yaml"))
"""The job file of jobs that are not checked first."""


def script(site, partition="p100", module=None, **asked):
    """The script of a job on a site; without a module it loads none."""
    return render_script(site, JobSpec(partition, **asked), module or Module(()))


def refusal(partition="p100", **asked):
    """What a person reads about a job that is refused."""
    with pytest.raises(BadInput) as caught:
        check_spec(JobSpec(partition, **asked))
    return caught.value.render()

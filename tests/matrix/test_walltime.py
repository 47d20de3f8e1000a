"""The signal before the time is up, requeueing and its cap: begun first, looked at last.

Only then is slurmctld killed: it forgets what happened to jobs in the last seconds.
"""

from hpcdl.cluster import processes
from hpcdl.cluster.status import of_nodes
from hpcdl.site import load_site
from tests.make.sites import up
from tests.matrix.test_rootfs import mounts
from tests.waiting import wait_for


def test_the_signal_before_the_time_is_up_leads_to_a_requeue_that_finishes(machine, slow_jobs):
    ended = slow_jobs[machine.name, "walltime"].end(400)
    assert (ended.state, ended.restarts) == ("COMPLETED", 1), ended.said
    assert ended.log.count("run 0") == 4, ended.log
    assert ended.log.count("writes a checkpoint") == 4
    assert ended.log.count("run 1") == 4


def test_requeueing_has_a_cap(machine, slow_jobs):
    ended = slow_jobs[machine.name, "capped"].end(400)
    assert (ended.state, ended.exit_code, ended.restarts) == ("FAILED", 75, 1), ended.said


def test_up_starts_again_what_was_killed(machine):
    daemons = machine.state.processes
    before = mounts()
    processes.end([daemons["slurmctld"], daemons["p100-01"]])
    again = up(load_site(machine.state.site_file), directory=machine.state.directory)
    wait_for(lambda: set(of_nodes(again, "%T").values()) <= {"idle", "mixed", "allocated"})
    assert again.slurm_version == str(machine.release)
    assert mounts() == before

"""The signal before the time is up, requeueing and its cap: begun first, looked at last."""


def test_the_signal_before_the_time_is_up_leads_to_a_requeue_that_finishes(machine, slow_jobs):
    ended = slow_jobs[machine.name, "walltime"].end(400)
    assert (ended.state, ended.restarts) == ("COMPLETED", 1), ended.said
    assert ended.log.count("run 0") == 4, ended.log
    assert ended.log.count("writes a checkpoint") == 4
    assert ended.log.count("run 1") == 4


def test_requeueing_has_a_cap(machine, slow_jobs):
    ended = slow_jobs[machine.name, "capped"].end(400)
    assert (ended.state, ended.exit_code, ended.restarts) == ("FAILED", 75, 1), ended.said

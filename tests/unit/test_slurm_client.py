"""Slurm's commands are called alike whoever calls; their answers, and machines, are told apart."""

import os
import re
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

from hpcdl.facts import PROOFS, path
from hpcdl.regress.references import WIDEST
from hpcdl.slurm import client, once, parse
from hpcdl.slurm.execution import CLUSTER, PROFILES, SINGLE_NODE, current, current_or_cluster
from hpcdl.slurm.rules import SEVERITIES, SlurmRelease, all_rules, known_releases, mpi_plugins, rule
from hpcdl.system.errors import BadInput, HpcdlError, MissingPrerequisite
from hpcdl.system.run import CommandFailed
from tests.unit import slurm_output as said


@pytest.fixture
def command(monkeypatch, tmp_path):
    """Puts a command of this body first on PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def write(name, body):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)

    return write


@pytest.mark.parametrize("name", ["SQUEUE_USERS", "SINFO_PARTITION", "SLURM_JOB_ID"])
def test_no_default_of_the_user_hides_a_job_or_forms_a_time(command, monkeypatch, tmp_path, name):
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    command("scontrol", 'echo "ClusterName = $SLURM_TIME_FORMAT"')
    assert client.config() == {"ClusterName": "standard"}
    monkeypatch.setenv(name, "7")
    hidden = 'case "$*" in *--all*) ;; *) exit 1;; esac'  # a partition may be (Hidden=YES)
    command("squeue", f'{hidden}; echo JOBID; echo "${{{name}:-64}}"')
    assert client.own_jobs() == {64}
    command("sbatch", f'echo "${{{name}:-64}}"')
    kept = 64 if name.startswith("SLURM_") else 7
    assert once.submit(tmp_path / "job.sh", token="t") == kept, "a job has what its user set"


def test_the_line_of_a_cluster_s_name_is_no_job(command):
    command("squeue", "printf 'CLUSTER: one\\nJOBID\\n7\\n'")
    assert client.own_jobs() == {7}
    command("squeue", "printf 'CLUSTER: one\\nJOBID\\n7\\n\\nCLUSTER: two\\nJOBID\\n8\\n'")
    with pytest.raises(MissingPrerequisite, match="unexpected output from"):
        client.own_jobs()


_SQUEUE = """\
case "$*" in
*--Format=*) {ends};;
*) for option; do form=${{option#--format=}}; done
   mark=${{form%%>*}}
   printf '%s>' "$mark"; echo JOBID
   for id in 7 8; do
     state=COMPLETED; [ $id = 8 ] && state=RUNNING
     line=$(echo "$form" | sed "s/%A/$id/; s/%T/$state/; s/%F/$id/; s/%[A-Za-z]/N\\/A/g")
     printf '%s\\n' "$line"
   done;;
esac
"""
_ENDS = "echo JOBID EXIT_CODE RESTARTS; echo 7 3:0 2; echo 8 0 1"
_MARK = 'm=$(echo "$*" | grep -o "[|][0-9a-f]*[|]"); for ids; do :; done'
"""What sacct is asked to put between fields, and the last argument."""


def squeue(command, ends):
    """Of two jobs, one that has ended and one that runs; their ends are told by `ends`."""
    command("squeue", _SQUEUE.format(ends=ends))
    command("sacct", "exit 1")


def test_how_a_job_ended_is_told_by_the_second_look(command):
    squeue(command, _ENDS)
    queue = [(one.id, one.state, one.exit_code, one.restarts) for one in client.queue()]
    assert queue == [(7, "COMPLETED", 3, 2), (8, "RUNNING", 0, 1)]
    assert client.job(7).exit_code == 3
    # Whose end nobody told did not end well.
    squeue(command, "echo JOBID EXIT_CODE RESTARTS; echo 8 0 1")
    assert [one.id for one in client.queue()] == [8]
    with pytest.raises(client.SlurmAway):
        client.job(7)
    fields = dict.fromkeys(parse.ACCOUNTING_FIELDS.split(","), "x")
    fields |= {"JobIDRaw": "7", "State": "FAILED", "ExitCode": "3:0"}
    command("sacct", f'{_MARK}; echo "{"${m}".join(fields.values())}"')
    found = client.job(7)
    assert (found.state, found.exit_code) == ("FAILED", 3)


def test_a_job_that_another_cluster_of_the_federation_runs_is_that_cluster_s(command):
    body = _SQUEUE.replace("for id in 7 8; do", "for id in 8 7 8; do")
    body = body.replace("state=COMPLETED; [ $id = 8 ]", "state=REVOKED; [ $((n += 1)) = 3 ]")
    command("squeue", body.format(ends=_ENDS))
    assert [(one.id, one.state) for one in client.queue()] == [(7, "REVOKED"), (8, "RUNNING")]


def test_accounting_tells_tokens_of_jobs_that_slurmctld_forgot(command):
    tokens = [once.new_token() for _ in range(3)]
    lines = [
        f"7|sbatch --parsable /w/{tokens[0]}.sh {tokens[0]}",
        "8|sbatch a|b.sh",
        f"9_[0-3]|sbatch --comment={tokens[2]} /w/{tokens[1]}.sh {tokens[1]}",
        f"10|sbatch {tokens[2]}.sh x",
    ]
    command("sacct", "\n".join(f"echo '{line}'" for line in lines))
    assert once.accounted(tokens) == {tokens[0]: (7,), tokens[1]: (9,)}
    command("sacct", "echo 'Invalid field requested: SubmitLine' >&2; exit 1")  # 20.11
    assert once.accounted(tokens) == {}


@pytest.mark.parametrize(
    ("said", "error"),
    [("Socket timed out on send/recv operation", client.SlurmAway), ("what", CommandFailed)],
)
def test_a_second_look_that_fails_is_no_exit_code_0(command, said, error):
    squeue(command, f"echo 'squeue: error: {said}' >&2; exit 1")
    with pytest.raises(error):
        client.queue()
    squeue(command, "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert client.job(7) is None


def test_a_cluster_whose_file_is_gone_is_said_at_once(command, monkeypatch, tmp_path):
    command("squeue", "exit 0")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "gone.conf"))
    with pytest.raises(client.SlurmAway) as caught:
        client.ask(["squeue"])
    assert list(caught.value.details) == [
        f"SLURM_CONF names {tmp_path}/gone.conf, which is not there"
    ]


def test_a_slow_answer_is_announced(command, monkeypatch, capsys):
    monkeypatch.setattr(client, "_SLOW_SECONDS", 0.0)
    command("squeue", "sleep 2.5")
    client.ask(["squeue"])
    assert capsys.readouterr().err == "note: squeue has not answered yet; it gets 30 s\n"


def test_a_user_without_a_name_is_asked_about_by_number(command, monkeypatch):
    monkeypatch.setattr(client.os, "getuid", lambda: 4_123_456)
    command("scontrol", "printf 'ClusterName = x\\nPrivateData = jobs\\n'")
    command("sacctmgr", 'case "$*" in *" 4123456 "*) echo Operator;; esac')
    assert client.sees_all_jobs()


_GONE = "scancel: error: Kill job error on job id 7: Invalid job id specified"
_ENDED = "scancel: error: Kill job error on job id 8: Job/step already completing or completed"


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (_GONE, None),
        (_ENDED, None),
        (f"{_GONE}\n{_ENDED}", None),
        (
            f"{_GONE}\nscancel: error: Kill job error on job id 8: Access/permission denied",
            CommandFailed,
        ),
        ("", CommandFailed),
        ("scancel: error: Unable to contact slurm controller (connect failure)", client.SlurmAway),
    ],
)
def test_to_cancel_what_has_ended_is_no_error_and_any_other_refusal_is_told(command, said, error):
    command("scancel", f"echo '{said}' >&2; exit 1" if said else "exit 1")
    with pytest.raises(error) if error else nullcontext():
        client.cancel([7, 8])


def test_a_job_that_would_wait_for_nodes_is_not_refused_and_any_other_is(command, tmp_path):
    """What `sbatch --test-only` answers: no to what can never run, not to what has to wait."""
    for why in (
        "Requested node configuration is not available",
        "Requested nodes are busy",
        "Required node not available (down, drained or reserved)",
    ):
        command("sbatch", f'echo "allocation failure: {why}" >&2; exit 1')
        client.would_run(tmp_path / "job.sh")
    command("sbatch", 'echo "allocation failure: Invalid account or so" >&2; exit 1')
    with pytest.raises(BadInput) as caught:
        client.would_run(tmp_path / "job.sh")
    assert caught.value.details == ("Invalid account or so",)


@pytest.mark.parametrize("said", ["", "hello", "Name=x", "\x1b[31mred", "<html>503</html>"])
def test_an_answer_that_is_none_is_no_empty_cluster(command, said, hpcdl, tmp_path):
    for name in ("scontrol", "sinfo", "srun", "squeue"):
        command(name, f"printf '%s\\n' '{said}'")
    for ask in (
        client.version,
        client.config,
        client.nodes,
        client.partitions,
        client.queue,
        client.mpi_plugins,
    ):
        with pytest.raises(MissingPrerequisite, match="unexpected output from"):
            ask()
    file = tmp_path / "site.yaml"
    for words in (["init", "--output", str(file)], ["check", "--site", "embedded"]):
        err = hpcdl("site", *words, code=3).err
        assert "unexpected output from" in err
        assert "\x1b" not in err
    assert not file.exists()


def test_a_cluster_without_a_partition_is_no_site(command, hpcdl):
    none = "node) echo No nodes in the system;; partition) echo No partitions in the system;;"
    command("scontrol", f'case $2 in config) echo "ClusterName = x";; {none} esac')
    command("sinfo", "echo slurm-wlm 22.05.8")
    command("srun", "echo none")
    assert "Slurm shows no partition here" in hpcdl("site", "init", code=3).err


def test_who_cancelled_many_jobs_is_asked_in_parts_and_never_holds_up(command, monkeypatch):
    end = "|CANCELLED by 7|3:0|p100|n1|2026-01-01|2026-01-01|2026-01-01|1:00|"
    line = "${ids%%,*}" + end.replace("|", "${m}") + "a|b"
    command("sacct", f'echo >>"$0.asked"; {_MARK}; echo "{line}"; echo "of another|line"')
    jobs = range(1, 30_001)
    told = client.accounted(jobs)
    assert list(told) == list(range(1, 30_001, 5000))
    assert {(one.exit_code, one.name) for one in told.values()} == {(3, "a|b")}
    cancelled = {job: said.job(id=job, state="CANCELLED") for job in jobs[::2]}
    found = client.with_accounting(cancelled, jobs)
    assert [job for job in found if found[job].cancelled_by == 7] == [*range(1, 30_001, 5000)]
    assert len(Path(f"{shutil.which('sacct')}.asked").read_text()) == 12, "six parts, twice"
    monkeypatch.setattr(client, "_ANSWER_SECONDS", 0.2)
    command("sacct", "sleep 9")
    assert client.with_accounting({}, [1]) == {}


ROOT = Path(__file__).resolve().parents[2]
FILES = [*(ROOT / "hpcdl").rglob("*.py"), *(ROOT / "reframe_checks").glob("*.py")]


def test_nothing_else_asks_which_kind_of_machine_it_is():
    asks = re.compile(r"one_machine|shares_cores|is_emulated|config_overrides\" in")
    found = [str(path.relative_to(ROOT)) for path in FILES if asks.search(path.read_text())]
    assert found == ["hpcdl/slurm/execution.py"]


def test_a_slurm_says_itself_which_profile_it_has(command, monkeypatch):
    command("scontrol", 'echo "ClusterName = x"; echo "SlurmdParameters = $SAID"')
    for answer, profile in (("config_overrides", SINGLE_NODE), ("(null)", CLUSTER)):
        monkeypatch.setenv("SAID", answer)
        assert current() is profile
    command("scontrol", "exit 1")
    with pytest.raises(HpcdlError):
        current()
    assert current_or_cluster() is CLUSTER


def test_chance_is_as_wide_as_the_widest_bound_of_a_reference():
    assert (CLUSTER.margin, CLUSTER.serial) == (0.0, False)
    assert (SINGLE_NODE.margin, SINGLE_NODE.serial) == (WIDEST, True)
    assert list(PROFILES) == ["cluster", "single-node"]


@pytest.mark.parametrize(
    ("code", "kind"), [(1, BadInput), (255, BadInput), (137, once.Unconfirmed)]
)
def test_what_sbatch_itself_cannot_read_is_refused_and_not_unconfirmed(
    command, tmp_path, monkeypatch, code, kind
):
    """It ends with 255 for `--mail-type=x`, before anything is sent; 128 + n is a signal's."""
    command("sbatch", f"echo 'sbatch: error: Invalid --mail-type' >&2; exit {code}")
    monkeypatch.setattr(once, "by_token", lambda tokens: {})
    monkeypatch.setattr(once, "_LATE_SECONDS", 0)
    (tmp_path / "job.sh").write_text("#!/bin/bash\n")
    with pytest.raises(kind):
        once.submit(tmp_path / "job.sh", (), token=once.new_token())


# Slurm's rules by release: the data is whole, and spans mean what they say.


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("22.05", "22.05"),
        ("22.05.8", "22.05.8"),
        (" 20.11.4\n", "20.11.4"),
        ("slurm 24.11.5", "24.11.5"),
        ("slurm-wlm 22.05.8", "22.05.8"),
        ("26.05.0rc1", "26.05.0"),
        ("22.05.8-4+deb12u2", "22.05.8"),
    ],
)
def test_a_release_is_read_as_people_and_sinfo_write_it(text, shown):
    assert str(SlurmRelease.parse(text)) == shown


@pytest.mark.parametrize("text", ["", "22", "22.5", "v22.05", "two", "\uff12\uff12.05", "22.05\0"])
def test_what_is_no_release_is_refused_by_name(text):
    with pytest.raises(BadInput, match="is no Slurm release"):
        SlurmRelease.parse(text)


def test_point_releases_compare_as_numbers_and_a_series_is_its_newest():
    order = ["20.11.2", "20.11.10", "20.11", "21.08.0", "21.08.5", "21.08", "26.05"]
    assert sorted(map(SlurmRelease.parse, reversed(order))) == [
        SlurmRelease.parse(text) for text in order
    ]


@pytest.mark.parametrize(
    ("rule_id", "holds", "holds_not"),
    [
        ("cpus-per-task-lost", ["22.05", "22.05.0", "23.02.8"], ["21.08", "23.11", "23.11.0"]),
        ("exact-implied-once", ["21.08.5"], ["21.08.4", "21.08", "21.08.6"]),
        ("steps-exclusive", ["20.11.0", "20.11.2"], ["20.11.3", "20.11"]),
        ("gpu-flag-pair", ["26.05", "26.05.0", "26.11"], ["25.11", "25.11.8"]),
        ("gpu-flag-twice", ["20.11", "25.11"], ["26.05", "26.05.0"]),
        ("ntasks-per-gpu-pends", ["25.05.0"], ["25.05.1", "24.11"]),
    ],
)
def test_a_rule_holds_from_since_up_to_but_without_until(rule_id, holds, holds_not):
    assert [
        text for text in holds + holds_not if rule(rule_id).holds(SlurmRelease.parse(text))
    ] == holds


def test_every_rule_is_whole_and_has_its_source():
    for one in all_rules():
        assert re.fullmatch(r"[a-z][a-z0-9-]+", one.id)
        assert one.severity in SEVERITIES
        assert one.proof in PROOFS
        assert min(map(len, (one.title, one.consequence, one.fix, one.source))) > 5, one.id
        assert not one.title.endswith("."), one.id
        since, until = one.span
        assert since is None or until is None or since < until, one.id


def test_ids_are_unique_and_edges_lie_within_the_known_releases():
    assert len({one.id for one in all_rules()}) == len(all_rules())
    with pytest.raises(BadInput) as caught:
        rule("gpu-flag-pear")
    assert "gpu-flag-pair" in caught.value.hint
    first, *_, last = known_releases()
    edges = [edge for one in all_rules() for edge in one.span if edge]
    assert all(
        SlurmRelease.parse(f"{first}.0") <= edge <= SlurmRelease.parse(last) for edge in edges
    )


def test_pmix_plugins_come_and_go_with_releases():
    assert "pmix_v1" in mpi_plugins("21.08")
    assert "pmix_v1" not in mpi_plugins("22.05")
    assert {"none", "pmi2", "pmix", "pmix_v5"} <= set(mpi_plugins("24.11"))


def test_no_text_ends_where_yaml_sees_a_comment():
    text = path("slurm_rules").read_text()
    lines = re.findall(r"^\s*(?:title|consequence|fix|source):.*", text, re.MULTILINE)
    assert len(lines) > 100
    assert [line for line in lines if re.match(r"\s*\w+: [^\"'#{\[]*\w\s+#", line)] == []

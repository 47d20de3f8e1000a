"""The script in a real bash, with stand-ins for srun and scontrol: signals, codes, values."""

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hpcdl.cli import main
from hpcdl.jobs import JobSpec, Module, render_script, submission, sweep
from hpcdl.jobs.script import VALUES, ArrayOf, as_shell
from hpcdl.jobs.spec import check_spec, looks_secret
from hpcdl.jobs.sweep import plan, request_of
from hpcdl.slurm import client, once
from hpcdl.system.errors import BadInput
from hpcdl.system.files import write_atomic
from hpcdl.system.run import run
from tests.make.sites import shipped, takes_every_job
from tests.strangers import STRANGER, as_root
from tests.waiting import wait_for

# srun as far as the script can tell: it takes options, runs the program, and hands signals on.
SRUN = """#!/bin/bash
echo "srun $*" >>"$STANDIN/calls"
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""
SCONTROL = """#!/bin/bash
echo "scontrol $*" >>"$STANDIN/calls"
exit "${SCONTROL_CODE:-0}"
"""
SLEEP = '#!/bin/bash\n(( ${1%.*} >= 5 )) || exec /bin/sleep "$@"\n'
SITE = shipped("embedded")
NONE = Module(())


class Job:
    """A rendered script and the directory in which it runs."""

    def __init__(self, folder, *program, site=SITE, array=None, module=NONE, **asked):
        self.folder = folder
        self.put(srun=SRUN, scontrol=SCONTROL, sleep=SLEEP)
        asked = {"program": program, "job_dir": folder / "job", "preflight": False, **asked}
        spec = JobSpec("p100", **asked)
        script = render_script(site, spec, module, array)
        (folder / "job.sh").write_bytes(script.text.encode(errors="surrogateescape"))
        if spec.environment:
            values = as_shell(spec.environment)
            write_atomic(folder / "job" / VALUES, values, mode=0o600)

    def put(self, **commands):
        """Put commands first on the job's PATH."""
        for name, text in commands.items():
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o755)

    def start(self, **env):
        own = {
            "PATH": f"{self.folder}:{os.environ['PATH']}",
            "STANDIN": str(self.folder),
            "SLURM_JOB_ID": "4711",
            "HOME": str(self.folder),
        }
        # A batch script's standard input is nobody's terminal.
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(["/bin/bash", self.folder / "job.sh"], env={**own, **env}, **pipes)

    def run(self, **env):
        process = self.start(**env)
        out, err = process.communicate(timeout=20)
        return process.returncode, out, err

    @property
    def calls(self):
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def requeues(self):
        return sum(call == "scontrol requeue 4711" for call in self.calls)

    @property
    def kept_code(self):
        return (self.folder / "job" / "exit_code").read_text().strip()


# What scripts call that an older hpcdl wrote: they are queued while hpcdl is upgraded.
OLDER = (
    """hpcdl preflight judge --world=1 --tasks-per-node=1 --cpus-per-task=1 --gpus-per-node=0 \\
  --fabric=infiniband --nvlink "--scratch=/tmp" \\
  preflight.jsonl -- --mpi=none --cpus-per-task=1 --kill-on-bad-exit=1 & wait "$!"
""",
    """srun --mpi=none --cpus-per-task=1 --kill-on-bad-exit=1 \\
  hpcdl preflight probe --transport=. --scratch=/tmp >preflight.jsonl & wait "$!" || exit
hpcdl preflight judge --world=1 --tasks-per-node=1 --cpus-per-task=1 --memory-mb=1000 \\
  --fabric=unknown --nvlink --scratch=/tmp preflight.jsonl
""",
)


@pytest.mark.parametrize("text", OLDER)
def test_scripts_that_an_older_hpcdl_wrote_pass_the_preflight(tmp_path, text):
    job = Job(tmp_path, "true")
    job.put(**{"job.sh": f"#!/bin/bash\ncd {tmp_path}\n{text}"})
    code, out, err = job.run(PATH=f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert (code, err) == (0, b"")
    assert b"rank" in out


def signalled(job, sent, up, **env):
    """The exit code of a job that gets a signal once a file exists."""
    process = job.start(**env)
    wait_for(up.exists)
    process.send_signal(getattr(signal, sent))
    return process.wait(30)


def program(up, on_usr2="exit 75"):
    """Says that it is up, and on a signal does what is asked of it.

    Without one it lasts longer than any machine takes to send it.
    """
    lasts = "for i in {1..1000}; do /bin/sleep 0.02; done"
    return ["bash", "-c", f"trap '{on_usr2}' USR2; trap 'exit 5' TERM; touch {up}; {lasts}"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        *((["bash", "-c", f"exit {code}"], code) for code in (0, 1, 2, 5, 100, 127, 139, 255)),
        (["bash", "-c", "kill -SEGV $$"], 128 + signal.SIGSEGV),
        (["/no/such/program"], 127),
    ],
)
def test_the_job_ends_with_the_programs_own_exit_code(tmp_path, words, code):
    job = Job(tmp_path, *words)
    assert (job.run()[0], job.requeues) == (code, 0)


@pytest.mark.parametrize(("restarts", "requeued"), [("0", 1), ("4", 1), ("5", 0), ("6", 0)])
def test_75_puts_the_job_back_into_the_queue_up_to_a_cap(tmp_path, restarts, requeued):
    job = Job(tmp_path, "bash", "-c", "exit 75")
    code, out, _ = job.run(SLURM_RESTART_COUNT=restarts)
    assert (code, job.requeues) == (75, requeued)
    assert (f"requeue {int(restarts) + 1} of at most 5".encode() in out) == requeued


def test_a_task_of_an_array_is_requeued_alone(tmp_path):
    """The last task to start has the id of the array: by that, Slurm would run all of it again."""
    (tmp_path / "arguments").write_text(f"{tmp_path}/point bash -c 'exit 75'\n" * 3)
    job = Job(tmp_path, "x", array=ArrayOf(3, tmp_path / "arguments"))
    assert job.run(SLURM_ARRAY_JOB_ID="4711", SLURM_ARRAY_TASK_ID="2")[0] == 75
    assert [call for call in job.calls if "requeue" in call] == ["scontrol requeue 4711_2"]


def test_a_requeue_that_slurm_refuses_still_ends_with_75(tmp_path):
    job = Job(tmp_path, "bash", "-c", "exit 75")
    start = time.monotonic()
    assert job.run(SCONTROL_CODE="1")[0] == 75
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    ("sent", "on_usr2", "code", "requeues"),
    [
        ("SIGUSR2", "exit 75", 75, 1),
        ("SIGTERM", "exit 75", 5, 0),
        # The first wait gives 128 + n; a program that goes on decides the code itself.
        *(("SIGUSR2", f"/bin/sleep 0.1; exit {code}", code, 0) for code in (0, 1, 127, 139)),
    ],
)
def test_a_signal_reaches_ranks_whose_code_counts(tmp_path, sent, on_usr2, code, requeues):
    job = Job(tmp_path, *program(tmp_path / "up", on_usr2))
    assert (signalled(job, sent, tmp_path / "up"), job.requeues) == (code, requeues)


def test_both_signals_after_each_other_reach_the_ranks(tmp_path):
    process = Job(tmp_path, *program(tmp_path / "up", f"touch {tmp_path}/usr2")).start()
    for sent, when in ((signal.SIGUSR2, "up"), (signal.SIGTERM, "usr2")):
        wait_for((tmp_path / when).exists)
        process.send_signal(sent)
    assert process.wait(10) == 5


@pytest.mark.parametrize(("sent", "code", "requeues"), [("SIGUSR2", 75, 1), ("SIGTERM", 5, 0)])
def test_a_signal_before_the_ranks_begin_ends_the_job_at_once(tmp_path, sent, code, requeues):
    slow = tmp_path / "init"
    loads = f"touch {tmp_path}/loading\nuntil [ -e {tmp_path}/sent ]; do /bin/sleep 0.01; done\n"
    slow.write_text(f"{loads}module() {{ :; }}\n")
    site = replace(SITE, paths=replace(SITE.paths, lmod_init=slow))
    job = Job(tmp_path, "true", site=site, module=Module(("tensorflow",)))
    process = job.start()
    wait_for((tmp_path / "loading").exists)
    process.send_signal(getattr(signal, sent))
    (tmp_path / "sent").touch()
    assert process.wait(10) == code
    assert job.requeues == requeues
    assert not any(call.startswith("srun") for call in job.calls)


# One step after the other, as Slurm does where a step takes whole nodes.
BUSY_SRUN = """#!/bin/bash
exec 9>"$STANDIN/nodes"; flock 9
while [[ $1 == --* ]]; do shift; done
trap 'kill "$!"' TERM
"$@" 9>&- & wait "$!"
"""
STAGE = """#!/bin/bash
touch "$STANDIN/staging"
for _ in {1..150}; do /bin/sleep 0.1; done
touch "$STANDIN/staged"
"""


@pytest.mark.parametrize(("sent", "code", "requeues"), [("SIGUSR2", 75, 1), ("SIGTERM", 5, 0)])
def test_a_signal_while_data_is_staged_ends_the_staging(tmp_path, sent, code, requeues):
    job = Job(tmp_path, "true", data=str(tmp_path), stage=True, nodes=2)
    job.put(srun=BUSY_SRUN, hpcdl=STAGE)
    found = signalled(job, sent, tmp_path / "staging", SLURM_CLUSTER_NAME="embedded")
    assert (found, job.requeues) == (code, requeues)
    assert not (tmp_path / "staged").exists()


def test_a_signal_while_the_job_ends_leaves_nothing_behind(tmp_path):
    """scancel ends the steps first: this shell may be told when it cleans up already."""
    job = Job(tmp_path, "false", data=str(tmp_path), stage=True)
    told = '[[ $* != *-4711-* ]] || kill "$PPID"\nexec /bin/rm "$@"'
    job.put(hpcdl='#!/bin/bash\nmkdir -p "${@: -1}"\n', rm=f"#!/bin/bash\n{told}\n")
    scratch = tmp_path / "scratch"
    text = (tmp_path / "job.sh").read_text().replace('"/tmp/hpcdl-', f'"{scratch}/hpcdl-')
    (tmp_path / "job.sh").write_text(text)
    assert job.run()[0] == 1
    assert (scratch.is_dir(), list(scratch.iterdir())) == (True, [])
    assert job.kept_code == "1"


@pytest.mark.parametrize("init", ["exit 1\n", "module() { [[ $1 != load ]]; }\n", None])
def test_modules_that_do_not_load_end_the_job_with_its_own_code(tmp_path, init):
    file = tmp_path / "init"
    if init is not None:
        file.write_text(init.replace("exit", "return"))
    site = replace(SITE, paths=replace(SITE.paths, lmod_init=file))
    job = Job(tmp_path, "true", site=site, module=Module(("tensorflow",)))
    assert (job.run()[0], job.kept_code) == (20, "20")
    assert not any(call.startswith("srun") for call in job.calls)


@pytest.mark.parametrize(("hpcdl", "code"), [("exit 21", 21), ("exit 0", 0)])
def test_a_failed_preflight_ends_its_chain(tmp_path, hpcdl, code):
    job = Job(tmp_path, "true", preflight=True, chain=2)
    job.put(hpcdl=f"#!/bin/bash\n{hpcdl}\n")
    assert (job.run()[0], job.kept_code) == (code, str(code))
    assert b"the chain ends" in job.run()[2]


def test_the_job_works_in_its_own_directory(tmp_path):
    job = Job(tmp_path, "bash", "-c", 'pwd; echo "$HPCDL_JOB_DIR"')
    assert job.run()[1].decode().splitlines() == [str(tmp_path / "job")] * 2


def test_a_directory_that_cannot_be_made_ends_the_job_before_it_wastes_time(tmp_path):
    (tmp_path / "job").write_text("a file")
    job = Job(tmp_path, "true")
    assert (job.run()[0], job.calls) == (3, [])


def test_what_another_job_left_does_not_reach_the_step(tmp_path):
    left = (
        "SLURM_NTASKS_PER_GPU=1 SLURM_MEM_PER_NODE=3 SLURM_CPU_BIND=mask_cpu:1 SBATCH_PARTITION=x "
        "SRUN_CPUS_PER_TASK=7 SLURM_GPUS_PER_TASK=1 SLURM_CPUS_PER_TASK=4 SLURM_NTASKS=8 "
        "SLURM_EXPORT_ENV=NONE"
    )
    left = dict(pair.split("=") for pair in left.split())
    seen = Job(tmp_path, "env").run(**left)[1].decode()
    found = {line.partition("=")[0] for line in seen.splitlines()}
    assert not found & (left.keys() - {"SLURM_CPUS_PER_TASK", "SLURM_NTASKS", "SLURM_EXPORT_ENV"})
    assert {"SLURM_CPUS_PER_TASK", "SLURM_NTASKS"} <= found
    assert "SLURM_EXPORT_ENV=ALL" in seen


ARGUMENT = st.binary(max_size=40).map(
    lambda data: data.replace(b"\0", b"").decode(errors="surrogateescape")
) | st.text(alphabet="$`\"'\\!*?[]{}()<>|&;#~=: \n-a\u2028", max_size=10)


_WORDS = r"-n --help - a'b a\"b $HOME $(id) `id` !! ~ * a=b a;b a&b #a {a,b} %s \ \' é 😀"
AWKWARD = [*_WORDS.split(), "", "a b", "a\nb", "a\n", "\x01a", "\x1b[31m", "\x1f", "\x7f", "\r\n"]
AWKWARD += ["\u2028", "\x85", "\u202e", "\udcff", "'\n'", "x" * 99_999, "'" * 9999, "\n" * 9999]


@settings(max_examples=15)
@example(AWKWARD, AWKWARD[-4])
@given(st.lists(ARGUMENT, max_size=6), ARGUMENT)
def test_any_argument_and_any_value_arrive_byte_for_byte(tmp_path_factory, words, value):
    show = 'printf "%s\\0" "$VALUE" "$@"'
    folder = tmp_path_factory.mktemp("job")
    job = Job(folder, "bash", "-c", show, "show", *words, environment={"VALUE": value})
    code, out, err = job.run()
    assert (code, err) == (0, b"")
    assert out.decode(errors="surrogateescape").split("\0")[:-1] == [value, *words]
    assert "\x1f" not in (folder / "job.sh").read_bytes().decode(errors="surrogateescape")


def test_a_colon_alone_is_no_other_component_of_the_step(tmp_path):
    job = Job(tmp_path, "printf", "%s\\n", "a", ":", "b c")
    assert job.run()[1].decode().splitlines() == ["a", ":", "b c"]
    assert ":" not in job.calls[0].split(" exec ")[0].split()


# srun that is no shell: shells set some variables anew.
PLAIN_SRUN = """#!/usr/bin/python3 -SE
import os, sys
words = sys.argv[1:]
while words[0].startswith("--"):
    del words[0]
os.execvp(words[0], words)
"""
SHOW = "import os, sys; print('\\0'.join(os.environ.get(name, '?') for name in sys.argv[1:]))"


def special_variables():
    """Every variable that this bash sets or treats by itself, and those of the script."""
    own = run(["bash", "-c", "compgen -v"], base_env={}).stdout.split()
    known = (
        "BASH_ARGV0 BASH_COMPAT BASH_ENV BASH_XTRACEFD CDPATH COLUMNS COMPREPLY COPROC ENV FIGNORE "
        "EXECIGNORE FUNCNEST GLOBIGNORE HISTFILE HISTSIZE HOME IGNOREEOF INPUTRC LANG LC_ALL MAIL "
        "MAPFILE OPTERR POSIXLY_CORRECT PROMPT_COMMAND PS3 PS4 READLINE_LINE REPLY TMOUT TMPDIR TZ "
        "SLURM_JOB_ID SLURM_RESTART_COUNT HPCDL_JOB_DIR hpcdl_step hpcdl_code code a x_1"
    )
    return sorted({*own, *known.split()} - {"PATH"})


def taken(name, value):
    """Whether a variable may have a value; else the refusal names it."""
    try:
        check_spec(JobSpec("p100", environment={name: value}))
    except BadInput as fault:
        return name not in fault.message
    return True


def test_every_variable_arrives_or_is_refused_by_name(tmp_path):
    value = f"a[$(touch {tmp_path}/ran)] x"
    names = [name for name in special_variables() if taken(name, value)]
    assert {"HOME", "PS4", "POSIXLY_CORRECT", "a"} <= set(names)
    show = ["/usr/bin/python3", "-SE", "-c", SHOW, *names]
    job = Job(tmp_path, *show, environment=dict.fromkeys(names, value))
    job.put(srun=PLAIN_SRUN)
    code, out, _ = job.run()
    assert code == 0
    found = out.decode().splitlines()[-1].split("\0")
    assert {name: text for name, text in zip(names, found, strict=True) if text != value} == {}
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("words", [["--job-dir", "out"], ["--job-dir=out"]])
def test_a_training_that_writes_its_result_elsewhere_is_no_failure(tmp_path, words):
    for argv, code in ((["hpcdl", "train", *words], 0), (["hpcdl", "train"], 1)):
        job = Job(tmp_path, *argv)
        job.put(hpcdl="#!/bin/sh\nexit 0\n")
        assert job.run()[0] == code


# Submitting leaves a job with its record, or nothing; values of --env are for the owner alone.

SECRET = "hunter2 $HOME `id` 'quoted'"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A site whose Slurm takes every job and never says how it ended."""
    numbers = iter(range(7, 99))
    monkeypatch.setattr(once, "submit", lambda *_, token: next(numbers))
    takes_every_job(monkeypatch)
    monkeypatch.setattr(client, "queue", lambda **_: ())
    return shipped(work=tmp_path / "work")


def everything_else(folder):
    """The text of all files of a directory but those of values."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return "".join(one.read_text() for one in files if not one.name.endswith(VALUES))


def test_a_value_is_in_one_file_for_its_owner_alone(site):
    spec = JobSpec("p100", environment={"API_KEY": SECRET}, chain=2)
    job = submission.submit(site, spec, Module(()))
    kept = job.folder / VALUES
    assert kept.stat().st_mode & 0o777 == 0o600
    assert "hunter2" in kept.read_text()
    assert "hunter2" not in everything_else(site.paths.work)
    shown = subprocess.run(
        ["bash", "-c", f'source {kept}; printf %s "$API_KEY"'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == SECRET


def test_arrays_of_a_sweep_keep_theirs(site):
    base = JobSpec("p100", environment={"API_KEY": SECRET, "LR": "0.5"})
    folder = sweep.sweep_directory(site, "s")

    def submit(base, *gpus):
        points = plan(site, base, {"gpus": gpus})
        modules = {"p100": Module(())}
        sweep.submit(site, folder, points, modules, None, request=request_of(base))

    submit(base, "1", "2")
    kept = sorted(folder.glob("*.environment"))
    assert [one.name for one in kept] == ["array-000.environment", "array-001.environment"]
    assert all(one.stat().st_mode & 0o777 == 0o600 for one in kept)
    assert "hunter2" not in everything_else(site.paths.work)
    submit(replace(base, environment={"API_KEY": "renewed", "LR": "0.5"}), "1", "2", "4")
    assert (folder / "sweep.json").stat().st_mode & 0o777 == 0o600
    other = replace(base, environment={"API_KEY": "renewed", "LR": "0.7"})
    with pytest.raises(BadInput, match="begun with other jobs") as caught:
        submit(other, "1", "2", "4")
    assert re.fullmatch("environment: .*'0.5'}, now .*'0.7'}", caught.value.details[0])


@as_root
def test_another_user_reads_no_value_and_plants_none(site):
    job = submission.submit(site, JobSpec("p100", environment={"API_KEY": SECRET}), Module(()))
    kept = job.folder / VALUES
    read = subprocess.run(["cat", kept], user=STRANGER, group="nogroup", capture_output=True)
    assert read.returncode != 0
    planted = kept.read_text().replace("hunter2", "planted")
    kept.unlink()
    kept.write_text(planted)
    os.chown(kept, 65534, 65534)
    text = job.script.read_text()
    lines = re.search(r"(?ms)^if \[\[ -O .*?^done\n", text)[0]
    done = subprocess.run(
        ["bash", "-c", "hpcdl_leave() { exit $1; }; " + lines],
        env={"PATH": "/bin"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3, "a file of another user is not run: the value is missing"
    assert "API_KEY has no value" in done.stderr


def render(*words):
    return main(["job", "render", "--site", "embedded", "--no-module", *words])


def test_a_rendered_script_has_names_and_a_secret_on_the_command_line_is_told(capsys, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "hunter2")
    said = "--env WANDB_API_KEY` takes it from your environment"
    for words, told in (("LR=hunter2", ""), ("WANDB_API_KEY", ""), ("WANDB_API_KEY=hunter2", said)):
        assert render("--env", words) == 0
        out, err = capsys.readouterr()
        assert f"\nfor hpcdl_name in {words.partition('=')[0]}; do\n" in out
        assert "hunter2" not in out + err
        assert told in err
        assert bool(told) == bool(err)
    assert render("--env", "NOT_SET_ANYWHERE") == 2


def test_names_tell_secrets():
    secret = "API_KEY X_API_KEY HF_TOKEN AWS_SECRET_ACCESS_KEY DB_PASSWORD PGPASSWORD api_key"
    plain = "LR OMP_NUM_THREADS KEYBOARD MONKEY PATH BYPASS"
    found = filter(looks_secret, f"{secret} {plain}".split())
    assert list(found) == secret.split()


@pytest.fixture
def own(three_generations, tmp_path):
    paths = replace(three_generations.paths, work=tmp_path / "work")
    return replace(three_generations, paths=paths)


@pytest.fixture
def cancelled(monkeypatch):
    """Jobs taken back; what is submitted gets the numbers 7, 8, ..."""
    gone = []
    numbers = iter(range(7, 99))
    takes_every_job(monkeypatch)
    monkeypatch.setattr(once, "submit", lambda *_, token: next(numbers))
    monkeypatch.setattr(once, "by_token", lambda _: {})
    monkeypatch.setattr(client, "cancel", gone.extend)
    return gone


def test_a_job_sh_of_others_is_neither_written_over_nor_removed(own, tmp_path, cancelled):
    mine = tmp_path / "job.sh"
    mine.write_text("echo mine\n")
    with pytest.raises(BadInput, match=r"job\.sh already"):
        submission.submit(own, JobSpec("p100", job_dir=tmp_path), Module(()))
    assert mine.read_text() == "echo mine\n"


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_before_the_record_takes_the_job_back(own, tmp_path, cancelled, monkeypatch, sig):
    """Between Slurm's answer and the record."""
    queued = []

    def submit(_, options, *, token):
        queued.append(7 + len(queued))
        os.kill(os.getpid(), sig)
        return queued[-1]

    monkeypatch.setattr(once, "submit", submit)
    with pytest.raises(KeyboardInterrupt):
        submission.submit(own, JobSpec("p100", job_dir=tmp_path / "j", chain=3), Module(()))
    assert queued == cancelled == [7]
    assert not (tmp_path / "j").exists()

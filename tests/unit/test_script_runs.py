"""The script in a real bash, with stand-ins for srun and scontrol: signals, codes, values."""

import os
import signal
import subprocess
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdl.jobs import JobSpec, Module, environment, render_script
from hpcdl.jobs.script import ArrayOf
from hpcdl.jobs.spec import check_spec
from hpcdl.system.errors import BadInput
from hpcdl.system.run import run
from tests.unit.conftest import shipped
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
        environment.keep(folder / "job" / environment.NAME, spec.environment)

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
    job = Job(tmp_path, array=ArrayOf(3, tmp_path / "arguments", tmp_path))
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
    left = {
        "SLURM_NTASKS_PER_GPU": "1",
        "SLURM_MEM_PER_NODE": "3",
        "SLURM_CPU_BIND": "mask_cpu:0x1",
        "SBATCH_PARTITION": "x",
        "SRUN_CPUS_PER_TASK": "7",
        "SLURM_GPUS_PER_TASK": "1",
        "SLURM_CPUS_PER_TASK": "4",
        "SLURM_NTASKS": "8",
        "SLURM_EXPORT_ENV": "NONE",
    }
    seen = Job(tmp_path, "env").run(**left)[1].decode()
    found = {line.partition("=")[0] for line in seen.splitlines()}
    assert not found & (left.keys() - {"SLURM_CPUS_PER_TASK", "SLURM_NTASKS", "SLURM_EXPORT_ENV"})
    assert {"SLURM_CPUS_PER_TASK", "SLURM_NTASKS"} <= found
    assert "SLURM_EXPORT_ENV=ALL" in seen


ARGUMENT = st.binary(max_size=40).map(
    lambda data: data.replace(b"\0", b"").decode(errors="surrogateescape")
) | st.text(alphabet="$`\"'\\!*?[]{}()<>|&;#~=: \n-a\u2028", max_size=10)


@settings(max_examples=15)
@given(st.lists(ARGUMENT, max_size=6), ARGUMENT)
def test_any_argument_and_any_value_arrive_byte_for_byte(tmp_path_factory, words, value):
    show = 'printf "%s\\0" "$VALUE" "$@"'
    folder = tmp_path_factory.mktemp("job")
    job = Job(folder, "bash", "-c", show, "show", *words, environment={"VALUE": value})
    code, out, err = job.run()
    assert (code, err) == (0, b"")
    assert out.decode(errors="surrogateescape").split("\0")[:-1] == [value, *words]


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

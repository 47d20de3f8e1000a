"""Queues a script exactly once, whatever becomes of the answer.

Who submits makes a token and writes it to disk, then calls `submit`, then writes down the job's id.
Killed in between, or without a readable answer, the token on disk finds the job: in Slurm's queue,
in accounting, or by the link that the job leaves in its directory when it starts. sbatch dies with
the process that called it.

That link is DIRECTORY/.job-TOKEN, to the job's own id. A link is made once, whole, by whoever comes
first: a second job of the same token ends there, and so does each job of a token that was revoked,
whose link leads to 0. So a submission runs once or never, however late it is.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from hpcdl.slurm import client, parse
from hpcdl.slurm.client import SlurmAway, ask, parsed, refuse
from hpcdl.system.errors import BadInput, HpcdlError
from hpcdl.system.files import explain_os_errors
from hpcdl.system.trust import require_own

# The messages of sbatch that mean that no controller was reached: nothing was queued.
_NOT_SENT = (
    "connect failure",
    "Connection refused",
    "Could not establish a configuration source",
    "SLURM_CONF names",
)
_TOKEN = re.compile(r"(hpcdl-[0-9a-f]{32})(?:\.sh)?\s*\Z")
_LATE_SECONDS = 10.0
_KILLED = 128
# How sbatch ends for an option whose value it cannot read, such as --mail-type=x: nothing is sent.
_BAD_OPTION = 255
_REVOKED = "0"
_MOMENT_SECONDS = 5.0
SETTLED_SECONDS = 600.0
"""Seconds after which a submission that Slurm has no record of will never be queued.

sbatch tries for 120 s in all (MAX_RETRIES, sbatch.c), and its parent's death ends it. What it sent
may wait in slurmctld's queue, or for a backup controller (SlurmctldTimeout, 120 s), but is refused
once its munge credential is 300 s old (munged(8), --ttl): 540 s, and a minute for clocks. Who
decides so also revokes the token, so that nothing depends on the figure.
"""


class Unconfirmed(SlurmAway):
    """It is unknown whether Slurm took a job; look for the job's token."""


def new_token() -> str:
    """The random text that identifies a submission, drawn before it is made."""
    return f"hpcdl-{secrets.token_hex(16)}"


def submit(script: Path, options: Sequence[str] = (), *, token: str) -> int:
    """Queue a script and give its job id.

    The token is in the path of the script, a link that stays beside it, and its argument: users'
    comments and names stay theirs, no site's plug-in sets a job's Command, and squeue shows its
    path in every release (arguments until 23.02). The caller has written the token to disk before;
    so a job whose number does not arrive here is found by it, now or later.

    Raises:
        BadInput: Slurm refuses it; its message is shown.
        Unconfirmed: it may be queued now or soon: `by_token` finds out.
        MissingPrerequisite: there is no sbatch, it reached no slurmctld, or the script is in a
            directory of another user, who could replace it; nothing is queued.
    """
    require_own(script.parent)
    fault: HpcdlError
    link = script.with_name(f"{token}.sh")
    with explain_os_errors(link), suppress(FileExistsError):
        link.symlink_to(script.name)
    try:
        return _sbatch(link, options, token)
    except BadInput as refusal:
        fault, patience = refusal, 0.0
    except SlurmAway as away:
        if any(sign in line for line in away.details for sign in _NOT_SENT):
            raise
        fault, patience = unconfirmed(away.details), _LATE_SECONDS
    late = _look_for(token, patience)
    if late is None:
        if isinstance(fault, BadInput):
            link.unlink(missing_ok=True)
        raise fault
    return late


def _sbatch(script: Path, options: Sequence[str], token: str) -> int:
    argv = ["sbatch", "--parsable", *options, str(script), token]
    answer = ask(argv, check=False, tied=True)
    if answer.ok:
        with suppress(ValueError):  # the answer has a line of another program
            return parse.job_id(answer.stdout)
    elif 0 < answer.exit_code < _KILLED or answer.exit_code == _BAD_OPTION:
        refuse(answer, "Slurm did not take this job")
    raise unconfirmed((answer.stderr or answer.stdout).splitlines()[-3:])


def unconfirmed(details: Sequence[str] = ()) -> Unconfirmed:
    """The error where it is unknown whether a job is queued."""
    return Unconfirmed(
        "Slurm did not confirm the submission",
        details=details,
        hint="run the same command again: it looks for the job first, so that nothing is queued "
        "twice; `hpcdl job list` looks, too",
    )


def _look_for(token: str, seconds: float) -> int | None:
    """The job of a token, asked about for so long; None where there is none."""
    end = time.monotonic() + seconds
    while True:
        try:
            found = by_token({token}).get(token)
        except HpcdlError as fault:
            raise unconfirmed([fault.message, *fault.details]) from fault
        if found or time.monotonic() > end:
            return found[0] if found else None
        time.sleep(0.5)


def by_token(tokens: Collection[str]) -> dict[str, tuple[int, ...]]:
    """The jobs of this user that were submitted with these tokens, the oldest first.

    Only this user's: others may have read a token, and put it into a job of theirs. An array has
    one id.
    """
    if not tokens:
        return {}
    mark = secrets.token_hex(8)
    form = parse.marked_format(("%F", "%o"), mark)
    text = ask(["squeue", "--me", "--all", "--states=all", f"--format={form}"]).stdout
    rows = parsed(lambda output: parse.marked(output, mark), text, "squeue")
    return _told(rows, tokens)


def accounted(tokens: Collection[str]) -> dict[str, tuple[int, ...]]:
    """`by_token` for jobs that slurmctld forgot: from accounting, possible since Slurm 21.08."""
    if not tokens or shutil.which("sacct") is None:
        return {}
    answer = ask(
        [
            "sacct",
            "--noheader",
            "--parsable2",
            "--allocations",
            f"--uid={os.getuid()}",
            "--starttime=now-7days",
            "--format=JobID,SubmitLine",
        ],
        check=False,
    )
    lines = (re.match(r"(\d+)[^|]*\|(.*)", line) for line in answer.stdout.splitlines())
    return _told([line.groups() for line in lines if line], tokens) if answer.ok else {}


def _told(rows: Iterable[Sequence[str]], tokens: Collection[str]) -> dict[str, tuple[int, ...]]:
    """The ids of rows of an id and a command, by the token that the command ends with."""
    found: dict[str, set[int]] = {}
    for number, command in rows:
        named = _TOKEN.search(command)
        if named and named.group(1) in tokens:
            found.setdefault(named.group(1), set()).add(int(number))
    return {token: tuple(sorted(ids)) for token, ids in found.items()}


# ---- recovered, or revoked ----


def _started(folder: Path, token: str) -> int | None:
    """The job that took a token; None where none did. A link of another user's says nothing."""
    link = folder / f".job-{token}"
    with suppress(OSError, ValueError):
        if link.lstat().st_uid == os.geteuid():
            return int(os.readlink(link)) or None  # noqa: PTH115 - no path
    return None


def revoke(folder: Path, token: str) -> int | None:
    """Let no job of this token run; the id of one that has begun already."""
    with explain_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            (folder / f".job-{token}").symlink_to(_REVOKED)
    return _started(folder, token)


def locate(submissions: Mapping[str, Sequence[Path]], since: float | None = None) -> dict[str, int]:
    """The jobs of tokens, each with the directories that its job or its tasks would run in.

    Of several jobs of one token, all but the one that counts are cancelled. With `since` (epoch),
    when sbatch was called last, what a killed one sent is given a moment to arrive.

    Raises SlurmAway: Slurm does not answer, so it is unknown.
    """
    found = _located(submissions)
    if since is not None and len(found) < len(submissions):
        time.sleep(min(_MOMENT_SECONDS, max(0.0, since + _MOMENT_SECONDS - time.time())))
        found = _located(submissions)
    return found


def _located(submissions: Mapping[str, Sequence[Path]]) -> dict[str, int]:
    job_ids: dict[str, int] = {}
    queued = by_token(submissions)
    queued |= accounted(submissions.keys() - queued)
    for token, folders in submissions.items():
        ids = queued.get(token, ())
        began = next((job for folder in folders if (job := _started(folder, token))), None)
        if began or ids:
            job_ids[token] = began or ids[0]
            client.cancel([job for job in ids if job != job_ids[token]])
    return job_ids


def links(folder: Path) -> Iterator[tuple[Path, Path]]:
    """This user's links of a directory, and where they lead."""
    with suppress(OSError):
        for entry in sorted(folder.iterdir()):
            with suppress(OSError):
                if entry.is_symlink() and entry.lstat().st_uid == os.geteuid():
                    yield entry, folder / os.readlink(entry)  # noqa: PTH115 - no path


def embedded_cluster() -> str:
    """The embedded cluster whose Slurm is asked, as 8 digits: its job ids are its own; else ''."""
    cluster = Path(os.environ.get("SLURM_CONF") or "/").parent.parent
    try:
        mark = (cluster / ".hpcdl-cluster").read_bytes()  # with the random part of its name
    except OSError:
        return ""
    return sha256(bytes(cluster) + mark).hexdigest()[:8]

"""Variables that a user gives a job: their values are kept in a file that only the user can read.

A script is read by others: it is in a shared directory, Slurm keeps a copy, people mail it. So it
holds the names, and reads the values from `environment` in the job's directory (of an array:
`array-NNN.environment` of its sweep): mode 0600, lines `export NAME=VALUE` of bash. The file stays
as long as the directory, as a requeued job, the next of a chain and every task of an array read it
again. A script that was only rendered has no such file: it takes the values from where `sbatch` is
run, or from the file where somebody writes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from hpcdl.system.text import bash_word

NAME = "environment"
_SECRET = re.compile(
    r"(\A|_)(API|ACCESS|AUTH|PRIVATE|SECRET|SIGNING|ENCRYPTION)?_?(KEY|KEYS|TOKEN|TOKENS|SECRET|"
    r"SECRETS|PASSWORD|PASSWD|PASSPHRASE|PASSCODE|PWD|PASS|CREDENTIAL|CREDENTIALS|AUTH|COOKIE)\Z"
    r"|SECRET|PASSW|APIKEY|TOKEN|CREDENTIAL|PRIVATE_?KEY",
    re.IGNORECASE,
)


def looks_secret(name: str) -> bool:
    """Whether a variable's name suggests a secret value."""
    return _SECRET.search(name) is not None


def as_shell(values: Mapping[str, str]) -> bytes:
    """Return the file's content: shell assignments."""
    lines = (f"export {name}={bash_word(value)}\n" for name, value in values.items())
    return "".join(lines).encode(errors="surrogateescape")

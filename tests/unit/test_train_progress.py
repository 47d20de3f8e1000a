"""Progress as a person sees it on a real terminal, with Rich and without, and as a log keeps it."""

import json
import os
import pty
import subprocess
import sys

import pytest

PROGRAM = """
import sys
from pathlib import Path
sys.modules.update({name: None for name in sys.argv[2:]})
from hpcdl.train.train_report import Reporter
reporter = Reporter(Path(sys.argv[1]), 50, 0.0, silent=False)
reporter.say("[start-up] 1.0 s")
for step in range(1, 51):
    reporter.step(step, 0, 1.0 / step, 64)
reporter.end(50, 0, 0.02, "completed")
print("afterwards")
"""


def on_terminal(folder, *absent):
    """What a terminal gets from a run whose both outputs are one."""
    above, below = pty.openpty()
    argv = [sys.executable, "-c", PROGRAM, str(folder), *absent]
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
    process = subprocess.Popen(argv, stdin=below, stdout=below, stderr=below, env=env)
    os.close(below)
    text = b""
    try:
        while data := os.read(above, 4096):
            text += data
    except OSError:
        pass  # the other end is closed
    finally:
        os.close(above)
    assert process.wait() == 0, text
    return text.decode()


def test_a_terminal_with_rich_shows_a_bar(tmp_path):
    pytest.importorskip("rich", reason="the extra 'progress' is not installed")
    text = on_terminal(tmp_path)
    for shown in ("━", "50/50", "0.0200", "[start-up] 1.0 s"):
        assert shown in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l"), "the cursor can be seen"
    assert text.rstrip().endswith("afterwards")


def test_a_terminal_without_rich_shows_lines_as_a_log_does(tmp_path):
    text = on_terminal(tmp_path, "rich", "rich.console")
    assert "epoch 1  step 50/50  loss 0.0200" in text
    assert "━" not in text
    assert "\x1b" not in text


def test_a_log_gets_plain_lines_and_imports_no_rich(tmp_path):
    argv = [sys.executable, "-c", PROGRAM + "assert 'rich' not in sys.modules", str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "[start-up] 1.0 s"
    assert lines[1].startswith("epoch 1  step 1/50  loss 1.0000")
    assert lines[-2].startswith("epoch 1  step 50/50  loss 0.0200")
    assert "\x1b" not in done.stdout
    kept = json.loads((tmp_path / "progress.json").read_text())
    assert (kept["step"], kept["outcome"]["status"]) == (50, "completed")

"""The history of all nights survives crashes, and the gate answers from it."""

import errno
import json
import multiprocessing
import os
import random
import re
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from dataclasses import asdict, replace
from datetime import datetime, timedelta, timezone
from itertools import product
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hpcdl.cli import main
from hpcdl.regress.answer import gate_text
from hpcdl.regress.exchange import Incoming, as_json_lines, of_outcome
from hpcdl.regress.gate import ask
from hpcdl.regress.history import Result, open_history, refuse_without_locks
from hpcdl.regress.run_directory import RunDirectory
from hpcdl.regress.runner import CheckOutcome
from hpcdl.regress.verdict import WHOLE_RUN, Verdict
from hpcdl.results.faults import Status
from hpcdl.slurm.execution import SINGLE_NODE
from hpcdl.system import files
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.files import file_system, locks_hold
from hpcdl.system.resources import home
from tests.make import results
from tests.make.results import METRIC

NOW = datetime(2026, 6, 1, tzinfo=timezone.utc)


def result(night=0, value=1000.0, **changes):
    own = {"run": f"run-{night}", "case_name": "mlp", "metric": "images_per_second"}
    own |= {"release": "r1", "job": night + 1}
    return results.result(NOW - timedelta(days=100 - night), value, **own | changes)


def nights(factor=1.0, start=200):
    levels = [1000 * (factor if night >= start else 1) for night in range(100)]
    own = {"run": "run-{}".format, "case_name": "mlp", "metric": "images_per_second"}
    own |= {
        "release": lambda night: "r2" if night >= start else "r1",
        "job": lambda night: night + 1,
    }
    return list(results.series(levels, NOW - timedelta(days=1), seed=5, spread=0.01, **own))


@pytest.fixture
def file(tmp_path):
    return tmp_path / "history.sqlite"


def held(file):
    with open_history(file) as history:
        return list(history.results())


def add(file, results, site=""):
    with open_history(file, site) as history:
        return history.add(results)


def importing(text, folder):
    """The results of a file with this text."""
    (folder / "incoming").write_text(text)
    return list(Incoming(folder / "incoming"))


def command(file, *words):
    with mock.patch.dict(os.environ, HPCDL_HISTORY=str(file)):
        return main(["check", "history", *words[:1], "--site", "embedded", *words[1:]])


def test_the_same_run_is_added_once_with_a_job_and_without(file):
    lost = [result(3, job=None, metric="", value=None, status="ERROR")]
    assert [add(file, [*nights(), *lost]) for _ in range(2)] == [101, 0]


def test_what_the_command_exports_is_all_that_it_prints_and_can_be_imported(file, capsys):
    add(file, nights())
    assert command(file, "export") == 0
    copy = file.with_name("copy")
    copy.write_text(capsys.readouterr().out)
    assert len(copy.read_text().splitlines()) == 100
    for count in (100, 0):
        assert command(file.with_name("other.sqlite"), "import", str(copy)) == 0
        assert f"{count} new results" in capsys.readouterr().out


OWN_CHECK = """
import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import parameter, performance_function, sanity_function

@rfm.simple_test
class bw(rfm.RunOnlyRegressionTest):
    size = parameter([1, 2])
    valid_systems, valid_prog_environs = ["*"], ["*"]
    executable, executable_opts = "echo", ["rate: 950 late: 9"]
    reference = {"*": {"rate": (1000, -0.1, None, "GB/s"), "late": (5, None, 0.1, "s")}}

    @sanity_function
    def ok(self):
        return sn.assert_found("rate", self.stdout)

    @performance_function("GB/s")
    def rate(self):
        return sn.extractsingle(r"rate: (\\d+)", self.stdout, 1, float)

    @performance_function("s")
    def late(self):
        return sn.extractsingle(r"late: (\\d+)", self.stdout, 1, float)
"""
SYSTEMS = """
local = {"scheduler": "local", "launcher": "local", "environs": ["gnu"]}
site_configuration = {
    "systems": [
        {"name": name, "hostnames": [".*"], "partitions": [{"name": "gpu", **local}]}
        for name in ("embedded", "other")
    ],
    "environments": [{"name": "gnu"}],
}
"""


def test_what_reframe_keeps_by_itself_is_imported_alike(tmp_path, file):
    """Reports, a results database and performance logs of two systems, by the real ReFrame."""
    pytest.importorskip("reframe")
    (tmp_path / "bw.py").write_text(OWN_CHECK)
    (tmp_path / "settings.py").write_text(SYSTEMS)
    where = {"RFM_SQLITE_DB_FILE": f"{tmp_path}/results.db", "RFM_ENABLE_RESULTS_STORAGE": "1"}
    program = ["-c", "from reframe.frontend.cli import main; main()", "-C", "settings.py"]
    for system in ("embedded", "other"):
        words = ["-c", "bw.py", "-r", "--perflogdir=perflogs", f"--report-file={system}.json"]
        subprocess.run(
            [sys.executable, *program, f"--system={system}", *words],
            cwd=tmp_path,
            env={**os.environ, **where},
            capture_output=True,
        )
    told = []
    for names in (("embedded.json", "other.json"), ("results.db",), ("perflogs",)):
        copy = file.with_name(f"{names[0]}.sqlite")
        assert command(copy, "import", *(str(tmp_path / name) for name in names)) == 0
        told.append(
            sorted((r.case_name, r.partition, r.metric, r.value, r.status) for r in held(copy))
        )
    assert told[0] == told[1] == told[2]
    assert told[0][:4] == [
        ("size=1", "gpu", "late", 9.0, "FAIL"),
        ("size=1", "gpu", "rate", 950.0, "PASS"),
        ("size=1", "other:gpu", "late", 9.0, "FAIL"),
        ("size=1", "other:gpu", "rate", 950.0, "PASS"),
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("job_completion_time|x\na|b\n", "no performance log of ReFrame"),
        ("job_completion_time|x\na|b|c\n", "line 2: 3 fields, and its first line names 2"),
        ("SQLite format 3\0 and then nothing of it", "no results database of ReFrame"),
    ],
)
def test_what_only_looks_like_reframes_is_refused(tmp_path, text, why):
    with pytest.raises(BadInput, match=why):
        importing(text, tmp_path)


@pytest.mark.parametrize("schema", [99, None, "x", float("nan"), []])
def test_results_of_another_schema_are_not_taken_for_ours(tmp_path, schema):
    with pytest.raises(BadInput, match="its schema is '"):
        importing(line(schema=schema) + "\n", tmp_path)


@example(result(3, reason='a "b", c\nd\r\n\u2028\x00 \N{SNOWMAN},', metric="", value=None))
@given(
    st.builds(
        Result,
        run=st.text(min_size=1),
        time=st.just(NOW.isoformat()),
        status=st.text(min_size=1),
        check_name=st.text(min_size=1),
        waived=st.booleans(),
        job=st.none() | st.integers(0, 2**40),
        value=st.none() | st.floats(1e-100, 1e100) | st.floats(-1e100, -1e-100) | st.just(0.0),
        low=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    )
)
def test_any_result_comes_back_as_it_was(one):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "lines")
        file.write_text("\n".join([*as_json_lines([one]), ""]))
        (back,) = Incoming(file)
    texts = {
        key: v.encode("utf-8", "replace").decode() if isinstance(v, str) else v
        for key, v in asdict(one).items()
    }
    assert asdict(back) == texts


def test_a_file_cut_in_the_middle_gives_what_is_whole_and_says_so(file, tmp_path, capsys):
    whole = "\n".join([*as_json_lines(nights()), ""])
    cut = tmp_path / "cut"
    cut.write_text(whole[: len(whole) * 2 // 3])
    assert command(file, "import", str(cut)) == 6
    assert "line 6" in capsys.readouterr().err
    assert 60 <= len(held(file)) < 70
    cut.write_text(whole)
    assert command(file, "import", str(cut)) == 0
    assert held(file) == [replace(row, site="embedded") for row in nights()]


@pytest.mark.parametrize("bad", ["{broken", "[1]", "a,b"])
def test_a_line_that_is_no_result_adds_nothing_and_is_named(file, tmp_path, bad):
    lines = [*as_json_lines(nights())]
    lines[51] = bad
    (tmp_path / "broken").write_text("\n".join([*lines, ""]))
    with pytest.raises(BadInput, match="line 52"):
        add(file, Incoming(tmp_path / "broken"))
    assert held(file) == []


def test_a_lost_history_comes_back_from_the_folders_of_the_runs(tmp_path, file):
    folder = run_folder(
        tmp_path,
        "20260601-031000Z-ab12",
        driver="580.95.05",
        metrics=[METRIC],
        job={"id": 7, "nodes": "p100-01"},
    )
    stopped = tmp_path / "20260602-031000Z-cd34"
    stopped.mkdir()
    assert command(file, "import", str(stopped), str(folder)) == 0
    assert command(file, "import", str(stopped)) == command(file, "import") == 2
    (one,) = held(file)
    assert (one.run, one.job, one.value, one.driver) == (folder.name, 7, 90.5, "580.95.05")
    assert one.time == "2026-06-01T03:10:00+00:00"


def line(**changes):
    """A result as a line of JSON; what a result cannot hold is put into the line."""
    return json.dumps(asdict(result()) | changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (line(time="2026-06-01T02:00:00"), "lacks its offset from UTC"),
        (line(time="tonight"), "time 'tonight' is not like 2026-"),
        (line(time="0001-01-01T00:00:00+00:00"), "is no time of a run"),
        (line(job=99999999999999999999), "job does not fit into 64 bits"),
        (line(restarts=-(2**63) - 1), "restarts does not fit into 64 bits"),
        (line(value=float("inf")), "passes with a value that is not finite"),
        (line(reference=float("nan")), "reference is not finite"),
        (line(low=float("inf")), "low is not finite"),
        (line(high=float("nan")), "high is not finite"),
        (line(reason=["a", "list"]), "reason is no text"),
        ("[" * 100_000, "nested too deep"),
    ],
)
def test_a_line_that_no_history_may_hold_is_refused_with_its_reason(tmp_path, text, message):
    with pytest.raises(BadInput, match=f"line 2: .*{message}"):
        importing(f"{line()}\n{text}\n", tmp_path)


def test_every_time_of_an_import_is_told_in_utc_and_in_one_form(tmp_path):
    times = ["2026-06-01T02:00:00Z", "2026-06-01T04:00:00.500+02:00"]
    if sys.version_info >= (3, 11):
        times.append("20260601T020000+00:00")
    found = importing("".join(f"{line(time=time)}\n" for time in times), tmp_path)
    assert {one.time for one in found} == {"2026-06-01T02:00:00+00:00"}


def test_a_failed_measurement_and_an_open_bound_are_none(tmp_path):
    text = line(status="ERROR", value=float("nan"), high=float("inf"))
    (one,) = importing(f"{text}\n", tmp_path)
    assert (one.value, one.high) == (None, None)


def run_folder(tmp_path, name="99999999-999999-ab12", **changes):
    """A folder of a run with one verdict; by default named after no date."""
    one = results.verdict("ERROR", **{"case": "", "partition": None, "metrics": [], **changes})
    results.run_file(tmp_path / name, one)
    return tmp_path / name


@pytest.mark.parametrize("job", [{"id": 10**20}, {"id": "seven"}, {"id": 1, "restarts": 2**64}])
def test_a_verdict_that_no_history_may_hold_is_named(tmp_path, job):
    with pytest.raises(BadInput, match="verdict 1: no result"):
        list(Incoming(run_folder(tmp_path, job=job)))


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:100] + random.Random(1).randbytes(3900) + data[4000:],
        lambda data: data[: len(data) // 2],
        lambda _: b"date,value\n" * 1000,
    ],
)
def test_a_damaged_history_is_said_to_be_damaged(file, damage):
    add(file, nights())
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises((BadInput, MissingPrerequisite), match="history"):
        held(file)


def test_half_a_character_in_a_reason_stops_no_import_and_keeps_no_run_out(tmp_path, file):
    odd = Verdict("c", "", "p100", Status.ERROR, "half \udc80 of it", job={"id": "7"})
    outcome = CheckOutcome(RunDirectory(tmp_path), (odd,), 1.0)
    assert add(file, Incoming(run_folder(tmp_path, reason="half \ud800 of it"))) == 1
    assert add(file, of_outcome(outcome, NOW)) == 1
    assert {(one.reason, one.job) for one in held(file)} == {("half ? of it", j) for j in (None, 7)}


def add_until_killed(file, ready):
    """Add whole runs, then one that is never finished."""
    for number in range(3):
        add(file, (result(n, run=f"whole-{number}") for n in range(100)))

    def half():
        for night in range(50_000):  # more than SQLite keeps in memory: some of it is on the disk
            yield result(night % 100, run=f"half-{night}", reason="x" * 200)
        ready.send("in the middle")
        ready.recv()

    add(file, half())


def test_a_process_killed_in_the_middle_leaves_whole_runs_and_a_sound_file(file):
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    worker = context.Process(target=add_until_killed, args=(file, there))
    worker.start()
    assert here.poll(120)
    worker.kill()
    worker.join()
    assert {one.run for one in held(file)} == {"whole-0", "whole-1", "whole-2"}
    assert add(file, [result(0, run="after")]) == 1
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def add_many(file, part):
    for night in range(5):
        add(file, [result(night, run=f"{part}-{night}")])


def test_several_nights_at_once_lose_nothing(file):
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=add_many, args=(file, part)) for part in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert len(held(file)) == 20


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "gpfs", "beegfs"])
def test_a_file_system_without_dependable_locks_is_refused(tmp_path, kind):
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nserver:/x {tmp_path} {kind} rw 0 0\n")
    with pytest.raises(MissingPrerequisite, match=kind):
        refuse_without_locks(tmp_path / "h.sqlite", str(mounts))
    assert file_system(Path("/elsewhere/h"), str(mounts)) == "ext4"


@pytest.mark.parametrize("answer", [0, errno.ENOLCK, errno.EOPNOTSUPP])
def test_locks_that_do_not_hold_are_found_out(tmp_path, monkeypatch, answer):
    assert locks_hold(tmp_path)

    def careless(*_):
        if answer:
            raise OSError(answer, "as such a file system says")

    monkeypatch.setattr(files.fcntl, "fcntl", careless)
    with pytest.raises(MissingPrerequisite, match="locks do not hold"):
        refuse_without_locks(tmp_path / "h.sqlite")


@pytest.mark.parametrize("version", [3, 99])
def test_a_history_of_another_schema_is_not_touched(file, version):
    with sqlite3.connect(file) as connection:
        connection.execute(f"PRAGMA user_version={version}")
    before = file.read_bytes()
    with pytest.raises(BadInput, match=f"is of schema {version}"), open_history(file):
        pass
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    "words",
    [
        ("gate",),
        ("history", "show"),
        ("history", "export"),
        ("accept", "x", "--by", "Ada", "--because", "y"),
        ("report", "run", "--format", "html"),
    ],
)
def test_what_only_reads_makes_and_changes_no_file(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    verdicts = {"schema": 2, "run": "run", "verdicts": []}
    (tmp_path / "run" / "verdicts.json").write_text(json.dumps(verdicts))
    with closing(sqlite3.connect("other.db")) as other:
        other.execute("CREATE TABLE mine (x)")
    for name, text in {"empty": "", "my_job.sh": "#!/bin/sh\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o644)
    before = {path: (path.read_bytes(), path.stat().st_mode) for path in tmp_path.rglob("*.*")}
    for name in ("nope.db", "no/where.db", "empty", "my_job.sh", "other.db"):
        monkeypatch.setenv("HPCDL_HISTORY", name)
        status = main(["check", *words, "--site", "embedded"])
        assert status == 2 or name not in {"my_job.sh", "other.db"}, name
    (tmp_path / "page.html").unlink(missing_ok=True)
    assert {
        path: (path.read_bytes(), path.stat().st_mode) for path in tmp_path.rglob("*.*")
    } == before
    assert not (tmp_path / "no").exists()
    assert (tmp_path / "empty").read_bytes() == b""


def test_a_site_s_own_history_that_no_run_has_begun_is_empty_and_not_made(hpcdl):
    assert (
        "`hpcdl check run` starts one" in hpcdl("check", "gate", "--site", "embedded", code=1).out
    )
    assert not (home() / "history").exists()


def gate(file, results, **asked):
    with open_history(file) as history:
        history.add(results)
        return ask(history, now=NOW, **asked)


LAST = nights()[:-1]
WRONG = {
    "check_name": WHOLE_RUN,
    "case_name": "",
    "metric": "",
    "value": None,
    "status": "ERROR",
    "run": "wrong",
}
WEEKLY = [replace(one, check_name="weekly") for one in nights()]


@pytest.mark.parametrize(
    ("results", "said"),
    [
        pytest.param(nights(), "", id="healthy"),
        pytest.param(nights(0.5, start=99), "drop: .*release r1 -> r2", id="half-the-speed"),
        pytest.param(nights(0.94, start=96), "drop: -", id="within-the-bounds"),
        *(
            pytest.param([*LAST, result(99, status=status, reason="why")], f"{status}: why")
            for status in ("FAIL", "ERROR", "NO-REFERENCE", "STALE")
        ),
        pytest.param([*LAST, result(99, status="STALE", waived=True)], "", id="waived"),
        # A check that never gave a number: the gate ended with a traceback.
        pytest.param([result(99, None, status="ERROR", reason="lost")], "ERROR: lost", id="never"),
        pytest.param(nights()[:90], "old", id="stopped"),
        pytest.param([*nights(), result(50, metric="", value=None, status="ERROR")], "", id="was"),
        *(
            pytest.param([*nights(), result(98, partition=on, **WRONG)], "", id=f"next-run-{on}")
            for on in ("", "p100")
        ),
        *(
            pytest.param([result(99, partition=on, **WRONG)], "ERROR", id=f"whole-run-{on}")
            for on in ("", "p100")
        ),
        pytest.param([*nights(), *WEEKLY[:93:7]], "", id="weekly"),
        pytest.param(WEEKLY[:78:7], "old", id="three-weeks"),
        pytest.param(
            [replace(one, metric="startup_seconds", unit="s") for one in nights(0.5, start=80)],
            "",
            id="faster-start",
        ),
        # A change before the months that the gate looks at is the level now.
        pytest.param(
            [
                *(
                    replace(one, run=f"old-{one.run}", time=one.time.replace("2026", "2025"))
                    for one in nights()
                ),
                *nights(0.9, start=0),
            ],
            "",
            id="long-ago",
        ),
    ],
)
def test_the_gate_is_closed_by_what_speaks_against_the_cluster_alone(file, results, said):
    answer = gate(file, results)
    assert answer.open == (not said)
    found = [f"{one.kind}: {one.description}" for one in answer.findings]
    assert [bool(re.match(said, one)) for one in found] == [True] * bool(said)


def test_a_drop_does_not_hide_among_runs_on_changing_nodes(file):
    """Three runs a night on any of eight nodes, which differ by up to 15 %; -5 % since 6 nights."""
    rng, rows = random.Random(7), []
    for night, run in product(range(100), range(3)):
        node = rng.randrange(8)
        level = (1 - 0.15 * node / 7) * (0.95 if night >= 94 else 1)
        value = 1000 * level * (1 + 0.02 * rng.gauss(0, 1))
        job = {"run": f"r-{night}-{run}", "job": 3 * night + run, "nodes": f"n{node}"}
        rows.append(result(night, value, **job))
    (finding,) = gate(file, rows).findings
    assert finding.kind == "drop"


def test_a_change_that_is_not_sure_yet_is_a_warning_and_the_gate_stays_open(file):
    """Of 1,000 series at once; alone, the same nights are an alarm."""
    noise = random.Random(2)
    alone = gate(
        file,
        [
            replace(one, value=(one.value or 0) * (1 + 0.01 * noise.gauss(0, 1)))
            for one in nights(0.965, start=96)
        ],
    )
    among = gate(file, (replace(nights()[-1], check_name=f"other-{n}") for n in range(1000)))
    assert [one.kind for one in alone.findings] == ["drop"]
    assert among.open
    assert [one.kind for one in among.warnings] == ["not sure yet"]
    assert "not sure yet" in gate_text(among)


def test_a_series_that_gave_nothing_for_a_month_has_ended_and_is_named(file):
    renamed = [replace(one, check_name="renamed", status="FAIL") for one in nights()[:60]]
    answer = gate(file, [*nights(), *renamed])
    assert answer.open
    assert [series[0] for series in answer.ended] == ["renamed"]
    assert "ended, nothing for 30 days: renamed/" in gate_text(answer)
    assert not gate(file.with_name("old.sqlite"), renamed).open


def test_a_name_that_the_history_does_not_have_is_not_hidden_by_others(file):
    asked = {"partitions": ("p100", "cpu")}
    assert [one.description for one in gate(file, nights(), **asked).findings] == [
        "the history has no partition cpu"
    ]


def test_one_slow_node_closes_the_gate_and_is_named(file):
    rng = random.Random(2)
    each = [
        result(
            95 + n,
            1000 * (1 + 0.01 * rng.gauss(0, 1)) * (0.85 if node == 4 else 1),
            nodes=f"n{node}",
            job=1000 + 100 * n + node,
        )
        for n in range(5)
        for node in range(8)
    ]
    answer = gate(file, each)
    assert not answer.open
    assert "n4 is slower than the others" in [one.description for one in answer.findings]
    assert gate(file, [], execution=SINGLE_NODE).open, "emulated nodes differ by chance"


def test_a_gate_that_is_asked_about_nothing_stays_closed_and_says_why(file, hpcdl, monkeypatch):
    add(file, nights(), "embedded")
    monkeypatch.setenv("HPCDL_HISTORY", str(file))
    words = ["check", "gate", "--site", "embedded"]
    assert "none of the 1 in the history fits" in hpcdl(*words, "--partition", "v100", code=1).out
    assert main([*words, "--partition", "nowhere"]) == 2

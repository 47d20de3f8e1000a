"""What is exported is taken by the real Prometheus."""

import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from hpcdl.regress.answer import Finding, GateAnswer
from hpcdl.regress.formats import as_prometheus
from hpcdl.regress.identity import Series
from tests.make.results import METRIC, verdict
from tests.waiting import wait_for

SERIES = Series("bw", 'size="1"\\,x', "p100", "rate", "foss", "GB/s")
ANSWER = GateAnswer(
    3, (Finding(SERIES, "drop", "-5 %"),), 3, warnings=(Finding(SERIES, "not sure yet", "-2 %"),)
)


def run():
    same = {
        "check": "bw",
        "environment": "foss",
        "job": {"nodes": "p100-01"},
        "metrics": [METRIC | {"name": "rate", "unit": "GB/s", "better": "higher"}],
    }
    each = [
        verdict("FAIL", case=SERIES.case, **same),
        verdict("STALE", case="", waived=True, ok=True, **same),
    ]
    return {"site": "here", "time": time.time(), "seconds": 1.0, "verdicts": each}


def test_promtool_finds_nothing_wrong():
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (apt-get install prometheus)")
    words, text = ["promtool", "check", "metrics"], as_prometheus(run(), ANSWER)
    done = subprocess.run(words, input=text, text=True, capture_output=True, check=False)
    assert done.returncode in {0, 3}, done.stderr
    assert "error while linting" not in done.stderr


@pytest.fixture
def prometheus(tmp_path):
    """A real Prometheus that reads one export over HTTP; its address."""
    if shutil.which("prometheus") is None:
        pytest.skip("Prometheus is not installed (apt-get install prometheus)")
    text = as_prometheus(run(), ANSWER).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):  # the library's name for it
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "p.yml").write_text(
        "scrape_configs:\n- job_name: hpcdl\n  scrape_interval: 1s\n  static_configs:\n"
        f"  - targets: ['127.0.0.1:{server.server_port}']\n"
    )
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={tmp_path}/p.yml",
                f"--storage.tsdb.path={tmp_path}/db",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    yield f"http://127.0.0.1:{port}/api/v1/query?query="
    process.terminate()
    process.wait(30)
    server.shutdown()


def ask(address, expression):
    with urllib.request.urlopen(address + urllib.parse.quote(expression), timeout=10) as answer:
        return json.load(answer)["data"]["result"]


def test_a_real_prometheus_answers_what_was_exported(prometheus):
    def up():
        with suppress(OSError):
            return bool(ask(prometheus, "up == 1"))
        return False

    wait_for(up, 120)
    (gate,) = ask(prometheus, "hpcdl_check_gate_open")
    assert (gate["metric"]["site"], gate["value"][1]) == ("here", "0")
    (failed,) = ask(prometheus, 'sum(hpcdl_check_status{waived="false"} > bool 0)')
    assert failed["value"][1] == "1"
    (value,) = ask(prometheus, 'hpcdl_check_value{case!=""}')
    assert value["metric"]["case"] == SERIES.case

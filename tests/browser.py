"""A real browser for tests: headless Chromium, spoken to over two pipes (DevTools protocol).

No port is opened and no library is needed. `Page.open` waits until the page is idle; everything
the page asked of the network, printed, or broke with is kept.
"""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.npm import unpack

NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)
_WAIT = 60.0
_KEYS = {
    "Tab": (9, ""),
    "Enter": (13, "\r"),
    "ArrowLeft": (37, ""),
    "ArrowUp": (38, ""),
    "ArrowRight": (39, ""),
    "ArrowDown": (40, ""),
    "Home": (36, ""),
    "End": (35, ""),
    " ": (32, " "),
    "/": (191, "/"),
}


def axe_core(into):
    """The script of axe-core, the checker of WCAG that browsers use; HPCDL_AXE names one's own."""
    own = os.environ.get("HPCDL_AXE") or unpack("axe-core", "4.10.3", into) / "axe.min.js"
    return Path(own).read_text() + "; 0"


class Page:
    def __init__(self, receive, send):
        self._receive, self._send = receive, send
        self._left, self._count = b"", 0
        self.requests: list[str] = []
        self.errors: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session: str | None = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def open(self, url):
        self._loaded = False
        self.requests.clear()
        self.call("Page.navigate", url=url)
        deadline = time.monotonic() + _WAIT
        while not self._loaded:
            assert time.monotonic() < deadline, f"{url} did not load"
            self._take(self._message())
        self.settle()

    def settle(self):
        """Wait until what the page draws in its next frames is drawn."""
        self.do(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => "
            "setTimeout(done, 0))))"
        )

    def do(self, script):
        """The value of an expression in the page; promises are waited for."""
        said = self.call(
            "Runtime.evaluate",
            expression=script,
            returnByValue=True,
            awaitPromise=True,
            userGesture=True,
        )
        if "exceptionDetails" in said:
            raise AssertionError(f"{script}: {said['exceptionDetails']}")
        return said["result"].get("value")

    def size(self, width, height=900, *, phone=False):
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        self.settle()

    def prefer(self, colours):
        """What the person's system says of colours: light or dark."""
        feature = {"name": "prefers-color-scheme", "value": colours}
        self.call("Emulation.setEmulatedMedia", features=[feature])
        self.settle()

    def press(self, *keys):
        for key in keys:
            code, text = _KEYS.get(key, (ord(key.upper()[0]), key))
            common = {"key": key, "windowsVirtualKeyCode": code}
            self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
            self.call("Input.dispatchKeyEvent", type="keyUp", **common)
        self.settle()

    def picture(self, path, *, whole=False):
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def call(self, method, **values):
        return self._call(method, self._session, **values)

    def _call(self, method, session=None, **values):
        self._count += 1
        wanted = self._count
        message = {"id": wanted, "method": method, "params": values}
        if session:
            message["sessionId"] = session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == wanted:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._take(answer)

    def _message(self):
        while b"\0" not in self._left:
            data = os.read(self._receive, 1 << 20)
            assert data, "the browser went away"
            self._left += data
        text, _, self._left = self._left.partition(b"\0")
        return json.loads(text)

    def _take(self, event):
        name, values = event.get("method"), event.get("params", {})
        if name == "Page.loadEventFired":
            self._loaded = True
        elif name == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])
        elif name == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(values["exceptionDetails"]))
        elif name == "Log.entryAdded":
            self.errors.append(f"{values['entry']['level']}: {values['entry']['text']}")
        elif name == "Runtime.consoleAPICalled" and values["type"] in {"error", "warning"}:
            self.errors.append(json.dumps(values["args"]))


@contextmanager
def chromium():
    """A browser with one tab; it ends with the block. Skips where there is none."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("Chromium is not installed (apt-get install chromium)")
    to_browser, from_browser = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(prefix="hpcdl-browser-", ignore_cleanup_errors=True) as home:
        # The browser reads calls from descriptor 3 and writes answers to 4.
        words = [
            "bash",
            "-c",
            'exec "$@" 3<&"$IN" 4>&"$OUT"',
            "browser",
            program,
            *_FLAGS,
            f"--user-data-dir={home}",
        ]
        process = subprocess.Popen(
            words,
            env={**os.environ, "HOME": home, "IN": str(to_browser[0]), "OUT": str(from_browser[1])},
            pass_fds=(to_browser[0], from_browser[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser[0])
        os.close(from_browser[1])
        try:
            page = Page(from_browser[0], to_browser[1])
            yield page
            page._call("Browser.close")
            process.wait(_WAIT)
        finally:
            process.kill()
            process.wait()
            os.close(from_browser[0])
            os.close(to_browser[1])

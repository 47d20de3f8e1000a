"""Sends a notice as it is, as JSON, to a webhook, whose address is in a file of mode 0600.

As the command of a target in the file of `check gate --notify`:
`{kind: command, run: [python3, notify_webhook.py, ADDRESS-FILE]}`
"""

import sys
from pathlib import Path
from urllib.request import HTTPRedirectHandler, Request, build_opener


class NoRedirect(HTTPRedirectHandler):
    """A secret is sent to no other server."""

    def redirect_request(self, *_: object) -> None:
        """Follow none: the answer is an error with its code."""


url = Path(sys.argv[1]).read_text().strip()
request = Request(url, sys.stdin.buffer.read(), {"Content-Type": "application/json"})  # noqa: S310
build_opener(NoRedirect).open(request, timeout=10)

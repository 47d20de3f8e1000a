"""Sends a notice to Microsoft Teams, whose webhook's address is in a file of mode 0600.

As the command of a target in the file of `check night --notify`:
`{kind: command, run: [python3, notify_teams.py, ADDRESS-FILE]}`
"""

import json
import sys
from pathlib import Path
from urllib.request import Request, urlopen

notice = json.load(sys.stdin)
# The texts of a rich block are runs, in which Teams formats nothing and mentions nobody.
lines = [notice["subject"], *notice["lines"], notice["link"]]
runs = [[{"type": "TextRun", "text": line}] for line in lines if line]
blocks = [{"type": "RichTextBlock", "inlines": run} for run in runs]
card = {"type": "AdaptiveCard", "version": "1.4", "body": blocks}
attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
body = json.dumps({"type": "message", "attachments": [attachment]}).encode()
url = Path(sys.argv[1]).read_text().strip()
request = Request(url, body, {"Content-Type": "application/json"})  # noqa: S310
urlopen(request, timeout=10)  # noqa: S310 - the address is your own  # nosec B310

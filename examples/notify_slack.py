"""Sends a notice to Slack, whose webhook's address is in a file of mode 0600.

As the command of a target in the file of `check night --notify`:
`{kind: command, run: [python3, notify_slack.py, ADDRESS-FILE]}`
"""

import json
import sys
from html import escape
from pathlib import Path
from urllib.request import Request, urlopen

notice = json.load(sys.stdin)
# In a block of code Slack formats nothing and mentions nobody.
lines = escape("\n".join(notice["lines"]), quote=False).replace("`", "'")
text = f"{escape(notice['subject'], quote=False)}\n```\n{lines}\n```\n{notice['link']}"
url = Path(sys.argv[1]).read_text().strip()
request = Request(url, json.dumps({"text": text}).encode(), {"Content-Type": "application/json"})  # noqa: S310
urlopen(request, timeout=10)  # noqa: S310 - the address is your own  # nosec B310

"""Sends a notice to Mattermost, whose webhook's address is in a file of mode 0600.

As the command of a target in the file of `check night --notify`:
`{kind: command, run: [python3, notify_mattermost.py, ADDRESS-FILE]}`
"""

import json
import sys
from pathlib import Path
from urllib.request import Request, urlopen

notice = json.load(sys.stdin)
# In a block of code Mattermost formats nothing and mentions nobody.
lines = "\n".join([notice["subject"], *notice["lines"]]).replace("`", "'")
body = {"text": f"```\n{lines}\n```\n{notice['link']}"}
url = Path(sys.argv[1]).read_text().strip()
request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})  # noqa: S310
urlopen(request, timeout=10)  # noqa: S310 - the address is your own  # nosec B310

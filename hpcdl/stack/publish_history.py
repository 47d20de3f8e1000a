"""PREFIX/history.json: what was current and when, for `rollback` and for `gc`.

An event is written before its switch, so that a killed publish can be told from one that happened.
A damaged file is an error: to count it as empty would take every way back, and let `gc` remove
what a rollback may want.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from hpcdl.site import Site
from hpcdl.stack.dispatch import Event
from hpcdl.stack.release import current_id
from hpcdl.system.errors import CheckFailed
from hpcdl.system.files import clear_leftovers, write_json
from hpcdl.system.text import utc_now

_KEPT = 1000


def read_history(site: Site) -> list[Event]:
    """What was current, oldest first; without a file what is current now.

    The last event of a killed command may not have come to pass: where `current` is not what it
    says, it is left out.

    Raises:
        CheckFailed: the file is damaged; says how to continue.
    """
    path, current = _path(site), current_id(site)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        events = [Event.of(event) for event in data["events"]]
    except FileNotFoundError:
        return [Event("publish", current, "")] if current else []
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        raise CheckFailed(
            f"{path} is damaged, so nobody knows what was published: {str(fault)[:200]}",
            hint=f"restore it from a backup; without one `mv {path} {path}.broken`: then only "
            f"{current or 'what is published next'} counts as published, and `hpcdl stack rollback "
            "ID` still leads to any release that passed the gate",
        ) from fault
    happened = not events or events[-1].release == current
    return events if happened else events[:-1]


def add_event(site: Site, event: Event) -> None:
    """Note what is going to happen now; under the lock of publishes."""
    at = utc_now()
    events = [*read_history(site), replace(event, at=at)][-_KEPT:]
    clear_leftovers(_path(site))
    write_json(_path(site), {"schema": 1, "events": [one.as_data() for one in events]})


def _path(site: Site) -> Path:
    return site.paths.prefix / "history.json"

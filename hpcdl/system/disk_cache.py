"""Values that take long to make, kept under a digest of all that they are made from.

The digest covers contents, never times or names, so what is kept cannot be stale. Values are
plain, as JSON holds them. Whatever goes wrong here only means that a value is made again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpcdl import __version__
from hpcdl.system.errors import HpcdlError
from hpcdl.system.resources import cache

_KEPT = 50


def cached(kind: str, sources: Sequence[bytes | Path], make: Callable[[], Any]) -> Any:
    """What `make` gives, made once for the same sources (contents, or files that hold them).

    A failure of `make` is not kept.
    """
    digest = hashlib.sha256(__version__.encode())
    try:
        for source in sources:
            data = source if isinstance(source, bytes) else source.read_bytes()
            digest.update(b"%d:" % len(data) + data)
        path = cache(kind) / f"{digest.hexdigest()}.json"
    except (HpcdlError, OSError):
        return make()
    with suppress(OSError, ValueError):
        return json.loads(path.read_bytes())
    value = make()
    with suppress(HpcdlError, OSError):
        from hpcdl.system.files import write_json

        write_json(path, value)
        kept = sorted(path.parent.glob("*.json"), key=lambda file: file.stat().st_mtime)
        for old in kept[:-_KEPT]:
            old.unlink(missing_ok=True)
    return value

"""Waiting for what happens elsewhere, as long as it takes on a slow machine."""

import time


def wait_for(what, seconds=90):
    """What `what` gives, once it gives something that counts as true."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)
    return found

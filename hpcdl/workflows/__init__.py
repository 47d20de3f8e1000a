"""What joins rooms: a job with the published release, a check with its job, the studies.

Rooms on one floor do not know each other; a workflow takes a value from one and hands it to
the next.
"""

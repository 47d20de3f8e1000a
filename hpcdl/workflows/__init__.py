"""What joins packages: a job with the published release, a check with its job, the studies.

Packages of one layer do not import each other; a workflow takes a value from one and hands it to
the next.
"""

"""All that hpcdl knows of ReFrame, but for the public base class of checks.

`settings` writes ReFrame's settings, `process` knows its releases, starts it and reads its report;
inside ReFrame run `recorder`, which tells what was left out, and `backend`, the scheduler and the
launcher. ReFrame's Python API is the only source of facts: its log is for people.
"""

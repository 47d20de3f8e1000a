"""Nightly checks: ReFrame settings, references, verdicts, history and reports.

ReFrame runs the checks and keeps what each did. This package brings what a verdict that can be
trusted needs: layouts and launch lines as users get them (hpcdl.jobs), references with a
source, one status per check, and no way to pass silently. `backend` and `checkbase` are loaded
by ReFrame itself; everything else is plain Python and does not need it.
"""

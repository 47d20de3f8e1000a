"""Drills: every command that changes something, with a fault in the middle of it.

`make drill` runs them all and writes the table in docs/evidence/reliability.md. Each is a row of a
table in one of the modules here: the command, the fault, how often, and what must hold afterwards.
"""

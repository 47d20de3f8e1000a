"""The files of results: result.json, progress.json, verdicts.json, expectation.json.

Each has one schema (schemas/), which says its units, one reader and one writer (`records`), here
alone; job.json, which says what was asked, is of the family. `faults` are what a check finds.
Programs on compute nodes import this: nothing here needs more than Python to write a file.
"""

"""The report of a night and of all nights before it: one HTML file that needs no network.

`figures` turns results into plain values and text, without touching a file; `page` lays them
beside the night's verdicts into templates/report, whose figures.js draws what is in view from
those values. `files` alone reads: the scripts and logs that a reader may open.
"""

from hpcdl.regress.report.files import directory_of, read_files
from hpcdl.regress.report.page import night_page

__all__ = ["directory_of", "night_page", "read_files"]

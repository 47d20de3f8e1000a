"""What a study file imports: a published experiment as Python (docs/studies.md).

from hpcdl.api import study

STUDY = study.Study(title=..., question=..., small=study.Scale(...), full=study.Scale(...), ...)
"""

from hpcdl.system.chart import Curve, Panel, Segment
from hpcdl.workflows.study.charts import (
    Part,
    Parts,
    ResultTable,
    efficiency,
    learning,
    milliseconds,
    phases,
    rate,
    shares,
    speedup,
    table,
    time_by_size,
    timeline,
)
from hpcdl.workflows.study.declared import (
    PYTHON,
    Jobs,
    Program,
    Published,
    Reads,
    Scale,
    Study,
    Surroundings,
    example,
    given,
    made,
)
from hpcdl.workflows.study.findings import Results, Undecided

__all__ = [
    "PYTHON",
    "Curve",
    "Jobs",
    "Panel",
    "Part",
    "Parts",
    "Program",
    "Published",
    "Reads",
    "ResultTable",
    "Results",
    "Scale",
    "Segment",
    "Study",
    "Surroundings",
    "Undecided",
    "efficiency",
    "example",
    "given",
    "learning",
    "made",
    "milliseconds",
    "phases",
    "rate",
    "shares",
    "speedup",
    "table",
    "time_by_size",
    "timeline",
]

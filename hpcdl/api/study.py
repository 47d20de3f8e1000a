"""What a study file imports: a published experiment as Python (docs/studies.md).

from hpcdl.api import study

STUDY = study.Study(title=..., question=..., small=study.Scale(...), full=study.Scale(...), ...)
"""

from hpcdl.system.chart import Curve as Curve
from hpcdl.system.chart import Panel as Panel
from hpcdl.workflows.study.declared import PYTHON as PYTHON
from hpcdl.workflows.study.declared import DataSet as DataSet
from hpcdl.workflows.study.declared import Jobs as Jobs
from hpcdl.workflows.study.declared import Published as Published
from hpcdl.workflows.study.declared import Scale as Scale
from hpcdl.workflows.study.declared import Study as Study
from hpcdl.workflows.study.declared import example as example
from hpcdl.workflows.study.declared import photographs as photographs
from hpcdl.workflows.study.findings import Results as Results
from hpcdl.workflows.study.findings import Undecided as Undecided
from hpcdl.workflows.study.report import Parts as Parts
from hpcdl.workflows.study.report import ResultTable as ResultTable
from hpcdl.workflows.study.report import hidden as hidden
from hpcdl.workflows.study.report import milliseconds as milliseconds
from hpcdl.workflows.study.report import phases as phases
from hpcdl.workflows.study.report import rate as rate
from hpcdl.workflows.study.report import speedup as speedup
from hpcdl.workflows.study.report import table as table

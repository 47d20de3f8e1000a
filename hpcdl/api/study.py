"""What a study file imports: a published experiment as Python (docs/studies.md).

from hpcdl.api import study

STUDY = study.Study(title=..., question=..., small=study.Scale(...), full=study.Scale(...), ...)
"""

from hpcdl.system.chart import Curve as Curve
from hpcdl.system.chart import Panel as Panel
from hpcdl.workflows.study.charts import Parts as Parts
from hpcdl.workflows.study.charts import ResultTable as ResultTable
from hpcdl.workflows.study.charts import hidden as hidden
from hpcdl.workflows.study.charts import milliseconds as milliseconds
from hpcdl.workflows.study.charts import phases as phases
from hpcdl.workflows.study.charts import rate as rate
from hpcdl.workflows.study.charts import speedup as speedup
from hpcdl.workflows.study.charts import table as table
from hpcdl.workflows.study.declared import PYTHON as PYTHON
from hpcdl.workflows.study.declared import Jobs as Jobs
from hpcdl.workflows.study.declared import Published as Published
from hpcdl.workflows.study.declared import Scale as Scale
from hpcdl.workflows.study.declared import Study as Study
from hpcdl.workflows.study.declared import example as example
from hpcdl.workflows.study.declared import given as given
from hpcdl.workflows.study.declared import made as made
from hpcdl.workflows.study.findings import Results as Results
from hpcdl.workflows.study.findings import Undecided as Undecided

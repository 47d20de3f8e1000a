"""Jobs: from what a user asks to a script that is right on this site's Slurm.

`spec` is what is asked; `layout` works out nodes, tasks, CPUs, memory and launcher from the
partition; `script` renders the sbatch template, each line with its reason; `submission` puts
it in place and queues it; `watch` follows it. Everything before `submission` is pure.
"""

from hpcdl.jobs.layout import Layout, plan_on
from hpcdl.jobs.script import JobScript, ScriptLine, render_script
from hpcdl.jobs.spec import JobSpec, Module

__all__ = ["JobScript", "JobSpec", "Layout", "Module", "ScriptLine", "plan_on", "render_script"]

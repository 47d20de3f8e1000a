"""Names that the back end inside ReFrame and the runner around it share."""

SCHEDULER = "hpcdl-slurm"
LAUNCHER = "hpcdl-srun"
EVENTS_VARIABLE = "HPCDL_CHECK_EVENTS"
PARENT_VARIABLE = "HPCDL_CHECK_PARENT"

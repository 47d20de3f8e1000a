"""The site: one description of a cluster, from which everything else is derived.

`load_site(path)` validates a site.yaml once, where it is read, and gives an immutable `Site`;
inside, values are valid. `check` says what is wrong with a file; `live` drafts one from a live
Slurm and compares the two.
"""

from hpcdl.results.gpus import Gpu
from hpcdl.site.load import find_site_file, load_site
from hpcdl.site.model import External, Partition, Site, SpackSettings, StackRequest, Waiver

__all__ = [
    "External",
    "Gpu",
    "Partition",
    "Site",
    "SpackSettings",
    "StackRequest",
    "Waiver",
    "find_site_file",
    "load_site",
]

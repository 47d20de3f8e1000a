"""The studies that hpcdl ships: published experiments as Python; `hpcdl study list`."""

"""What tests build: one builder per kind of thing."""

from hpcdl.slurm import client


def takes_every_job(monkeypatch):
    """A Slurm that has room for every job and refuses none."""
    limits = client.SubmitLimits(1001, 10_000, "MaxJobCount=10001")
    monkeypatch.setattr(client, "submit_limits", lambda _: limits)
    monkeypatch.setattr(client, "would_run", lambda _: None)

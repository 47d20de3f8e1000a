"""A check file that ReFrame skips with a warning, and then passes with nothing run."""

import reframe as rfm


@rfm.simple_test
class broken(rfm.RunOnlyRegressionTest):
    valid_systems = 42
    valid_prog_environs = ["*"]

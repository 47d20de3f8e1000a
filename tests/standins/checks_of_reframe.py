"""Plain ReFrame checks of which each says a word of ReFrame's own; their jobs are real ones."""

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import (
    parameter,
    performance_function,
    run_before,
    sanity_function,
    variable,
)


class Plain(rfm.RunOnlyRegressionTest):
    valid_systems = ["*"]
    valid_prog_environs = ["hpcdl"]
    executable = "echo rate 100; true"
    local = False
    reference = {"*": {"rate": (100, -0.1, 0.1, "MB/s")}}
    size = variable(int, value=1)

    @sanity_function
    def well(self):
        return sn.assert_found("rate", self.stdout)

    @performance_function("MB/s")
    def rate(self):
        return sn.extractsingle(r"rate (\d+)", self.stdout, 1, float)


@rfm.simple_test
class well(Plain):
    """It passes."""


@rfm.simple_test
class other_unit(Plain):
    """Its reference is in MB/s, its number in GB/s."""

    @performance_function("GB/s")
    def rate(self):
        return sn.extractsingle(r"rate (\d+)", self.stdout, 1, float)


@rfm.simple_test
class no_number(Plain):
    """It has a reference of a metric that nothing measures."""

    reference = {"*": {"latency": (1, -0.1, 0.1, "us"), "rate": (100, -0.1, 0.1, "MB/s")}}


@rfm.simple_test
class skips(Plain):
    """It does not apply here, and says so."""

    @run_before("run")
    def leave(self):
        self.skip("no burst buffer here")


@rfm.xfail("ticket 17")
@rfm.simple_test
class fails_as_expected(Plain):
    """It is known to fail."""

    executable = "echo nothing; true"


@rfm.simple_test
class nowhere(Plain):
    """No partition has what it needs."""

    valid_systems = ["+quantum"]


@rfm.simple_test
class sizes(Plain):
    """Two series."""

    width = parameter([1, 2])

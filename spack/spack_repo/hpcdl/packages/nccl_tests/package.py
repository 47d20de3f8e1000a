"""nccl-tests with the NCCL of the same GPU: NCCL does not inherit `cuda_arch`."""

from spack_repo.builtin.build_systems.cuda import CudaPackage
from spack_repo.builtin.packages.nccl_tests.package import NcclTests as BuiltinNcclTests

from spack.package import *


class NcclTests(BuiltinNcclTests):
    __doc__ = BuiltinNcclTests.__doc__

    maintainers("hpcdl")

    for arch in CudaPackage.cuda_arch_values:
        depends_on(f"nccl cuda_arch={arch}", when=f"cuda_arch={arch}")

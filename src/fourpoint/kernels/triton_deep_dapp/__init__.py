"""Deep DAPP's likelihood and gradient as Triton kernels."""

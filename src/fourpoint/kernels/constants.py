"""Numbers that a model and its kernels share: both have to use the same ones.

Plain code imports them from here, since kernels import nothing but kernels.
"""

# A mode decays to e^-60 and no further: far below the last digit of any sum, and clear of subnormal
# numbers, which are slow.
FADED = -60.0
REACH = 16  # elapsed times of Deep DAPP beyond so many times its longest scale count as that

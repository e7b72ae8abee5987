"""Fast counterparts of plain functions, compiled with numba or Triton."""

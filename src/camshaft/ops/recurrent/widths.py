"""How many columns of a state a program computes; without the kernel language, for what only reads states."""

WIDTH = 16  # columns of a vector
# Vectors of a program where these divide the columns: as many sums hide a multiply-add's latency.
VECTORS = 4

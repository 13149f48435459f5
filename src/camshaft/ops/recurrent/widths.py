"""The columns of a state that a program computes. Imports nothing: what only reads states needs no kernel language."""

WIDTH = 16  # columns of a vector
# Vectors of a program where these divide the columns: as many sums hide a multiply-add's latency.
VECTORS = 4

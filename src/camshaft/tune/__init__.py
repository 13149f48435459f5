"""Measurement of kernels on this machine, and the search over what their variants leave open."""

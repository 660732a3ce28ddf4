"""Kernels in which the NeuronCores of an instance exchange data."""

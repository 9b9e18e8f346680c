"""A run on a GPU: CUDA graphs, acting, and simulators on the device.

A chapter: imported where the device is no CPU, and for learner=graph.
"""

"""A run on disk: its folder, checkpoints, policies, records of faults, exports.

A chapter: imported where something is written or read.
"""

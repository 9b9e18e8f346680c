"""The files of a run: its folder, policies, checkpoints, exports, records of faults.

May import: build, arguments and what these may import.
"""

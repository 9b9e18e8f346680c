"""The outputs of a run: metrics, sinks, what is done at an interval, faults.

May import: evaluation, display and what these may import.
"""

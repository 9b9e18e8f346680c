"""The outputs of a run: metrics, sinks, evaluations, faults.

May import: files, display and what these may import.
"""

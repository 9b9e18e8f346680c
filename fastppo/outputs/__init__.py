"""The outputs of a run while it goes on: metrics, sinks, evaluations.

May import: saved and what that may import.
"""

"""Tables, curves, comparisons and videos of runs that have ended.

May import: outputs and what that may import.
"""

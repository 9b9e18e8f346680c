"""Tables, curves and comparisons of runs that have ended.

May import: outputs and what that may import.
"""

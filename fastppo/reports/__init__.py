"""Tables, curves and comparisons of runs that have ended."""

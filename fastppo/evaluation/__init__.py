"""A policy in environments of its own: evaluations during a run and after it."""

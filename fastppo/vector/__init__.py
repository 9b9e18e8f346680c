"""Vector environments: those of Gymnasium and EnvPool as a run's, and make_vec.

A chapter: imported for vec=native and vec=envpool, for a VectorEnv, and by make_vec.
"""

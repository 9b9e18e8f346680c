"""The environment variables of a worker process."""

import os
import re

SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
THREAD_LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
                 "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMBA_NUM_THREADS")


def worker_environment() -> dict[str, str]:
    """The environment variables of a worker: one thread a library, and no credentials."""
    kept = {name: value for name, value in os.environ.items() if not SECRET.search(name)}
    return kept | dict.fromkeys(THREAD_LIMITS, "1") | {"PYTHONUNBUFFERED": "1"}

"""The script of a worker process.

It runs by path in a fresh interpreter (`python -P bootstrap.py ...`), so the user's `__main__` is
not imported again, and this folder is not in sys.path. It takes over the main process's sys.path
before it imports the package: a user's own module may have the name of one of ours.
"""

import os
import pickle
import signal
import sys


def die_with_parent(lifeline: int) -> None:
    """Makes Linux kill this process when the other end of the pipe `lifeline` closes."""
    import fcntl
    import select
    if not hasattr(fcntl, "F_SETSIG"):
        return
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC | os.O_NONBLOCK)
    if select.select([lifeline], [], [], 0)[0]:  # it closed before the signal was set
        os._exit(1)


def main() -> None:
    """Reads the first message of the mailbox, then runs the worker's loop."""
    import faulthandler
    import logging
    if logging.lastResort:  # what prints warnings where nothing else is configured, as here
        logging.lastResort.setFormatter(logging.Formatter("warning: %(message)s"))
    # A terminal or a scheduler sends these to a whole group; the main process handles them. What is
    # ignored is inherited by children of an environment, a function is not.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, lambda signum, frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    faulthandler.enable()
    mailbox_fd, arena_fd, lifeline, parent = map(int, sys.argv[1:])
    die_with_parent(lifeline)
    with open(mailbox_fd, "rb", closefd=False) as file:
        file.seek(0)
        sys.path[:], sys.argv[:], job = pickle.load(file)
    os.ftruncate(mailbox_fd, 0)  # a job may be large, and its memory is shared
    from fastppo.workers.worker import worker_loop
    worker_loop(job, mailbox_fd, arena_fd, parent)


if __name__ == "__main__":
    main()

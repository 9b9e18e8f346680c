"""The file a worker process runs: environments on a slice of the arena, told what to do by cells.

It is started by path and as a fresh interpreter (`python -P worker.py ...`), so the user's
`__main__` is never imported again and this folder is never on the path: a user's own module may be
called `envs`. First it takes over the user's sys.path, only then does it import anything of ours.
"""

import json
import os
import signal
import socket
import sys


def die_with_parent(lifeline: int) -> None:
    """SIGKILL for this process as soon as the other end of the pipe `lifeline` is gone (Linux)."""
    import fcntl
    import select
    if not hasattr(fcntl, "F_SETSIG"):
        return
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC | os.O_NONBLOCK)
    if select.select([lifeline], [], [], 0)[0]:  # it was gone before the signal was set
        os._exit(1)


def receive(channel: socket.socket) -> bytes:
    """One message: 8 bytes of length, then that many."""
    size, parts = int.from_bytes(channel.recv(8, socket.MSG_WAITALL), "little"), []
    while size:
        parts.append(channel.recv(min(size, 1 << 20)))
        if not parts[-1]:
            os._exit(1)  # the main process is gone
        size -= len(parts[-1])
    return b"".join(parts)


def main() -> None:
    """Read where we are, then work until told to stop."""
    import faulthandler
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main process's business
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    faulthandler.enable()
    channel_fd, arena_fd, lifeline, parent = map(int, sys.argv[1:])
    die_with_parent(lifeline)
    with socket.socket(fileno=channel_fd) as channel:
        place = json.loads(receive(channel))
        sys.path[:] = place["path"]
        sys.argv[:] = place["argv"]
        from fastppo.workers.worker_loop import worker_loop
        worker_loop(receive(channel), arena_fd, parent)


if __name__ == "__main__":
    main()

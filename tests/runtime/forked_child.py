"""What the children of test_spawner.py run."""

import os
import signal
import time


def main(spec: str, fds: list[int]) -> int:
    """`write TEXT` writes to the first descriptor, `sleep` waits for a signal, `exit N`, `raise`, `kill`."""
    command, _, argument = spec.partition(" ")
    if command == "write":
        os.write(fds[0], f"{argument} {os.environ['SPAWNER_TEST']}".encode())
    elif command == "sleep":
        os.write(fds[0], str(os.getpid()).encode())
        time.sleep(60)
    elif command == "exit":
        return int(argument)
    elif command == "raise":
        raise RuntimeError("raised by a test")
    elif command == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    return 0

"""Anonymous shared memory, made by the parent and inherited by driver and encoders; no torch."""

import os

from gllm.config import ConfigError
from gllm.runtime.host_memory import GIB, free_cpu_bytes


def create_shared(num_bytes: int) -> int:
    """The descriptor of anonymous shared memory; children get it, nothing has a name that could leak.

    Raises ConfigError when this host has less memory free.
    """
    free = free_cpu_bytes()
    if num_bytes > free:
        raise ConfigError(
            f"--embedding-gib {num_bytes / GIB:.2f}: {free / GIB:.2f} GiB are free on this host: take less"
        )
    fd = os.memfd_create("rserve-embeddings", os.MFD_CLOEXEC)
    os.ftruncate(fd, num_bytes)
    return fd

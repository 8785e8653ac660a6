"""What carries embeddings between an encoder and the driver over torch.distributed: gloo, or NCCL.

A wire is a two-rank group of one encoder in one epoch. Its calls wait, so each end has a thread for them.

Measured of gloo: a send does not complete before its receive is posted, and its buffer must stay
untouched; a killed peer ends the waiting side with an error in milliseconds, while other groups go on.
NCCL was not run here. A killed peer leaves its kernel waiting on the GPU until the group is aborted, and its
watchdog would end the process: that is switched off for these groups, and the driver aborts them itself.
"""

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from gllm.runtime.staging import HostCopy

TIMEOUT = timedelta(minutes=10)
MEETING_TIMEOUT = timedelta(seconds=10)
"""For the driver, once the encoder is there; should it die just then, gloo gives up after five times this."""
LOOK_S = 0.1
DRIVER, ENCODER = 0, 1
NO_TAG = 0
ARRIVED, DRIVER_GPU = "arrived", "gpu of the driver"
POLL_S = 1e-4
_SETTING = threading.Lock()
SETTLE_S = 0.5
"""Bytes of a dead encoder that are under way on the network arrive within this time, or never."""


class Wire(Protocol):
    """An end of a two-rank group."""

    def send(self, tensors: Sequence[Tensor]) -> None:
        """Until the driver has them; they are computed. Raises RuntimeError when it is gone."""
        ...

    def receive(self, rows: Sequence[Tensor], is_over: threading.Event) -> None:
        """Until these are filled. is_over: set when the encoder is known to be gone.

        Raises RuntimeError when it is.
        """
        ...


def wire_kind(driver_gpu: str, encoder_gpu: str) -> str:
    """gloo or nccl; both ends by the identity of their GPU, empty on a CPU or without NCCL.

    NCCL refuses two ranks on one GPU.
    """
    return "nccl" if driver_gpu and encoder_gpu and driver_gpu != encoder_gpu else "gloo"


def join(store: dist.Store, encoder: int, epoch: int, device: torch.device) -> Wire:
    """An encoder's end in this epoch; waits for the driver."""
    prefix = _meeting_point(store, encoder, epoch)
    kind = wire_kind(store.get(DRIVER_GPU).decode(), gpu_identity(device))
    prefix.set(ARRIVED, kind)
    return _open(kind, prefix, ENCODER, TIMEOUT, device)


def receive_from_encoders(store: dist.Store, device: torch.device) -> None:
    """Tell encoders where the driver receives."""
    store.set(DRIVER_GPU, gpu_identity(device))


def await_encoder(
    store: dist.Store, encoder: int, epoch: int, device: torch.device, is_lost: threading.Event
) -> Wire | None:
    """The driver's end, once the encoder is there; None when it is lost before.

    A group that waits can't be interrupted, and an encoder may load for minutes: so the driver looks for it.
    A group that waits also keeps its connection to the store busy: so this has one of its own.
    """
    prefix = _meeting_point(store.clone(), encoder, epoch)
    while not prefix.check([ARRIVED]):
        if is_lost.wait(LOOK_S):
            return None
    if is_lost.is_set():
        return None
    kind = prefix.get(ARRIVED).decode()
    return _open(kind, prefix, DRIVER, MEETING_TIMEOUT, device)


def gpu_identity(device: torch.device) -> str:
    """Of the GPU on which NCCL could run in this process, in all processes and hosts; else empty."""
    if device.type != "cuda" or not dist.is_nccl_available():
        return ""
    return str(torch.cuda.get_device_properties(device).uuid)


class GlooWire:
    """Over the network, from and to host memory; what is on a GPU goes through page-locked buffers."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self._group = group
        self._side = _side_stream(device)

    def send(self, tensors: Sequence[Tensor]) -> None:
        with torch.cuda.stream(self._side):  # on a CPU there is none, and this does nothing
            host = HostCopy(tensors).get()
        for tensor in host:
            self._group.send([tensor.contiguous()], DRIVER, NO_TAG).wait()

    def receive(self, rows: Sequence[Tensor], is_over: threading.Event) -> None:
        """gloo itself notices when the encoder is gone."""
        for target in rows:
            if self._side is None:
                self._group.recv([target], ENCODER, NO_TAG).wait(TIMEOUT)
                continue
            host = torch.empty(target.shape, dtype=target.dtype, pin_memory=True)
            self._group.recv([host], ENCODER, NO_TAG).wait(TIMEOUT)
            with torch.cuda.stream(self._side):
                target.copy_(host, non_blocking=True)
            self._side.synchronize()


class NcclWire:
    """From GPU to GPU, on a stream of its own."""

    def __init__(self, group: Any, device: torch.device) -> None:
        """Makes the connection: both ends send and receive one byte."""
        self._group = group
        self._side = torch.cuda.Stream(device)
        hello = torch.zeros(1, dtype=torch.uint8, device=device)
        if group.rank() == ENCODER:
            self.send([hello])
        else:
            self.receive([hello], threading.Event())

    def send(self, tensors: Sequence[Tensor]) -> None:
        with torch.cuda.stream(self._side):
            for tensor in tensors:
                self._group.send([tensor.contiguous()], DRIVER, NO_TAG).wait()
        self._side.synchronize()

    def receive(self, rows: Sequence[Tensor], is_over: threading.Event) -> None:
        landed = torch.cuda.Event()
        with torch.cuda.stream(self._side):
            for target in rows:
                self._group.recv([target], ENCODER, NO_TAG).wait()
            landed.record(self._side)
        left = SETTLE_S
        while not landed.query():
            time.sleep(POLL_S)
            left -= POLL_S if is_over.is_set() else 0.0
            if left <= 0:
                self._group.abort()
                raise RuntimeError("the encoder is gone")


def _open(
    kind: str, store: dist.Store, rank: int, timeout: timedelta, device: torch.device
) -> GlooWire | NcclWire:
    if kind == "gloo":
        return GlooWire(dist.ProcessGroupGloo(store, rank, 2, timeout), device)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = TIMEOUT
    with _without_watchdog():
        group = dist.ProcessGroupNCCL(store, rank, 2, options)
    return NcclWire(group, device)


@contextmanager
def _without_watchdog() -> Iterator[None]:
    """Groups made meanwhile do not end the process when a peer is lost; others keep what was set.

    One thread at a time: the setting is the process's.
    """
    name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    with _SETTING:
        before = os.environ.get(name)
        os.environ[name] = "0"
        try:
            yield
        finally:
            if before is None:
                del os.environ[name]
            else:
                os.environ[name] = before


def _side_stream(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(device) if device.type == "cuda" else None


def _meeting_point(store: dist.Store, encoder: int, epoch: int) -> dist.Store:
    return dist.PrefixStore(f"encoder{encoder}.{epoch}", store)

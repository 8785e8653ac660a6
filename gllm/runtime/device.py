"""Which device a rank computes on."""

import logging

import torch

from gllm.config import ConfigError

LOG = logging.getLogger("gllm")


def pick_device(asked: str, local_index: int) -> torch.device:
    """asked: auto, cpu or cuda. GPUs are taken in order of the ranks on this host.

    Raises ConfigError where there are not enough GPUs.
    """
    if asked == "cpu" or (asked == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if local_index >= found:
        raise ConfigError(
            f"--device {asked}: {found} GPUs are here, {local_index + 1} are needed: "
            "lower --pp or --tp, or use --device cpu"
        )
    device = torch.device("cuda", local_index)
    torch.cuda.set_device(device)
    return device


def pick_encoder_device(asked: str, wanted: int) -> torch.device:
    """The device of an encoder; wanted: its place among all processes of this host.

    A GPU behind those of the ranks where there is one; else encoders share the GPUs in turns, which works but
    overlaps nothing: with two GPUs and one rank, encoders 0, 1, 2 are on GPUs 1, 0, 1.
    """
    found = torch.cuda.device_count() if asked != "cpu" and torch.cuda.is_available() else 0
    if 0 < found <= wanted:
        LOG.warning("%d GPUs are here: this encoder shares GPU %d", found, wanted % found)
        wanted %= found
    return pick_device(asked, wanted)

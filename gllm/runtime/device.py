"""Which device a rank computes on."""

import torch

from gllm.config import ConfigError


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

"""The attention backends by name, for the language model and for the vision tower."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gllm.layers.attention.interface import AttentionBackend
from gllm.layers.attention.sdpa import SdpaBackend
from gllm.layers.placement import Placement
from gllm.layers.vision_attention import Segments, vision_attention

BACKENDS = ("flash", "triton", "sdpa")
DEFAULT_BLOCK_SIZE = 16
FLASH_DTYPES = (torch.bfloat16, torch.float16)

VisionAttention = Callable[[Tensor, Tensor, Tensor, Segments], Tensor]
"""q, k, v [N, H, D] and the segments -> [N, H, D]."""


def create_backend(name: str, place: Placement, block_size: int = DEFAULT_BLOCK_SIZE) -> AttentionBackend:
    """The backend of this name; `auto` is the best one for the device and the cache's block size.

    On a GPU that is flash-attn where it is installed and reads this number format and blocks of this size,
    else Triton; elsewhere PyTorch. Raises ValueError, one line that says what to do.
    """
    match _resolve(name, place, block_size):
        case "flash":
            from gllm.layers.attention.flash_backend import (
                FlashBackend,
                can_page,
                installed_version,
                load_kernels,
            )

            version = installed_version(place.device)
            kernels = load_kernels(version)
            if not can_page(version, block_size):
                raise ValueError(
                    f"--attention-backend flash: flash-attn 2 reads blocks of 256 tokens, not {block_size}: "
                    "use --page-size 256, or --attention-backend triton"
                )
            return FlashBackend(kernels)
        case "triton":
            _check_triton(place.device)
            from gllm.layers.attention.triton_backend import TritonBackend

            return TritonBackend()
        case _:
            return SdpaBackend()


def create_vision_attention(name: str, place: Placement) -> VisionAttention:
    """The same choice for the vision tower, which has no cache."""
    match _resolve(name, place, block_size=256):
        case "flash":
            from gllm.layers.attention.flash_backend import FlashVision, installed_version, load_kernels

            return FlashVision(load_kernels(installed_version(place.device)))
        case "triton":
            _check_triton(place.device)
            from gllm.layers.kernels.vision_varlen import vision_varlen

            return vision_varlen
        case _:
            return vision_attention


def _resolve(name: str, place: Placement, block_size: int) -> str:
    if name == "auto":
        if place.device.type != "cuda":
            return "sdpa"
        from gllm.layers.attention.flash_backend import can_page, installed_version

        fits = place.dtype in FLASH_DTYPES and can_page(installed_version(place.device), block_size)
        return "flash" if fits else "triton"
    if name not in BACKENDS:
        raise ValueError(f"attention backend {name!r}: choose auto, {', '.join(BACKENDS)}")
    if name == "flash" and place.dtype not in FLASH_DTYPES:
        raise ValueError(
            f"--attention-backend flash computes in bfloat16 or float16, not {place.dtype}: "
            "use --dtype bfloat16, or --attention-backend triton"
        )
    return name


def _check_triton(device: torch.device) -> None:
    from gllm.layers.kernels.softmax import INTERPRETED

    if device.type != "cuda" and not INTERPRETED:
        raise ValueError(
            "--attention-backend triton needs a GPU: use sdpa "
            "(TRITON_INTERPRET=1 runs the kernels on a CPU, very slowly, to test them)"
        )

"""What media a server accepts, and how long it waits for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Above this PIL itself refuses to open an image.
PIL_MAX_PIXELS = 178_956_970


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """Limits of one server; every refusal they cause names the limit.

    max_images: images in one request. max_image_pixels: width times height of an image as stored, known from
    its header; also the bound of min_pixels and max_pixels. mm_processor_kwargs: these two, where a request
    does not set them. max_media_bytes: one file, compressed; max_request_bytes: all files of one request.
    media_hosts: see hosts.parse_hosts; None is any public host.
    allowed_media_path: the folder of ``file:`` URLs, None for none.
    fetch_timeout_s: one fetch in all, redirects included; as long again it may wait for a connection to its
    host, of which there are max_connections_per_host. connect_timeout_s, stall_timeout_s: the longest silence
    before a connection and between two reads. decode_workers: images decoded and resized at once.
    """

    max_images: int = 64
    max_image_pixels: int = PIL_MAX_PIXELS
    mm_processor_kwargs: Mapping[str, object] | None = None
    max_media_bytes: int = 64 * 1024 * 1024
    max_request_bytes: int = 512 * 1024 * 1024
    media_hosts: tuple[str, ...] | None = None
    allowed_media_path: str | None = None
    fetch_timeout_s: float = 30.0
    connect_timeout_s: float = 5.0
    stall_timeout_s: float = 10.0
    max_redirects: int = 5
    max_connections_per_host: int = 8
    decode_workers: int = 2

    def __post_init__(self) -> None:
        if not 0 < self.max_image_pixels <= PIL_MAX_PIXELS:
            raise ValueError(f"max_image_pixels is {self.max_image_pixels}, allowed: 1 to {PIL_MAX_PIXELS}")
        if self.max_images < 0 or self.max_redirects < 0:
            raise ValueError("max_images and max_redirects must be 0 or more")
        positive = (
            self.max_media_bytes,
            self.max_request_bytes,
            self.fetch_timeout_s,
            self.connect_timeout_s,
            self.stall_timeout_s,
            self.max_connections_per_host,
            self.decode_workers,
        )
        if min(positive) <= 0:
            raise ValueError(
                f"byte limits, time-outs, connections and workers must be above 0, got {positive}"
            )


def images_per_prompt(text: str) -> int:
    """The number in ``image=16``, the value of --limit-mm-per-prompt; raises ValueError for anything else."""
    name, _, count = text.partition("=")
    if name.strip() != "image" or not count.strip().isdecimal():
        raise ValueError(f"--limit-mm-per-prompt {text}: write image=N, such as image=16")
    return int(count)

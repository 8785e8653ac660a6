"""What is asked: requests as lengths and positions of items, drawn with a seeded generator."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gllm.core.request import MMItem

Placement = Literal["images-first", "text-first", "interleaved"]
PATCH_PIXELS, MERGE = 14, 2


@dataclass(frozen=True, slots=True)
class SimRequest:
    """A request to simulate: when it comes, how long its prompt is, where its items stand."""

    request_id: str
    arrival: float
    prompt_len: int
    items: tuple[MMItem, ...]
    output_len: int = 1

    @property
    def num_mm_tokens(self) -> int:
        return sum(item.num_tokens for item in self.items)


@dataclass(frozen=True, slots=True)
class Workload:
    """A distribution of requests.

    text_mean, text_sigma: log-normal length of the text in tokens; sigma 0 makes it constant.
    images: how many images a request has, from-to. size: (width, height) in pixels of every image.
    item_tokens: embedding tokens of an item, instead of a size, where the paper gives tokens.
    """

    name: str
    about: str
    text_mean: float
    text_sigma: float
    images: tuple[int, int]
    size: tuple[int, int] = (0, 0)
    item_tokens: int = 0
    placement: Placement = "text-first"
    output_len: int = 1

    @property
    def tokens_per_item(self) -> int:
        return self.item_tokens or image_tokens(*self.size)


MMMU_TEXT = 3000
MMMU_SIGMA = 0.6
WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload(
            "mmmu-1k",
            "MMMU at 1K (paper 4.1.2): two 1080p images and text; 8k tokens, 5k of them multimodal",
            text_mean=MMMU_TEXT,
            text_sigma=MMMU_SIGMA,
            images=(2, 2),
            size=(1920, 1080),
        ),
        Workload(
            "mmmu-2k",
            "MMMU at 2K (paper 4.1.2): two 1440p images and text; 12k tokens, 9k of them multimodal",
            text_mean=MMMU_TEXT,
            text_sigma=MMMU_SIGMA,
            images=(2, 2),
            size=(2560, 1440),
        ),
        Workload(
            "peers",
            "four images of 448x448 and 256 words: 1,307 tokens",
            text_mean=283,
            text_sigma=0.0,
            images=(4, 4),
            size=(448, 448),
            placement="images-first",
        ),
        Workload(
            "vision",
            "six to eight images of 448x448 with a few words before each and a question at the end",
            text_mean=150,
            text_sigma=0.0,
            images=(6, 8),
            size=(448, 448),
            placement="interleaved",
        ),
        Workload(
            "items-1024",
            "Figure 16a: 2k text tokens and 20 items of 1,024 tokens",
            text_mean=2000,
            text_sigma=0.0,
            images=(20, 20),
            item_tokens=1024,
        ),
        Workload(
            "items-32",
            "Figure 16b: 2k text tokens and 20 items of 32 tokens",
            text_mean=2000,
            text_sigma=0.0,
            images=(20, 20),
            item_tokens=32,
        ),
    )
}


def image_tokens(width: int, height: int) -> int:
    """Embedding tokens of an image: one for each 28x28 pixels after rounding both sides to multiples of 28.

    1920x1080 becomes 1932x1092, which is 69 x 39 = 2,691 tokens.
    """
    rows, columns = image_grid(width, height)
    return rows * columns // MERGE**2


def image_grid(width: int, height: int) -> tuple[int, int]:
    """(rows, columns) of patches of an image whose size needs no scaling."""
    unit = PATCH_PIXELS * MERGE
    rows, columns = (max(1, round(side / unit)) * MERGE for side in (height, width))
    return rows, columns


def load_workload(name: str) -> Workload:
    """A workload by name; `pair-WIDTHxHEIGHT` is Figure 2's: two images of a size, and text."""
    if name in WORKLOADS:
        return WORKLOADS[name]
    if name.startswith("pair-"):
        width, _, height = name.removeprefix("pair-").partition("x")
        if width.isdigit() and height.isdigit():
            size = (int(width), int(height))
            return Workload(
                name, f"Figure 2: two images of {size[0]}x{size[1]}", MMMU_TEXT, 0.0, (2, 2), size
            )
    raise ValueError(f"no workload {name!r}; there are {', '.join(WORKLOADS)} and pair-WIDTHxHEIGHT")


def place_items(text_len: int, item_tokens: Sequence[int], placement: Placement) -> tuple[MMItem, ...]:
    """Items of the given sizes among text_len text tokens.

    interleaved spreads the text evenly: before, between and after the items, the remainder at the end.
    Text 100 and items 20, 30: images-first at 0 and 20, text-first at 100 and 120, interleaved at 33 and 86.
    """
    lead = {"images-first": 0, "text-first": text_len, "interleaved": text_len // (len(item_tokens) + 1)}[
        placement
    ]
    between = lead if placement == "interleaved" else 0
    items, offset = [], lead
    for tokens in item_tokens:
        items.append(MMItem(offset, tokens, (1, MERGE, tokens * MERGE)))
        offset += tokens + between
    return tuple(items)


def make_requests(workload: Workload, arrivals: Sequence[float], rng: random.Random) -> list[SimRequest]:
    """Draw one request per arrival time. Text has at least one token, so a prompt can end in text."""
    requests = []
    for index, arrival in enumerate(arrivals):
        text_len = max(1, round(_text_length(workload, rng)))
        low, high = workload.images
        count = low if low == high else rng.randint(low, high)
        items = place_items(text_len, [workload.tokens_per_item] * count, workload.placement)
        prompt_len = text_len + sum(item.num_tokens for item in items)
        requests.append(SimRequest(str(index), arrival, prompt_len, items, workload.output_len))
    return requests


def with_placement(workload: Workload, placement: Placement) -> Workload:
    return replace(workload, placement=placement)


def _text_length(workload: Workload, rng: random.Random) -> float:
    """Log-normal with the given mean: exp(N(ln mean - sigma^2 / 2, sigma))."""
    if workload.text_sigma == 0.0:
        return workload.text_mean
    sigma = workload.text_sigma
    return workload.text_mean * rng.lognormvariate(-sigma * sigma / 2, sigma)

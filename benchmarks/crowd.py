"""Many clients at once, some of whom go away at random moments: how do all requests end?"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp
from PIL import Image

from gllm.multimodal.data_url import to_data_url

CLIENT_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class CrowdPlan:
    """num requests at once; a share of the clients vanishes within patience_s; images: most per request."""

    num: int
    vanish: float = 0.25
    patience_s: float = 2.0
    images: int = 2
    max_tokens: int = 8
    seed: int = 0


@dataclass
class CrowdReport:
    """How many requests ended how. hung: no end within the client's time limit."""

    answered: int = 0
    vanished: int = 0
    hung: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def ended(self) -> int:
        return self.answered + self.vanished + sum(self.errors.values())


def picture(seed: int, size: int = 56) -> str:
    """A data URL of a plain picture with one odd pixel: every seed below 2**24 gives another."""
    image = Image.new("RGB", (size, size), (seed & 255, seed >> 8 & 255, seed >> 16 & 255))
    image.putpixel((seed % size, seed // 7 % size), (255, 255 - seed % 256, seed % 256))
    return to_data_url(image)


def chat(
    seeds: Sequence[int], max_tokens: int, text: str = "What is it?", size: int = 56
) -> dict[str, object]:
    """A chat request about one picture per seed, answered with exactly max_tokens tokens."""
    images = [{"type": "image_url", "image_url": {"url": picture(seed, size)}} for seed in seeds]
    content = [*images, {"type": "text", "text": text}]
    return {
        "messages": [{"role": "user", "content": content}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }


async def crowd(base_url: str, plan: CrowdPlan) -> CrowdReport:
    """Send all requests at once and wait until each has ended or its client is gone."""
    rng = random.Random(plan.seed)
    report = CrowdReport()
    started = time.perf_counter()
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=CLIENT_TIMEOUT_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        tasks = []
        for index in range(plan.num):
            seeds = [plan.seed * 100_003 + index * 7 + i for i in range(rng.randint(0, plan.images))]
            body = chat(seeds, plan.max_tokens) | {"stream": rng.random() < 0.5}
            patience = rng.random() * plan.patience_s if rng.random() < plan.vanish else None
            tasks.append(_client(session, f"{base_url}/v1/chat/completions", body, patience, report))
        await asyncio.gather(*tasks)
    report.seconds = time.perf_counter() - started
    return report


async def _client(
    session: aiohttp.ClientSession,
    url: str,
    body: dict[str, object],
    patience_s: float | None,
    report: CrowdReport,
) -> None:
    """One client; patience_s: hang up after that time."""
    try:
        async with asyncio.timeout(patience_s):
            async with session.post(url, json=body) as response:
                text = await response.text()
                if response.status == 200 and '"error"' not in text:
                    report.answered += 1
                else:
                    report.errors[f"HTTP {response.status}"] += 1
    except TimeoutError:
        if patience_s is not None:
            report.vanished += 1
        else:
            report.hung += 1
    except (aiohttp.ClientError, OSError) as error:
        report.errors[type(error).__name__] += 1

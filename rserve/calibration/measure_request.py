"""What a request costs outside the model: its preparation in the API server, its events at the driver."""

import asyncio
import base64
import io
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from PIL import Image

from gllm.core.batch import BatchResult, MicroBatch, SampledToken
from gllm.core.core_config import CoreConfig
from gllm.core.request import MMItem, Request, SamplingParams
from gllm.models.names import resolve_model
from gllm.multimodal.processor import ChatPrompt, PromptProcessor
from rserve.core.epd_core import Scheme, make_core

SIDE, NUM_IMAGES, WORDS = 448, 4, 256
REPEATS = 12


@dataclass(frozen=True, slots=True)
class RequestCosts:
    """Seconds. prepare: from a body to token ids and sizes. pixels_per_token: decode and resize, per
    embedding token. driver: the core's events and steps of one request."""

    prepare: float
    pixels_per_token: float
    driver: float


def measure_request(model: str) -> RequestCosts:
    """Requests of four images of 448 x 448 and 256 words."""
    prepare, pixels = asyncio.run(_api_server(model))
    return RequestCosts(prepare, pixels, median(_driver() for _ in range(REPEATS)))


async def _api_server(model: str) -> tuple[float, float]:
    processor = PromptProcessor(resolve_model(model))
    prepares, pixels = [], []
    for seed in range(REPEATS):
        body = _body(seed)
        start = time.perf_counter()
        prompt = await processor.prepare_chat(ChatPrompt(json.loads(body)["messages"]))
        prepares.append(time.perf_counter() - start)
        for index, item in enumerate(prompt.items):
            start = time.perf_counter()
            await prompt.pixels(index)
            pixels.append((time.perf_counter() - start) / item.num_tokens)
        await prompt.release()
    await processor.close()
    return median(prepares), median(pixels)


def _body(seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    parts: list[dict[str, object]] = []
    for _ in range(NUM_IMAGES):
        file = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)).save(file, "jpeg", quality=85)
        url = f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
        parts.append({"type": "image_url", "image_url": {"url": url}})
    parts.append({"type": "text", "text": "what is seen here? " * (WORDS // 4)})
    return json.dumps({"messages": [{"role": "user", "content": parts}]}).encode()


def _driver() -> float:
    core = make_core(Scheme("rserve", "serial"), CoreConfig(num_blocks=256, num_stages=1))
    items = tuple(MMItem(5 + 258 * n, 256, (1, 32, 32)) for n in range(NUM_IMAGES))
    sampling = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
    request = Request("chatcmpl-0123456789abcdef", (7,) * 1307, items, sampling)
    start = time.perf_counter()
    core.on_request(request)
    core.on_encoding(request.request_id)
    for index, item in enumerate(items):
        core.on_embeddings(request.request_id, index, 0, range(item.num_tokens))
        match core.step():
            case MicroBatch() as batch:
                core.on_batch_done(BatchResult(batch.batch_id, tuple(_tokens(batch))))
        core.take_effects()
    return time.perf_counter() - start


def _tokens(batch: MicroBatch) -> Sequence[SampledToken]:
    targets = [target for sample in batch.samples for target in sample.targets]
    return [SampledToken(t.seq_id, t.request_id, t.choice, t.position, 7) for t in targets]

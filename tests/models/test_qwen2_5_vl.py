"""The whole Qwen2.5-VL model against transformers, in fp32: positions, tower, merge and language model."""

from functools import lru_cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gllm.core.request import MMItem
from gllm.layers.attention import create_backend
from gllm.layers.kv_cache import KVCache, KVCacheShape
from gllm.layers.mrope import mrope_positions
from gllm.layers.placement import Placement
from gllm.models.loader import load_weights
from gllm.models.registry import create_model, create_vision
from gllm.models.shape_file import read_shape
from gllm.models.stage import StageSpec, pipeline_stages
from tests.checkpoints import image_prompt, load_oracle, make_random_checkpoint
from tests.layers.paging import PagedSequences

PLACE = Placement()
PROMPTS = {
    "an image in the middle": ([(1, 4, 6)], [[5, 6, 7], [8, 9]]),
    "an image first": ([(1, 8, 4)], [[], [3, 4, 5]]),
    "an image last": ([(1, 4, 4)], [[9, 9, 1, 2], []]),
    "images of mixed sizes": ([(1, 4, 4), (1, 10, 12), (1, 2, 6)], [[1, 2], [3], [4, 5, 6], [7]]),
    "text": ([], [[4, 3, 2, 1, 7, 8, 11, 30, 31]]),
}


class Server:
    """Our model as a pipeline in one process, one request after another."""

    def __init__(self, folder: Path, pp: int = 1) -> None:
        self.shape = read_shape(folder)
        backend = create_backend("sdpa", PLACE)
        stages = pipeline_stages(self.shape.text.num_layers, pp)
        self.stages = [create_model(self.shape, stage, PLACE, backend) for stage in stages]
        for model in self.stages:
            load_weights(model, self.shape, folder)
        self.caches = [self._cache(len(stage.layers)) for stage in stages]

    def _cache(self, num_layers: int) -> KVCache:
        text = self.shape.text
        return KVCache(KVCacheShape(num_layers, 64, 4, text.num_kv_heads, text.head_dim), PLACE)

    @torch.inference_mode()
    def logits(self, token_ids: list[int], items: list[MMItem], patches: Tensor, chunk: int) -> Tensor:
        """Logits [L, V] of a prompt, `chunk` tokens at a time."""
        positions = mrope_positions(len(token_ids), items, 2, self.shape.vision.tokens_per_second)
        hidden = self.stages[0].embed(torch.tensor(token_ids))
        if items:
            embeddings = self.stages[0].vision(patches, [item.grid for item in items])
            for item, rows in zip(items, embeddings.split([item.num_tokens for item in items])):
                hidden[item.offset : item.end] = rows
        pages, found = PagedSequences(64, 4), []
        for start in range(0, len(token_ids), chunk):
            end = min(start + chunk, len(token_ids))
            meta, x = pages.step([(0, end - start)]), hidden[start:end]
            for model, cache in zip(self.stages, self.caches):
                meta.plan = None
                x = model.forward(x, positions.positions_of(start, end), cache.layers, meta)
            found.append(self.stages[-1].logits(x))
        return torch.cat(found)


@lru_cache
def serve(folder: Path, pp: int) -> Server:
    return Server(folder, pp)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_random_checkpoint(tmp_path_factory.mktemp("vl"))


def prompt(name: str, image_token: int) -> tuple[list[int], list[MMItem], Tensor]:
    grids, gaps = PROMPTS[name]
    items, offset = [], 0
    for gap, grid in zip(gaps, grids):
        items.append(MMItem(offset + len(gap), grid[1] * grid[2] // 4, grid))
        offset = items[-1].end
    generator = torch.Generator().manual_seed(len(name))
    patches = torch.randn(sum(h * w for _, h, w in grids), 1176, generator=generator)
    return list(image_prompt(grids, gaps, image_token)), items, patches


@pytest.mark.parametrize("chunk", [1, 5, 1000])
@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize("name", PROMPTS)
def test_logits_equal_transformers_for_every_chunking(folder, name, pp, chunk):
    oracle, server = load_oracle(folder), serve(folder, pp)
    ids, items, patches = prompt(name, server.shape.image_token_id)
    pictures = (patches, [item.grid for item in items]) if items else None
    expected = oracle.logits(ids, pictures)
    assert expected.std() > 0.5  # logits that say something
    found = server.logits(ids, items, patches, chunk)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def layouts() -> list[dict[str, object]]:
    return [
        {"layout": "hub"},
        {"layout": "modules"},
        {"layout": "hub", "tied": False},
        {"layout": "saved", "tied": False, "text": {"num_key_value_heads": 4}},
        {"vision": {"hidden_size": 80, "num_heads": 5, "intermediate_size": 90}},
    ]


@pytest.mark.parametrize("overrides", layouts(), ids=lambda o: "-".join(map(str, o.values())))
def test_every_layout_of_a_checkpoint_gives_the_logits_of_transformers(tmp_path, overrides):
    folder = make_random_checkpoint(tmp_path, **overrides)
    server = Server(folder)
    ids, items, patches = prompt("images of mixed sizes", server.shape.image_token_id)
    expected = load_oracle(folder).logits(ids, (patches, [item.grid for item in items]))
    torch.testing.assert_close(server.logits(ids, items, patches, 7), expected, atol=1e-4, rtol=0)


def test_only_the_first_stage_has_the_tower_and_only_when_asked(folder):
    shape, backend = read_shape(folder), create_backend("sdpa", PLACE)
    first, last = pipeline_stages(shape.text.num_layers, 2)
    assert create_model(shape, first, PLACE, backend).vision is not None
    assert create_model(shape, first, PLACE, backend, with_vision=False).vision is None
    assert create_model(shape, last, PLACE, backend).vision is None
    named = [w.name for w in create_model(shape, first, PLACE, backend, with_vision=False).weights()]
    assert not any(name.startswith("visual.") for name in named)


def test_an_encoder_rank_loads_the_tower_alone(folder):
    shape = read_shape(folder)
    tower = create_vision(shape, PLACE)
    load_weights(tower, shape, folder)
    whole = create_model(shape, StageSpec.whole(4), PLACE, create_backend("sdpa", PLACE))
    load_weights(whole, shape, folder)
    patches = torch.randn(48, 1176, generator=torch.Generator().manual_seed(0))
    assert torch.equal(tower(patches, [(1, 6, 8)]), whole.vision(patches, [(1, 6, 8)]))

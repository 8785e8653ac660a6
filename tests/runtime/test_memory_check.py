"""A deployment that cannot fit is refused before anything is loaded; one that fits never is."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.gpu.shapes import write_config
from gllm.config import CacheConfig, ConfigError, ModelConfig, ParallelConfig
from gllm.core.model_shape import PRESETS, ModelShape
from gllm.core.rank_share import RankShare
from gllm.layers.attention import create_backend
from gllm.layers.comm import ThreadTensorParallel
from gllm.layers.placement import Placement
from gllm.models.names import resolve_model
from gllm.models.registry import create_model, create_vision
from gllm.models.shape_file import read_shape
from gllm.models.stage import pipeline_stages
from gllm.runtime.host_memory import GIB, free_cpu_bytes, obtainable_cpu_bytes
from gllm.runtime.kv_sizing import KvLayers
from gllm.runtime.memory_check import HostNeed, check_host_memory, need_of_ranks
from rserve.config import EpdConfig, RServeConfig
from rserve.runtime.deployment import need_of_deployment

META = torch.device("meta")
SPLITS = {"qwen2.5-vl-3b": (1, 2, 8), "qwen2.5-vl-7b": (1, 2, 4), "qwen2.5-vl-72b": (1, 4, 8)}
ON_CPU = ParallelConfig(device="cpu")
TINY = RServeConfig(model=ModelConfig("tiny"), parallel=ON_CPU)


def num_params(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("name", "tp"), [(name, tp) for name, sizes in SPLITS.items() for tp in sizes])
def test_parameters_are_counted_as_the_layers_allocate_them(name: str, tp: int):
    shape = PRESETS[name]
    for group in (ThreadTensorParallel.create(tp)[rank] for rank in {0, tp // 2, tp - 1}):
        place = Placement(torch.bfloat16, META, group)
        for pp in (1, 4):
            for stage in pipeline_stages(shape.text.num_layers, pp):
                share = RankShare(len(stage.layers), stage.is_first, stage.is_last, tp, group.rank)
                model = create_model(shape, stage, place, create_backend("sdpa", place), with_vision=False)
                assert shape.text.params_of(share) == num_params(model)
                block = KvLayers.of(shape.text, len(stage.layers), group, "bfloat16").bytes_per_block(16)
                assert 16 * shape.text.kv_bytes_per_token(2, share) == block
        assert shape.vision is not None
        share = RankShare(shape.vision.depth, tp=tp, tp_rank=group.rank)
        assert shape.vision.params_of(share) == num_params(create_vision(shape, place, "sdpa"))


def test_one_rank_has_the_whole_model():
    for shape in (*PRESETS.values(), read_shape(resolve_model("small"))):
        assert shape.text.params_of(RankShare(shape.text.num_layers)) == shape.text.num_params
        whole = RankShare(0)
        assert shape.vision is None or shape.vision.params_of(whole) == shape.vision.num_params


def tiny_shape() -> ModelShape:
    return read_shape(resolve_model("tiny"))


def test_ranks_of_a_host_need_their_weights_and_the_blocks_that_all_ranks_can_take():
    shape, size = tiny_shape(), 4
    whole = need_of_ranks(replace(TINY, cache=CacheConfig(num_kv_blocks=10)))
    assert whole.weights == size * shape.num_params
    assert whole.kv_cache == 10 * 16 * shape.text.kv_bytes_per_token(size)
    by_gib = need_of_ranks(replace(TINY, cache=CacheConfig(kv_cache_gib=0.5)))
    assert 0 <= GIB // 2 - by_gib.kv_cache < 16 * shape.text.kv_bytes_per_token(size)
    assert need_of_ranks(TINY).kv_cache == 16 * shape.text.kv_bytes_per_token(size)
    split = replace(TINY, parallel=replace(ON_CPU, pp=2, assigned_layers=(3, 1)))
    both = need_of_ranks(replace(split, cache=CacheConfig(kv_cache_gib=0.3)))
    assert both.kv_cache == pytest.approx(0.3 * GIB * 4 / 3, rel=0.01)
    halves = [
        need_of_ranks(replace(split, parallel=replace(split.parallel, ranks=(rank,)))) for rank in (0, 1)
    ]
    assert sum(half.weights for half in halves) == need_of_ranks(split).weights


def test_encoders_and_the_memory_of_embeddings_count_where_they_are():
    shape = tiny_shape()
    assert shape.vision is not None
    tower = 4 * shape.vision.num_params

    def need(**epd: object) -> HostNeed:
        return need_of_deployment(replace(TINY, epd=EpdConfig(**epd)))

    text = 4 * shape.text.num_params
    assert need(scheme="gllm") == HostNeed(text + tower, need().kv_cache)
    assert need(encoders=3).weights == text + 3 * tower
    assert need(encoder_fallback="driver").weights == text + 2 * tower
    assert 0 <= GIB // 4 - need(embedding_gib=0.25).embeddings < 4 * shape.text.hidden_size
    slave = replace(TINY, parallel=replace(ON_CPU, launch_mode="slave", ranks=(0,)))
    assert need_of_deployment(slave) == HostNeed(text, need().kv_cache)


def test_the_last_byte_decides_and_the_message_names_both_sides_and_the_way_out():
    need = HostNeed(3 * GIB, 2 * GIB, GIB // 2)
    check_host_memory(TINY, need, need.total)
    words = r"tiny needs 5\.5 GiB .*\(weights 3\.0, KV cache 2\.0, embeddings 0\.5\) and 5\.5 GiB .*smaller"
    with pytest.raises(ConfigError, match=words):
        check_host_memory(TINY, need, need.total - 1)
    on_gpu = replace(TINY, parallel=replace(ON_CPU, device="cuda"))
    check_host_memory(on_gpu, need, 0)


def test_the_72b_model_does_not_fit_where_the_7b_model_does(tmp_path: Path):
    for name, fits in (("qwen2.5-vl-72b", False), ("qwen2.5-vl-7b", True)):
        folder = write_config(tmp_path / name, PRESETS[name])
        need = need_of_deployment(replace(TINY, model=ModelConfig(str(folder))))
        assert (need.total <= 24 * GIB) is fits


def host(root: Path, available: int, swap: int, **groups: dict[str, object]) -> Path:
    """Files as the kernel shows them, of a process in the last of these nested control groups."""
    (root / "proc/self").mkdir(parents=True)
    meminfo = f"MemTotal: 99 kB\nMemAvailable: {available // 1024} kB\nSwapFree: {swap // 1024} kB\n"
    (root / "proc/meminfo").write_text(meminfo)
    folder = root / "sys/fs/cgroup"
    for name, files in groups.items():
        folder /= name
        folder.mkdir(parents=True)
        for file, text in files.items():
            (folder / f"memory.{file}").write_text(f"{text}\n")
    (root / "proc/self/cgroup").write_text(f"0::/{'/'.join(groups)}\n")
    return root


def group(limit: object, used: int, cached: int = 0, **swap: object) -> dict[str, object]:
    stat = f"anon {used - cached}\ninactive_file {cached // 2}\nactive_file {cached // 2}"
    return {"max": limit, "current": used, "stat": stat} | {f"swap.{k}": v for k, v in swap.items()}


@pytest.mark.parametrize(
    ("groups", "free", "obtainable"),
    [
        ({}, 8 * GIB, 10 * GIB),
        ({"a": group("max", GIB)}, 8 * GIB, 10 * GIB),
        ({"a": group(4 * GIB, 3 * GIB)}, GIB, 3 * GIB),
        ({"a": group(4 * GIB, 3 * GIB, cached=GIB)}, 2 * GIB, 4 * GIB),
        ({"a": group(4 * GIB, 3 * GIB, max=GIB, current=GIB // 2)}, GIB, GIB + GIB // 2),
        ({"a": group(4 * GIB, 3 * GIB, max=0, current=0), "b": group("max", GIB)}, GIB, GIB),
        ({"a": group(2 * GIB, 3 * GIB, max=0, current=0)}, 0, 0),
    ],
)
def test_the_tightest_control_group_limits_what_is_there(
    tmp_path: Path, groups: dict[str, dict[str, object]], free: int, obtainable: int
):
    root = host(tmp_path, 8 * GIB, 2 * GIB, **groups)
    assert (free_cpu_bytes(root), obtainable_cpu_bytes(root)) == (free, obtainable)

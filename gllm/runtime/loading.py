"""One rank's model, cache and runner, made from the configuration."""

from dataclasses import dataclass
from pathlib import Path

import torch

from gllm.config import ConfigError, EngineConfig
from gllm.core.model_shape import ModelShape
from gllm.layers.attention import create_backend
from gllm.layers.comm import TensorParallel
from gllm.layers.kv_cache import KVCache
from gllm.layers.placement import Placement
from gllm.layers.weights import HasWeights
from gllm.models.loader import load_weights
from gllm.models.names import resolve_model
from gllm.models.patchify import Patchifier, PixelNorm
from gllm.models.registry import Model, create_model, create_vision
from gllm.models.shape_file import read_shape
from gllm.models.stage import StageSpec, pipeline_stages
from gllm.multimodal.preprocessor import load_preprocessor
from gllm.runtime.cuda_graphs import Limits, StageGraphs
from gllm.runtime.input_batch import InputBuilder
from gllm.runtime.item_encoder import EncoderPlace, ItemEncoder
from gllm.runtime.kv_sizing import KvLayers
from gllm.runtime.links import StageLink
from gllm.runtime.model_runner import ModelRunner, RankPlace
from gllm.runtime.sequence_table import SequenceTable
from gllm.runtime.token_sampler import TokenSampler


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """What all ranks of a deployment agree on before anything is loaded.

    dtype: of weights, cache and hidden states. max_model_len: longest prompt + output that the model allows.
    """

    config: EngineConfig
    folder: Path
    shape: ModelShape
    dtype: str
    max_model_len: int
    stages: list[StageSpec]

    @classmethod
    def of(cls, config: EngineConfig) -> "ModelPlan":
        """Read the model's shape and check the flags against it.

        Raises ValueError (UnknownModelError, ConfigError) with one line that says what to do.
        """
        folder = resolve_model(config.model.model)
        shape = read_shape(folder)
        dtype = shape.dtype if config.model.dtype == "auto" else config.model.dtype
        longest = config.model.max_model_len or shape.text.max_position
        if longest > shape.text.max_position:
            raise ConfigError(
                f"--max-model-len {longest}: the model's positions end at {shape.text.max_position}"
            )
        stages = pipeline_stages(shape.text.num_layers, config.parallel.pp, config.parallel.assigned_layers)
        shape.text.check_tensor_parallel(config.parallel.tp)
        return cls(config, folder, shape, dtype, longest, stages)

    def kv_layers(self, stage: int, tp: TensorParallel) -> KvLayers:
        """What a rank of this stage keeps of each token."""
        return KvLayers.of(self.shape.text, len(self.stages[stage].layers), tp, self.dtype)

    def placement(self, device: torch.device, tp: TensorParallel) -> Placement:
        """Where a rank's parameters live."""
        return Placement(torch_dtype(self.dtype), device, tp)


def torch_dtype(name: str) -> torch.dtype:
    """'bfloat16' -> torch.bfloat16."""
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]


def load_stage(plan: ModelPlan, stage: int, place: Placement) -> Model:
    """A rank's part of the language model, with its weights."""
    backend = create_backend(plan.config.parallel.attention_backend, place, plan.config.cache.page_size)
    model = create_model(plan.shape, plan.stages[stage], place, backend, with_vision=False)
    _fill(plan, model)
    return model


def load_encoder(plan: ModelPlan, place: Placement) -> ItemEncoder:
    """The vision tower of a rank that encodes items; raises ValueError for a text-only model."""
    vision = plan.shape.vision
    if vision is None:
        raise ValueError(f"{plan.config.model.model} has no vision tower")
    tower = create_vision(plan.shape, place, plan.config.parallel.attention_backend)
    _fill(plan, tower)
    pixels = load_preprocessor(plan.folder)
    norm = PixelNorm(pixels.image_mean, pixels.image_std, pixels.rescale_factor) if pixels else None
    cut = Patchifier(vision, norm, place.device)
    where = EncoderPlace(vision.patch_size, vision.merge_unit, place.dtype, place.device, place.tp)
    return ItemEncoder(tower, cut, where)


def make_runner(
    plan: ModelPlan, model: Model, rank: RankPlace, place: Placement, num_blocks: int
) -> ModelRunner:
    """The runner of a rank whose model is loaded; allocates its cache."""
    vision = plan.shape.vision
    table = SequenceTable(vision.spatial_merge_size, vision.tokens_per_second) if vision else SequenceTable()
    block_size = plan.config.cache.page_size
    layers = KvLayers.of(plan.shape.text, len(model.stage.layers), place.tp, plan.dtype)
    kv = KVCache(layers.shape(num_blocks, block_size), place)
    sampler = TokenSampler(plan.shape.text.vocab_size, place.device) if rank.samples else None
    graphs = capture_graphs(plan, model, kv, place, num_blocks)
    return ModelRunner(model, kv, rank, InputBuilder(table, block_size, place.device), sampler, graphs)


def capture_graphs(
    plan: ModelPlan, model: Model, kv: KVCache, place: Placement, num_blocks: int
) -> StageGraphs | None:
    """CUDA graphs of a rank's layers.

    None on a CPU, with --no-cuda-graphs, or where attention or the TP group cannot.
    """
    backend = create_backend(plan.config.parallel.attention_backend, place, plan.config.cache.page_size)
    wanted = plan.config.parallel.cuda_graphs and backend.is_capturable and place.tp.is_capturable
    if place.device.type != "cuda" or not wanted:
        return None
    longest = min(plan.max_model_len, num_blocks * plan.config.cache.page_size)
    return StageGraphs(
        model, kv.layers, Limits(longest, plan.shape.text.hidden_size, place.dtype, place.device)
    )


def _fill(plan: ModelPlan, model: HasWeights) -> None:
    load_weights(model, plan.shape, plan.folder, plan.config.model.load_format, plan.config.model.seed)


def rank_place(plan: ModelPlan, stage: int, tp: TensorParallel, link: StageLink) -> RankPlace:
    """Where a rank of this stage stands."""
    return RankPlace(stage == 0, stage == len(plan.stages) - 1, tp, link)

"""How many tokens of KV cache a machine holds."""

from .costs import Constants
from .hardware import Machine


class DoesNotFitError(ValueError):
    """The weights leave no room for a KV cache on some stage."""


def kv_capacity(machine: Machine, constants: Constants) -> int:
    """Tokens of KV cache that every stage can hold: the smallest over the stages.

    A device keeps memory_utilisation of its memory; weights, activations and, with the encoder on stage 0,
    the vision tower come off it. Qwen2.5-VL-72B on four H100s with pp 4: 36 GB of weights a stage, about
    450,000 tokens. Raises DoesNotFitError where a stage cannot hold its weights.
    """
    text, size, tp = machine.model.text, machine.dtype_bytes, machine.tp
    available = machine.hardware.memory * constants.memory_utilisation - constants.activation_memory
    capacity = []
    for stage, layers in enumerate(machine.layers_per_stage()):
        weights = layers * text.params_per_layer
        first, last = stage == 0, stage == machine.pp - 1
        tied_on_one_stage = text.tie_word_embeddings and first and last
        weights += text.embedding_params * (1 if tied_on_one_stage else first + last)
        if first and machine.encoders == 0 and machine.model.vision is not None:
            weights += machine.model.vision.num_params
        free = available - weights * size / tp
        kv_heads = max(text.num_kv_heads / tp, 1)
        per_token = 2 * layers * kv_heads * text.head_dim * size
        if free < per_token:
            raise DoesNotFitError(
                f"stage {stage}: {weights * size / tp / 1e9:.1f} GB of weights a device, "
                f"{available / 1e9:.1f} GB available"
            )
        capacity.append(int(free // per_token))
    return min(capacity)

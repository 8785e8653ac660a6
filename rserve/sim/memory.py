"""How many tokens of KV cache a machine holds."""

from gllm.core.rank_share import rank_shares

from .costs import Constants
from .hardware import Machine


class DoesNotFitError(ValueError):
    """The weights leave no room for a KV cache on some stage."""


def kv_capacity(machine: Machine, constants: Constants) -> int:
    """Tokens of KV cache that every rank can hold: the smallest over the ranks.

    A device keeps memory_utilisation of its memory; the rank's weights, activations and, with the encoder on
    stage 0, its part of the vision tower come off it. Qwen2.5-VL-72B on four H100s with pp 4: 36 GB of
    weights a stage, about 450,000 tokens. Raises DoesNotFitError where a rank cannot hold its weights.
    """
    model, size = machine.model, machine.dtype_bytes
    available = machine.hardware.memory * constants.memory_utilisation - constants.activation_memory
    capacity = []
    for rank, share in enumerate(rank_shares(machine.layers_per_stage(), machine.tp)):
        weights = model.text.params_of(share) * size
        if share.is_first and machine.encoders == 0 and model.vision is not None:
            weights += model.vision.params_of(share) * size
        free, per_token = available - weights, model.text.kv_bytes_per_token(size, share)
        if free < per_token:
            raise DoesNotFitError(
                f"stage {rank // machine.tp}: {weights / 1e9:.1f} GB of weights a device, "
                f"{available / 1e9:.1f} GB available"
            )
        capacity.append(int(free // per_token))
    return min(capacity)

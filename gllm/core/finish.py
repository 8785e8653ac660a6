"""When a sequence ends: one pure rule, applied by the driver and by the API server alike."""

from gllm.core.request import SamplingParams


def finish_reason(
    token_id: int, num_output: int, sampling: SamplingParams, eos_token_ids: tuple[int, ...]
) -> str | None:
    """Why generation ends after this token, or None.

    token_id: the newest token; num_output: tokens produced so far, this one included. A stop token
    wins over the length when both hold. Stop *strings* are the API server's affair: it aborts.
    """
    if not sampling.ignore_eos and token_id in eos_token_ids:
        return "stop"
    if token_id in sampling.stop_token_ids:
        return "stop"
    if num_output >= sampling.max_tokens:
        return "length"
    return None

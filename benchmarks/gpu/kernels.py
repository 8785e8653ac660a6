"""Kernels against float64 references, and their times against the two ceilings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.gpu.report import Report
from benchmarks.gpu.timing import Ceilings, seconds
from gllm.layers.attention import AttentionBackend, AttentionMetadata, create_backend
from gllm.layers.kernels import reference
from gllm.layers.kernels.kv_write import kv_write
from gllm.layers.kernels.rms_norm import rms_norm
from gllm.layers.kernels.rotary import mrope_cos_sin, rotate
from gllm.layers.kernels.silu_mul import silu_mul
from gllm.layers.kernels.vision_varlen import vision_varlen
from gllm.layers.kv_cache import LayerKV
from gllm.layers.placement import Placement
from gllm.layers.vision_attention import Segments

LIMITS = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
NAN = float("nan")


@dataclass(frozen=True)
class Heads:
    """Query heads, key/value heads, channels of each."""

    query: int
    kv: int
    dim: int


@dataclass(frozen=True)
class Paged:
    """Chunks over a cache whose blocks are in random order and whose unused rows are NaN."""

    q: Tensor
    kv: LayerKV
    meta: AttentionMetadata

    @classmethod
    def random(
        cls, chunks: list[tuple[int, int]], page: int, heads: Heads, dtype: torch.dtype, device: torch.device
    ) -> Paged:
        """chunks: (query_len, kv_len), those of one token first."""
        torch.manual_seed(0)
        counts = [-(-kv_len // page) for _, kv_len in chunks]
        blocks = torch.randperm(sum(counts) + 1, dtype=torch.int32)
        tables = torch.full((len(chunks), max(counts)), int(blocks[-1]), dtype=torch.int32)
        shape = (len(blocks), page, heads.kv, heads.dim)
        kv = LayerKV(*(torch.full(shape, NAN, dtype=dtype, device=device) for _ in range(2)))
        start = 0
        for row, ((_, kv_len), count) in enumerate(zip(chunks, counts)):
            tables[row, :count] = blocks[start : start + count]
            start += count
            slots = torch.arange(kv_len)
            flat = (tables[row].long()[slots // page] * page + slots % page).to(device)
            for cache in (kv.k, kv.v):
                rows = torch.randn(kv_len, heads.kv, heads.dim, device=device)
                cache.flatten(0, 1)[flat] = rows.to(dtype)
        query_lens, kv_lens = [n for n, _ in chunks], [m for _, m in chunks]
        total = sum(query_lens)
        q = torch.randn(total, heads.query + 2 * heads.kv, heads.dim, device=device)
        bounds = torch.tensor([0, *query_lens]).cumsum(0).int()
        meta = AttentionMetadata(
            query_lens=query_lens,
            kv_lens=kv_lens,
            cu_query=bounds.to(device),
            seq_kv=torch.tensor(kv_lens, dtype=torch.int32, device=device),
            block_tables=tables.to(device),
            slot_mapping=torch.arange(total, device=device),
            block_size=page,
            num_decodes=next((i for i, n in enumerate(query_lens) if n != 1), len(chunks)),
            max_query_len=max(query_lens),
            max_kv_len=max(kv_lens),
        )
        return cls(q.to(dtype)[:, : heads.query], kv, meta)

    def expected(self) -> Tensor:
        """float64."""
        meta = self.meta
        return reference.paged_attention(self.q, self.kv, meta.query_lens, meta.kv_lens, meta.block_tables)


def check_kernels(report: Report, device: torch.device) -> None:
    """Every kernel on odd shapes; small ones where Triton is interpreted."""
    large = device.type == "cuda"
    chunks = [(1, 700), (1, 33), (300, 1000), (129, 129), (2, 65)] if large else [(1, 33), (5, 21), (18, 18)]
    for dtype, limit in LIMITS.items():
        for heads in (Heads(7, 1, 128), Heads(4, 2, 64), Heads(2, 2, 80)) if large else (Heads(4, 2, 64),):
            for page in (16, 64, 256) if large and dtype is not torch.float32 else (16,):
                case = Paged.random(chunks, page, heads, dtype, device)
                out = create_backend("triton", Placement(dtype, device), page).forward(
                    case.q, case.kv, case.meta
                )
                error = (out.double() - case.expected()).abs().max().item()
                name = f"paged attention {_short(dtype)} d{heads.dim} page {page}"
                report.bounded("kernels", name, error, limit)
        _check_vision(report, dtype, limit, device)
        _check_elementwise(report, dtype, limit, device)


def _check_vision(report: Report, dtype: torch.dtype, limit: float, device: torch.device) -> None:
    lengths = torch.tensor([64, 64, 40, 700, 1] if device.type == "cuda" else [16, 16, 9])
    n = int(lengths.sum())
    q, k, v = torch.randn(n, 6, 80, device=device).to(dtype).chunk(3, dim=1)
    segments = Segments.from_lengths(lengths, torch.randperm(n)).to(device)
    expected = reference.varlen_attention(q, k, v, segments.cu_seqlens, segments.order)
    error = (vision_varlen(q, k, v, segments).double() - expected).abs().max().item()
    report.bounded("kernels", f"vision attention {_short(dtype)} d80", error, limit)


def _check_elementwise(report: Report, dtype: torch.dtype, limit: float, device: torch.device) -> None:
    x, residual, weight = (torch.randn(n, 3584, device=device).to(dtype) for n in (9, 9, 1))
    normed = rms_norm(x, weight[0], 1e-6, residual)
    worst = _relative(normed, reference.rms_norm(x, weight[0], 1e-6))
    gate_up = torch.randn(9, 2 * 1100, device=device).to(dtype)
    expected = reference.silu_mul(gate_up)
    worst = max(worst, _relative(silu_mul(gate_up), expected))
    qkv = torch.randn(9, 32, 128, device=device).to(dtype)
    positions = torch.randint(0, 30000, (3, 9), device=device)
    inv_freq = 1e6 ** (-torch.arange(0, 128, 2, device=device) / 128)
    cos, sin = mrope_cos_sin(positions, inv_freq, (16, 24, 24))
    exact = reference.mrope_cos_sin(positions, inv_freq, (16, 24, 24))
    worst = max(
        worst, (cos.double() - exact[0]).abs().max().item(), (sin.double() - exact[1]).abs().max().item()
    )
    expected = reference.rotate(qkv[:, :30], cos, sin)
    rotate(qkv[:, :28], qkv[:, 28:30], cos, sin)
    worst = max(worst, _relative(qkv[:, :30], expected))
    report.bounded("kernels", f"norm, silu, rotary {_short(dtype)}", worst, limit)


def _relative(out: Tensor, expected: Tensor) -> float:
    return ((out.double() - expected).abs() / (1 + expected.abs())).max().item()


def time_kernels(report: Report, device: torch.device, ceilings: Ceilings) -> None:
    """Kernels at the 7B model's shapes: bytes against the copy, operations against the product."""
    heads, dtype = Heads(28, 4, 128), torch.bfloat16
    place = Placement(dtype, device)
    triton = create_backend("triton", place, 256)
    for batch, length in ((1, 8192), (64, 2048), (256, 1024)):
        case = Paged.random([(1, length)] * batch, 256, heads, dtype, device)
        moved = 2.0 * 2 * batch * length * heads.kv * heads.dim
        spent = _attention_seconds(triton, case)
        report.goal(
            "kernel", f"decode attention {batch} x {length}: of copy", moved / spent / ceilings.copy, 0.7
        )
    for length, past in ((2048, 0), (2048, 14336)):
        case = Paged.random([(length, past + length)], 256, heads, dtype, device)
        flops = 4.0 * heads.query * heads.dim * length * (past + (length + 1) / 2)
        spent = _attention_seconds(triton, case)
        report.goal("kernel", f"prefill attention {length} after {past}: of matmul",
                    flops / spent / ceilings.matmul, 0.5)  # fmt: skip
        _flash_ratio(report, place, case, spent, f"prefill {length} after {past}")
    _time_streams(report, device, ceilings)


def _attention_seconds(backend: AttentionBackend, case: Paged) -> float:
    return seconds(lambda: backend.forward(case.q, case.kv, case.meta))


def _flash_ratio(report: Report, place: Placement, case: Paged, spent: float, name: str) -> None:
    try:
        flash = create_backend("flash", place, case.meta.block_size)
    except ValueError as error:
        report.skip("kernel", f"flash / Triton, {name}", str(error).split(":")[0])
        return
    report.measure(
        "kernel", f"Triton time / flash time, {name}", spent / _attention_seconds(flash, case), "x"
    )


def _time_streams(report: Report, device: torch.device, ceilings: Ceilings) -> None:
    """Kernels that only move memory, at 2,048 tokens of the 7B model."""
    t, hidden, inner = 2048, 3584, 18944
    x, residual = (torch.randn(t, hidden, dtype=torch.bfloat16, device=device) for _ in range(2))
    weight = torch.ones(hidden, dtype=torch.bfloat16, device=device)
    gate_up = torch.randn(t, 2 * inner, dtype=torch.bfloat16, device=device)
    qkv = torch.randn(t, 36, 128, dtype=torch.bfloat16, device=device)
    cos = sin = torch.zeros(t, 64, device=device)
    cache = LayerKV(
        *(torch.zeros(t // 16, 16, 4, 128, dtype=torch.bfloat16, device=device) for _ in range(2))
    )
    slots = torch.randperm(t, device=device)
    streams: list[tuple[str, float, Callable[[], object]]] = [
        ("RMSNorm with residual", 4.0 * 2 * t * hidden, lambda: rms_norm(x, weight, 1e-6, residual)),
        ("SiLU and product", 3.0 * 2 * t * inner, lambda: silu_mul(gate_up)),
        ("rotary", 2.0 * 2 * t * 32 * 128, lambda: rotate(qkv[:, :28], qkv[:, 28:32], cos, sin)),
        (
            "write keys and values",
            4.0 * 2 * t * 4 * 128,
            lambda: kv_write(qkv[:, 28:32], qkv[:, 32:], cache, slots),
        ),
    ]
    for name, moved, work in streams:
        report.measure("kernel", f"{name}: of copy", 100 * moved / seconds(work) / ceilings.copy, "%")


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

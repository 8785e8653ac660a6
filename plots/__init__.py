"""Figures of the paper, drawn from result lines (`results/*.jsonl`) alone.

`python -m plots [--results DIR] [--out DIR] [--only fig12,fig16]` draws what the lines allow; each
`plots/figNN.py` (and `plots/table1.py`) also runs alone. A figure becomes NAME.png, NAME.pdf and NAME.csv, the
rows behind it, where NAME is `fig12_simulated-clean-h100`, `fig20_measured-…`: one for each (source, costs,
hardware). Several lines for one point are repeats: their median is drawn, with a 95 % interval from three on.

What a line needs
-----------------
Every line: `experiment`, `source` ("measured" | "simulated"), `hardware`, `model`, `workload`, `scheme`, `pp`,
`tp`, `encoders`, and for simulated ones `costs`. `label` names the curve where the scheme does not:
"vLLM TP4", "vLLM PP4"; without one, or when it equals `scheme`, the name follows from `scheme`. Lines labelled
vLLM are drawn with those of every cost set on the same hardware, whatever their own `costs`.
`bound_ttft_ms` and `bound_throughput` of RServe's lines become the dashed bound.

experiment  drawn by       one line for each                         read from it
fig02       fig02          label "TP4" | "PP4" × image size          image_width, image_height, mean_ttft_ms, encode_ms
                           (one request of two images)               (time in which only the encoder works)
fig12       fig12, fig13,  curve × workload × request_rate;          mean_ttft_ms; input_throughput; slo_attainment,
            fig14          workload mmmu-1k | mmmu-2k, slo           slo = {"ttft": 10000}
                           TTFT 10 s, max_in_flight = pp
fig15       fig15          workload                                  input_lens, vision_lens: lists of tokens
fig16       fig16          item_tokens 1024 | 32 ×                   mean_ttft_ms, input_throughput
                           embedding_batch_size; the rightmost
                           point is scheme gllm-epd
fig17       fig17          scheme rserve | rserve-intra ×            mean_ttft_ms, input_throughput
                           request_rate (× intra_reading)
fig18       fig18, fig19   scheme × (tp, pp) × workload × rate;      mean_ttft_ms; slo_attainment,
                           slo TTFT 1.4 s (1K) and 2 s (2K)          slo = {"ttft": 1400 | 2000}
fig20       fig20          scheme gllm-epd | rserve × workload ×     mean_ttft_ms
                           request_rate; one stage, one encoder
fig21       fig21          curve × workload × rate on A100s          mean_ttft_ms
table1      table1         scheme, or label "transformers", …        score, num_questions, unparsed_rate, responses
                                                                     (id → text; None or absent where not scored)

fig10 is drawn from two Chrome traces, `traces/fig10-rserve-intra.json` and `traces/fig10-rserve.json` in the
results folder (see plots.timeline for their form).

A workload that starts with "synthetic" is named so in titles. `request_rate` "inf" is not drawn on rate axes.
"""

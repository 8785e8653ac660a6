"""Figures of the paper, drawn from result lines (`results/*.jsonl`) alone.

`python -m plots [--results DIR] [--out DIR] [--only fig12,fig16]` draws what the lines allow; each
`plots/figNN.py` (and `plots/table1.py`) also runs alone. A figure becomes NAME.png, NAME.pdf and NAME.csv,
the rows behind it; NAME is `fig12_simulated-clean-h100`, `fig20_measured-…`: one for each (source, costs,
hardware). Several lines for one point are repeats: their median is drawn, with a 95 % interval from three.

What a line needs
-----------------
Every line: `experiment`, `source` ("measured" | "simulated"), `hardware`, `model`, `workload`, `scheme`,
`pp`, `tp`, `encoders`, and for simulated ones `costs`. `label` names the curve where the scheme does not:
"vLLM TP4", "vLLM PP4"; without one, or when it equals `scheme`, the name follows from `scheme`. `costs` names
a whole set: vLLM's lines carry that of the lines they are compared with, whatever is laid over it for them.
`bound_ttft_ms` and `bound_throughput` of RServe's lines become the dashed bound.

fig02   One request of two images for each label "TP4" | "PP4" and workload "pair-WIDTHxHEIGHT".
        Fields: mean_ttft_ms, encode_ms (the encoder's part of it).
fig12   One line for each curve, workload ("mmmu-1k", "mmmu-2k") and request_rate, with slo = {"ttft": 10000};
        figures 12, 13 and 14 are drawn from it.
        Fields: mean_ttft_ms, input_throughput, slo_attainment.
fig15   One line for each workload. Fields: input_lens and vision_lens, lists of tokens, one entry a request.
fig16   Two requests for each workload ("items-1024", "items-32") and embedding_batch_size; the rightmost
        point is scheme gllm-epd. Fields: mean_ttft_ms, input_throughput.
fig17   One line for each scheme rserve | rserve-intra, workload and request_rate (and intra_reading, "serial"
        being the default). Fields: mean_ttft_ms, input_throughput.
fig18   One line for each scheme, parallelism (tp, pp, encoders), workload and request_rate, with a slo of
        1.4 s at 1K and 2 s at 2K; figures 18 and 19 are drawn from it. Fields: mean_ttft_ms, slo_attainment.
fig20   One line for each scheme gllm-epd | rserve, workload and request_rate, with one stage and one encoder.
        Field: mean_ttft_ms. "fig20-32b" is the same with another model.
fig21   One line for each curve, workload and request_rate on A100s; "fig21-7b" is the same with another
        model. Field: mean_ttft_ms.
table1  One line for each scheme (or label "transformers", "vLLM", …). Fields: score (percent),
        num_questions, unparsed_rate, responses (question id → text).

fig10 is drawn from two Chrome traces, `traces/fig10-rserve-intra.json` and `traces/fig10-rserve.json` in the
results folder (see plots.timeline for their form).

A workload that starts with "synthetic" is named so in titles. `request_rate` "inf" is not drawn on rate axes.
"""

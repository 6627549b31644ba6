#!/usr/bin/env python3
"""Measures llama.cpp (through llama-cpp-python's low-level API) on one model.

    peer_llama_cpp.py --model PATH --threads N [--prompt-tokens 512]
                      [--generate 128] [--repeats 5]

Prefill: one batch of --prompt-tokens tokens (n_batch = n_ubatch = that size),
logits of the last token only, in a fresh context each time. Decode: one prompt
token, then --generate greedy steps, in a fresh context each time; the choice of
the next token is inside the measured time. One unmeasured run of each goes first.
Prints JSON with every run and the medians, in tokens per second.
"""
import argparse
import hashlib
import json
import os
import platform
import statistics
import time

import llama_cpp as L
import numpy as np


def cpu_name():
    try:
        with open("/proc/cpuinfo") as f:
            for line in f:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--model", required=True)
    a.add_argument("--threads", type=int, required=True)
    a.add_argument("--prompt-tokens", type=int, default=512)
    a.add_argument("--generate", type=int, default=128)
    a.add_argument("--repeats", type=int, default=5)
    a = a.parse_args()

    L.llama_backend_init()
    mp = L.llama_model_default_params()
    mp.n_gpu_layers = 0
    model = L.llama_model_load_from_file(a.model.encode(), mp)
    if not model:
        raise SystemExit("model does not load")
    vocab = L.llama_model_get_vocab(model)
    n_vocab = L.llama_vocab_n_tokens(vocab)

    def context(n_ctx):
        p = L.llama_context_default_params()
        p.n_ctx = n_ctx
        p.n_batch = a.prompt_tokens
        p.n_ubatch = a.prompt_tokens
        p.n_threads = a.threads
        p.n_threads_batch = a.threads
        c = L.llama_init_from_model(model, p)
        if not c:
            raise SystemExit("no context")
        return c

    def batch_of(tokens, start):
        b = L.llama_batch_init(len(tokens), 0, 1)
        b.n_tokens = len(tokens)
        for i, t in enumerate(tokens):
            b.token[i] = t
            b.pos[i] = start + i
            b.n_seq_id[i] = 1
            b.seq_id[i][0] = 0
            b.logits[i] = int(i == len(tokens) - 1)
        return b

    def decode(ctx, b):
        rc = L.llama_decode(ctx, b)
        if rc != 0:
            raise SystemExit(f"llama_decode: {rc}")
        L.llama_synchronize(ctx)

    # Token ids spread over the vocabulary, the same in every run.
    prompt = [1000 + (i * 7919) % (n_vocab // 2) for i in range(a.prompt_tokens)]

    def prefill_run():
        ctx = context(a.prompt_tokens)
        b = batch_of(prompt, 0)
        t = time.perf_counter()
        decode(ctx, b)
        t = time.perf_counter() - t
        L.llama_batch_free(b)
        L.llama_free(ctx)
        return a.prompt_tokens / t

    def decode_run():
        ctx = context(a.generate + 8)
        b = batch_of([prompt[0]], 0)
        decode(ctx, b)
        t = time.perf_counter()
        for i in range(a.generate):
            row = np.ctypeslib.as_array(L.llama_get_logits_ith(ctx, 0), shape=(n_vocab,))
            b.token[0] = int(row.argmax())
            b.pos[0] = i + 1
            decode(ctx, b)
        t = time.perf_counter() - t
        L.llama_batch_free(b)
        L.llama_free(ctx)
        return a.generate / t

    prefill_run()
    decode_run()
    prefill = [prefill_run() for _ in range(a.repeats)]
    dec = [decode_run() for _ in range(a.repeats)]
    with open(a.model, "rb") as f:
        sha = hashlib.file_digest(f, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else hashlib.sha256(f.read()).hexdigest()
    print(json.dumps({
        "engine": "llama.cpp",
        "tool": f"llama-cpp-python {L.__version__}",
        "system_info": L.llama_print_system_info().decode().strip(),
        "cpu": cpu_name(),
        "logical_cpus": os.cpu_count(),
        "model": os.path.basename(a.model),
        "model_sha256": sha,
        "threads": a.threads,
        "prompt_tokens": a.prompt_tokens,
        "generate": a.generate,
        "repeats": a.repeats,
        "prefill_tokens_per_s": [round(x, 2) for x in prefill],
        "decode_tokens_per_s": [round(x, 2) for x in dec],
        "prefill_median": round(statistics.median(prefill), 2),
        "decode_median": round(statistics.median(dec), 2),
        "load_average": os.getloadavg(),
    }, indent=1))


if __name__ == "__main__":
    main()

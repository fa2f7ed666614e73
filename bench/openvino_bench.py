#!/usr/bin/env python3
"""Rates of OpenVINO GenAI's ContinuousBatchingPipeline on a GGUF file, one JSON line per cell.

Decode: the streams' prompts are computed first; then `steps` iterations with all of them are
timed. Prefill: from adding a request until its first token.
"""
import argparse
import json
import random
import time

import numpy as np
import openvino as ov
import openvino_genai as og


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("--threads", default="2")
    p.add_argument("--decode", default="1,2,4,8,16,32")
    p.add_argument("--prefill", default="128,512")
    p.add_argument("--depth", type=int, default=128)
    p.add_argument("--steps", type=int, default=32)
    a = p.parse_args()
    decode = [int(x) for x in a.decode.split(",") if x]
    prefill = [int(x) for x in a.prefill.split(",") if x]
    sched = og.SchedulerConfig()
    sched.cache_size = 1 + max(decode, default=1) * (a.depth + a.steps) * 32 // (1 << 20)  # GB
    sched.max_num_batched_tokens = 2048
    sched.enable_prefix_caching = False
    pipe = og.ContinuousBatchingPipeline(a.model, sched, "CPU", {"INFERENCE_NUM_THREADS": int(a.threads)})
    rng = random.Random(1)
    next_id = 0

    def add(n, max_new):
        nonlocal next_id
        c = og.GenerationConfig()
        c.max_new_tokens = max_new
        c.ignore_eos = True
        c.do_sample = False
        ids = ov.Tensor(np.array([[rng.randrange(100, 40000) for _ in range(n)]], np.int64))
        next_id += 1
        return pipe.add_request(next_id, ids, c)

    def drain(handles):
        while pipe.has_non_finished_requests():
            pipe.step()
        for h in handles:
            h.read_all()

    drain([add(64, 4)])  # compile
    for n in prefill:
        h = add(n, 1)
        t = time.perf_counter()
        while pipe.has_non_finished_requests():
            pipe.step()
        dt = time.perf_counter() - t
        h.read_all()
        print(json.dumps({"test": "prefill", "n": n, "tok_s": n / dt}), flush=True)
    for b in decode:
        handles = [add(a.depth, a.steps + 8) for _ in range(b)]
        prefill_steps = -(-b * a.depth // 2048)
        for _ in range(prefill_steps + 1):
            pipe.step()
        t = time.perf_counter()
        for _ in range(a.steps):
            pipe.step()
        dt = time.perf_counter() - t
        print(json.dumps({"test": "decode", "n": b, "tok_s": b * a.steps / dt}), flush=True)
        drain(handles)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Loads a server with concurrent streams and reports what its users saw.

    load.py --url http://127.0.0.1:8080 [--pid PID] [--streams 32] [--seconds 60 | --requests N]
            [--prompt-tokens 200] [--max-tokens 64] [--cancel 0.2] [--shared-system N]

Every stream asks, reads its answer token by token and asks again (closed loop), through the OpenAI
completions API, which forthwith, llama.cpp's server and vLLM share. Prompts are random words of one
token each, different in every request, so that no server can answer from a cache; with
`--shared-system N` they begin with the same N words. A share of the streams hangs up in the middle of
its answer. Answers are sampled at temperature 1 and end early only if the model ends them.

Times are those of the client: time to first token (TTFT), and the gaps between the chunks of one
answer. Tokens are counted by chunks that carry text, and checked against `usage` where an answer came to
its end. With `--pid`, memory, threads and descriptors of the server are read from /proc at the start,
in every tenth of the run and at the end. At the end, forthwith's own gauges are read from /metrics.
Nothing but the standard library is needed. Prints JSON.
"""

import argparse
import asyncio
import json
import os
import pathlib
import random
import resource
import statistics
import time
import urllib.parse
import urllib.request

WORDS = (
    "time year people way day man thing woman life child world school state family student group country "
    "problem hand part place case week company system program question work government number night point "
    "home water room mother area money story fact month lot right study book eye job word business issue "
    "side kind head house service friend father power hour game line end member law car city community name"
).split()


class Tally:
    def __init__(self):
        self.ttft, self.gaps, self.totals = [], [], []
        self.tokens = self.done = self.cancelled = self.mismatched = 0
        self.errors = {}
        self.finished_at = []


def body_of(args, serial, rng):
    words = [rng.choice(WORDS) for _ in range(args.prompt_tokens - args.shared_system)]
    shared = random.Random(7)
    system = [shared.choice(WORDS) for _ in range(args.shared_system)]
    body = {
        "prompt": " " + " ".join(system + words),
        "max_tokens": args.max_tokens,
        "temperature": 1.0,
        "seed": serial,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if args.model:
        body["model"] = args.model
    return json.dumps(body).encode()


async def ask(args, serial, tally):
    rng = random.Random(serial * 1_000_003 + args.seed)
    url = urllib.parse.urlsplit(args.url)
    body = body_of(args, serial, rng)
    hang_up_after = rng.randrange(1, args.max_tokens) if rng.random() < args.cancel else None
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    try:
        head = f"POST /v1/completions HTTP/1.1\r\nhost: {url.netloc}\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        status = await reader.readline()
        if b" 200 " not in status:
            text = (status + await reader.read(2000)).decode(errors="replace")
            raise RuntimeError(status.decode().strip() + " " + text[-300:])
        last, tokens, usage = None, 0, None
        async for line in reader:
            if not line.startswith(b"data: {"):
                continue
            now = time.perf_counter()
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise RuntimeError(str(chunk["error"]))
            usage = chunk.get("usage") or usage
            if not chunk.get("choices") or not chunk["choices"][0].get("text"):
                continue
            tokens += 1
            tally.tokens += 1
            tally.finished_at.append(now)
            if last is None:
                tally.ttft.append(now - began)
            else:
                tally.gaps.append(now - last)
            last = now
            if hang_up_after is not None and tokens >= hang_up_after:
                tally.cancelled += 1
                return
        tally.done += 1
        tally.totals.append(time.perf_counter() - began)
        if usage and usage.get("completion_tokens") != tokens:
            tally.mismatched += 1
    finally:
        writer.transport.abort()


async def stream(args, number, ends_at, tally, serials):
    await asyncio.sleep(number * args.stagger)
    while time.perf_counter() < ends_at and (args.requests is None or serials[0] < args.requests):
        serials[0] += 1
        try:
            await ask(args, serials[0], tally)
        except (RuntimeError, OSError) as error:
            key = str(error)[:200]
            tally.errors[key] = tally.errors.get(key, 0) + 1
            await asyncio.sleep(0.5)


def process(pid):
    if pid is None:
        return None
    folder = pathlib.Path(f"/proc/{pid}")
    status = dict(line.split(":\t", 1) for line in (folder / "status").read_text().splitlines() if ":\t" in line)
    ticks = (folder / "stat").read_text().rsplit(")", 1)[1].split()
    return {
        "resident_mib": round(int(status["VmRSS"].split()[0]) / 1024, 1),
        "threads": int(status["Threads"]),
        "descriptors": len(os.listdir(folder / "fd")),
        "cpu_seconds": round((int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK"), 2),
    }


async def watch(args, seconds, seen):
    for _ in range(10):
        await asyncio.sleep(seconds / 10)
        seen.append(process(args.pid))


def gauges(url):
    try:
        text = urllib.request.urlopen(url + "/metrics", timeout=10).read().decode()
    except OSError:
        return None
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("forthwith_")]
    wanted = ("running", "waiting", "kv", "preempt", "cached", "evict", "requests", "stall", "predict", "fault", "step_")
    return {name: float(value) for name, value in lines if any(part in name for part in wanted) and "bucket" not in name}


def spread(values, scale=1e3):
    if not values:
        return None
    values = sorted(values)
    at = lambda share: round(values[min(len(values) - 1, int(share * len(values)))] * scale, 2)
    return {"median": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": at(1.0), "count": len(values)}


async def run(args):
    tally, serials, seen = Tally(), [0], [process(args.pid)]
    began = time.perf_counter()
    watcher = asyncio.create_task(watch(args, args.seconds, seen)) if args.pid else None
    streams = (stream(args, n, began + args.seconds, tally, serials) for n in range(args.streams))
    await asyncio.gather(*streams)
    ended = time.perf_counter()
    if watcher:
        watcher.cancel()
    await asyncio.sleep(2)
    # The rate while all streams ask: neither the first wave's prompts nor the last ones' leaving.
    steady = [t for t in tally.finished_at if began + args.seconds * 0.25 <= t <= began + args.seconds]
    gaps, own = spread(tally.gaps), resource.getrusage(resource.RUSAGE_SELF)
    return {
        "streams": args.streams, "prompt_tokens": args.prompt_tokens, "max_tokens": args.max_tokens,
        "shared_system": args.shared_system, "cancel": args.cancel, "seconds": round(ended - began, 1),
        "answers": tally.done, "hung_up": tally.cancelled, "errors": tally.errors,
        "chunks_not_tokens": tally.mismatched, "output_tokens": tally.tokens,
        "output_tokens_per_second": round(tally.tokens / (ended - began), 1),
        "steady_tokens_per_second": round(len(steady) / (args.seconds * 0.75), 1) if args.requests is None else None,
        "ttft_ms": spread(tally.ttft), "gap_ms": gaps, "answer_ms": spread(tally.totals),
        "gap_p99_over_median": round(gaps["p99"] / gaps["median"], 2) if gaps else None,
        "first_ttft_ms": [round(value * 1e3, 1) for value in tally.ttft[:3]],
        "client_cpu_seconds": round(own.ru_utime + own.ru_stime, 2),
        "process": {"samples": seen, "end": process(args.pid)} if args.pid else None,
        "server": gauges(args.url),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--pid", type=int)
    parser.add_argument("--model")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--requests", type=int, help="stop after so many requests instead")
    parser.add_argument("--prompt-tokens", type=int, default=200)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--shared-system", type=int, default=0)
    parser.add_argument("--cancel", type=float, default=0.0)
    parser.add_argument("--stagger", type=float, default=0.0, help="seconds between the streams' first requests")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print(json.dumps(asyncio.run(run(args)), indent=1))


if __name__ == "__main__":
    main()

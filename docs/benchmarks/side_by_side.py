#!/usr/bin/env python3
"""Measures forthwith and llama.cpp in turn on the same file, threads and machine.

    side_by_side.py --forthwith target/release/forthwith --model PATH [--model PATH ...]
                    [--threads N] [--rounds 5]

Each round runs forthwith, then llama.cpp (peer_llama_cpp.py in this folder, which needs
llama-cpp-python in the same Python), so that both see the machine in the same minutes. Prefill:
one prompt of 512 tokens. Decode: 128 tokens after a prompt of one word. Both count the time of
the engine alone, without loading. Prints every round, the medians and the median of the ratios as
JSON.
"""

import argparse
import json
import pathlib
import platform
import re
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
PROMPT_TOKENS = 512
GENERATE = 128


def forthwith(args, model, prompt, max_tokens):
    command = [args.forthwith, "run", "--model", model, "--raw", "--temperature", "0"]
    command += ["--threads", str(args.threads), "--max-tokens", str(max_tokens), "--stats"]
    done = subprocess.run(command, input=prompt, capture_output=True, text=True, check=True)
    tokens, prefill = re.search(r"prompt +(\d+) tokens +([\d.]+) tokens/s", done.stderr).groups()
    decode = re.search(r"per output token +[\d.]+ ms +([\d.]+) tokens/s", done.stderr)
    return int(tokens), float(prefill), float(decode.group(1)) if decode else None


def prompt_of(args, model):
    """A prompt of exactly PROMPT_TOKENS tokens: one word, repeated."""
    extra = forthwith(args, model, " boat", 1)[0] - 1
    prompt = " boat" * (PROMPT_TOKENS - extra)
    assert forthwith(args, model, prompt, 1)[0] == PROMPT_TOKENS
    return prompt


def peer(args, model):
    command = [sys.executable, str(HERE / "peer_llama_cpp.py"), "--model", model]
    command += ["--threads", str(args.threads), "--prompt-tokens", str(PROMPT_TOKENS)]
    command += ["--generate", str(GENERATE), "--repeats", "1"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def measure(args, model):
    prompt = prompt_of(args, model)
    rounds = {"forthwith": {"prefill": [], "decode": []}, "llama.cpp": {"prefill": [], "decode": []}}
    for _ in range(args.rounds):
        rounds["forthwith"]["prefill"].append(forthwith(args, model, prompt, 1)[1])
        rounds["forthwith"]["decode"].append(forthwith(args, model, "The", GENERATE + 1)[2])
        other = peer(args, model)
        rounds["llama.cpp"]["prefill"].append(other["prefill_median"])
        rounds["llama.cpp"]["decode"].append(other["decode_median"])
    result = {"model": pathlib.Path(model).name, "model_sha256": other["model_sha256"], "rounds": rounds}
    for what in ("prefill", "decode"):
        ours, theirs = rounds["forthwith"][what], rounds["llama.cpp"][what]
        result[what] = {
            "forthwith_median": round(statistics.median(ours), 1),
            "llama_cpp_median": round(statistics.median(theirs), 1),
            "ratio_median": round(statistics.median(a / b for a, b in zip(ours, theirs)), 2),
        }
    result["peer"] = {key: other[key] for key in ("tool", "system_info")}
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--forthwith", required=True)
    parser.add_argument("--model", action="append", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    version = subprocess.run([args.forthwith, "--version"], capture_output=True, text=True, check=True)
    report = {
        "forthwith": version.stdout.strip(),
        "machine": platform.processor() or platform.machine(),
        "threads": args.threads,
        "models": [measure(args, model) for model in args.model],
    }
    json.dump(report, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()

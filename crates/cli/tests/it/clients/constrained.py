"""Answers that are held to schemas, drawn hot: each must be what the reference validator accepts.

Arguments: address, model, a name that is not used, and how many answers of each schema. An answer that is cut by its
length must be the beginning of the answer that the same seed gives with more room.
"""

import json
import sys
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jsonschema

base, model, _, rounds = sys.argv[1:5]
schemas = json.loads(Path(__file__).with_name("schemas.json").read_text())
assert len(schemas) == 50, len(schemas)
counts = {"finished": 0, "cut": 0, "characters": 0}
lock = threading.Lock()


def ask(schema, seed, length):
    form = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    body = {
        "model": model, "temperature": 1.2, "seed": seed, "max_tokens": length, "response_format": form,
        "messages": [{"role": "user", "content": f"Give me example {seed} as JSON."}],
    }
    request = urllib.request.Request(
        f"{base}/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        choice = json.load(answer)["choices"][0]
    return choice["message"]["content"], choice["finish_reason"]


def check(number, schema, seed):
    text, reason = ask(schema, seed, 48)
    if reason == "length":
        longer, reason = ask(schema, seed, 320)
        assert longer.startswith(text), (number, seed, text, longer)
        text = longer
    where = f"schema {number}, seed {seed}: {text!r}"
    if reason == "stop":
        validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
        errors = list(validator.iter_errors(json.loads(text)))
        assert not errors, f"{where}: {errors[0].message}"
    else:
        assert reason == "length", f"{where}: {reason}"
        try:
            json.loads(text)
        except json.JSONDecodeError as error:
            # A text that only lacks its end goes wrong at its end, or where a string began.
            ended = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
            assert ended, f"{where}: {error}"
    with lock:
        counts["finished" if reason == "stop" else "cut"] += 1
        counts["characters"] += len(text)


with ThreadPoolExecutor(16) as pool:
    jobs = [
        pool.submit(check, number, schema, seed)
        for seed in range(int(rounds))
        for number, schema in enumerate(schemas)
    ]
    for job in jobs:
        job.result()

print(f"{len(schemas)} schemas: {counts}")
print("all checks passed")

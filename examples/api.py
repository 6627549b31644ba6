"""One call of the API, with nothing but the standard library."""

import json
import urllib.request


def post(base, path, body):
    request = urllib.request.Request(base + path, json.dumps(body).encode(),
                                     {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def models(base):
    with urllib.request.urlopen(base + "/v1/models") as answer:
        return [model["id"] for model in json.load(answer)["data"]]


def vectors(base, model, texts):
    data = post(base, "/v1/embeddings", {"model": model, "input": texts})["data"]
    return [entry["embedding"] for entry in data]


def encoder(base):
    """The served model that makes vectors, by its name."""
    return next(name for name in models(base) if "minilm" in name.lower())

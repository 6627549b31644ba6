"""Orders passages by how well they answer a question."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from api import encoder, post  # noqa: E402

QUESTION = "How do I reset the device to its factory settings?"
PASSAGES = [
    "The device comes in blue, grey and black.",
    "Hold the small button on the back for ten seconds to restore the original configuration.",
    "The battery lasts about eight hours.",
    "All settings can be exported to a file before they are erased.",
]


def main():
    base = sys.argv[1]
    # A cross-encoder would be named in the same way.
    body = {"model": encoder(base), "query": QUESTION, "documents": PASSAGES,
            "return_documents": True}
    results = post(base, "/v1/rerank", body)["results"]
    for result in results:
        print(f"{result['relevance_score']:.3f}  {result['document']['text']}")
    return results[0]["index"] == 1 and results[-1]["index"] in (0, 2)


if __name__ == "__main__":
    sys.exit(not main())

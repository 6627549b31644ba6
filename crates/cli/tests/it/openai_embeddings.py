"""Asks a running server for vectors with the official openai client."""

import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
model = client.models.list().data[0].id
texts = ["the server streams tokens", "a", "memory"]
# The client asks for base64 by itself and gives numbers.
whole = client.embeddings.create(model=model, input=texts)
plain = client.embeddings.create(model=model, input=texts, encoding_format="float")
assert [entry.index for entry in whole.data] == [0, 1, 2], whole
for ours, theirs in zip(whole.data, plain.data):
    assert len(ours.embedding) == 20
    assert max(abs(a - b) for a, b in zip(ours.embedding, theirs.embedding)) < 1e-7
assert whole.usage.prompt_tokens == whole.usage.total_tokens > 0, whole.usage
few = client.embeddings.create(model=model, input="a", dimensions=4)
assert len(few.data[0].embedding) == 4
try:
    client.embeddings.create(model=model, input="memory " * 60)
except openai.BadRequestError as error:
    assert error.code == "context_length_exceeded", error
else:
    raise AssertionError("a text of 62 tokens was accepted")
print("all checks passed")

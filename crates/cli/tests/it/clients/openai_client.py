"""Talks to a running server with the official openai client; exits non-zero where they disagree."""

import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
model = sys.argv[2]
assert model in [served.id for served in client.models.list()]
messages = [{"role": "user", "content": "Name three colours."}]
ask = {"model": model, "messages": messages, "max_tokens": 24, "temperature": 0}

plain = client.chat.completions.create(**ask)
text = plain.choices[0].message.content
assert text and plain.choices[0].finish_reason in ("stop", "length"), plain
usage = plain.usage
assert usage.prompt_tokens + usage.completion_tokens == usage.total_tokens, usage

stream = client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
chunks = list(stream)
joined = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
assert joined == text, (joined, text)
assert len({c.id for c in chunks}) == 1, "one id over the stream"
for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
    # The second of two equal prompts is found in the cache; the counts stay what they are.
    assert getattr(chunks[-1].usage, count) == getattr(usage, count), (chunks[-1].usage, usage)
assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0, chunks[-1].usage
assert sum(1 for c in chunks if c.choices and c.choices[0].finish_reason) == 1
assert sum(1 for c in chunks if c.choices and c.choices[0].delta.content) > 1, "it streams"

several = client.completions.create(
    model=model, prompt="Once upon a time", n=3, seed=7, temperature=1.0, max_tokens=8
)
again = client.completions.create(
    model=model, prompt="Once upon a time", n=3, seed=7, temperature=1.0, max_tokens=8
)
assert [c.text for c in several.choices] == [c.text for c in again.choices]
assert len({c.text for c in several.choices}) > 1

try:
    client.chat.completions.create(**{**ask, "temperature": 9})
except openai.BadRequestError as error:
    assert error.param == "temperature", error
else:
    raise AssertionError("a temperature of 9 was accepted")

try:
    client.chat.completions.create(model="no-such-model", messages=messages)
except openai.NotFoundError as error:
    assert error.code == "model_not_found", error
else:
    raise AssertionError("an unknown model was accepted")

print("all checks passed")

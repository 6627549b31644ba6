"""Talks to a running server through litellm; exits non-zero where they disagree."""

import json
import os
import sys

# Its table of prices is otherwise fetched from the net.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm

litellm.telemetry = False
base, chat, encoder = sys.argv[1:4]
there = {"api_base": base, "api_key": "none", "num_retries": 0}
messages = [{"role": "user", "content": "Set the lamp in the hall to four."}]
ask = {
    "model": f"openai/{chat}", "messages": messages, "max_tokens": 96, "temperature": 0, "seed": 1, **there
}

plain = litellm.completion(**ask)
text = plain.choices[0].message.content
assert text and plain.usage.total_tokens == plain.usage.prompt_tokens + plain.usage.completion_tokens
chunks = list(litellm.completion(**ask, stream=True, stream_options={"include_usage": True}))
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
whole = litellm.stream_chunk_builder(chunks, messages=messages)
assert whole.usage.completion_tokens == plain.usage.completion_tokens, whole

parameters = {
    "type": "object",
    "properties": {
        "room": {"type": "string", "enum": ["hall", "attic", "küche"]},
        "level": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["room", "level"],
    "additionalProperties": False,
}
tools = [{"type": "function", "function": {"name": "set_lamp", "parameters": parameters}}]
choice = {"type": "function", "function": {"name": "set_lamp"}}
answer = litellm.completion(**ask, tools=tools, tool_choice=choice)
(call,) = answer.choices[0].message.tool_calls
assert answer.choices[0].finish_reason == "tool_calls" and call.function.name == "set_lamp", answer
arguments = json.loads(call.function.arguments)
assert set(arguments) == {"room", "level"} and 0 <= arguments["level"] <= 9, arguments
chunks = list(litellm.completion(**ask, tools=tools, tool_choice=choice, stream=True))
(streamed,) = litellm.stream_chunk_builder(chunks, messages=messages).choices[0].message.tool_calls
assert streamed.function.arguments == call.function.arguments, (streamed, call)

form = {"type": "json_schema", "json_schema": {"name": "lamp", "strict": True, "schema": parameters}}
structured = litellm.completion(**ask, response_format=form).choices[0].message.content
assert set(json.loads(structured)) == {"room", "level"}, structured

vectors = litellm.embedding(model=f"openai/{encoder}", input=["a lamp", "a hall"], **there)
assert [entry["index"] for entry in vectors.data] == [0, 1], vectors
assert all(abs(sum(x * x for x in entry["embedding"]) - 1) < 1e-3 for entry in vectors.data)

for wrong, error in [
    ({"temperature": 9}, litellm.BadRequestError),
    ({"model": "openai/no-such-model"}, litellm.NotFoundError),
    ({"messages": [{"role": "user", "content": "word " * 9000}]}, litellm.ContextWindowExceededError),
]:
    try:
        litellm.completion(**{**ask, **wrong})
    except error:
        continue
    raise AssertionError(f"{list(wrong)} was accepted")

print("all checks passed")

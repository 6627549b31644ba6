"""Tools and structured output with the official openai client; exits non-zero where they disagree."""

import json
import sys
from typing import Literal

import openai
from pydantic import BaseModel, ConfigDict

client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
model = sys.argv[2]
messages = [{"role": "user", "content": "Set the lamp in the hall to four."}]
ask = {"model": model, "messages": messages, "max_tokens": 96, "temperature": 0, "seed": 1}


class Lamp(BaseModel):
    """Where a lamp is and how bright it is."""

    model_config = ConfigDict(extra="forbid")
    room: Literal["hall", "attic", "küche"]
    level: Literal[0, 4, 9]


lamp = openai.pydantic_function_tool(Lamp, name="set_lamp")

# Structured output, as the client derives it from a class.
parsed = client.chat.completions.parse(**ask, response_format=Lamp).choices[0].message
assert isinstance(parsed.parsed, Lamp), parsed
with client.chat.completions.stream(**ask, response_format=Lamp) as stream:
    final = stream.get_final_completion()
assert final.choices[0].message.parsed == parsed.parsed, final

# Tools, plain and streamed.
choice = {"type": "function", "function": {"name": "set_lamp"}}
plain = client.chat.completions.parse(**ask, tools=[lamp], tool_choice=choice).choices[0]
assert plain.finish_reason == "tool_calls", plain
(call,) = plain.message.tool_calls
assert call.function.name == "set_lamp" and isinstance(call.function.parsed_arguments, Lamp), call
with client.chat.completions.stream(**ask, tools=[lamp], tool_choice=choice) as stream:
    kinds = [event.type for event in stream]
    (streamed,) = stream.get_final_completion().choices[0].message.tool_calls
assert "tool_calls.function.arguments.done" in kinds, kinds
assert streamed.function.arguments == call.function.arguments, (streamed, call)

# The call's result goes back.
history = messages + [
    {"role": "assistant", "content": None, "tool_calls": [{
        "id": call.id, "type": "function",
        "function": {"name": "set_lamp", "arguments": call.function.arguments},
    }]},
    {"role": "tool", "tool_call_id": call.id, "content": json.dumps({"done": True})},
]
answer = client.chat.completions.create(**{**ask, "messages": history}, tools=[lamp], tool_choice="none")
assert answer.choices[0].message.tool_calls is None and answer.choices[0].message.content, answer

try:
    client.chat.completions.create(**ask, tools=[], tool_choice="required")
except openai.BadRequestError as error:
    assert error.param == "tool_choice", error
else:
    raise AssertionError("a call was required without tools")

# What has no effect is told.
raw = client.chat.completions.create(**ask, extra_body={"temprature": 1})
assert any("temprature" in warning for warning in raw.warnings), raw

print("all checks passed")

"""Talks to a running server through langchain-openai; exits non-zero where they disagree."""

import sys
from typing import Literal

import openai
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

base, chat, encoder = sys.argv[1:4]
model = ChatOpenAI(
    base_url=base, api_key="none", model=chat, temperature=0, seed=1, max_tokens=96, max_retries=0,
    stream_usage=True,
)
question = [HumanMessage("Set the lamp in the hall to four.")]

plain = model.invoke(question)
assert plain.content and plain.usage_metadata["output_tokens"] > 0, plain
parts = list(model.stream(question))
assert "".join(part.content for part in parts) == plain.content
whole = parts[0]
for part in parts[1:]:
    whole += part
assert whole.usage_metadata["output_tokens"] == plain.usage_metadata["output_tokens"], whole
both = model.batch([question, question])
assert [answer.content for answer in both] == [plain.content] * 2


class Lamp(BaseModel):
    """Where a lamp is and how bright it is."""

    room: Literal["hall", "attic", "küche"]
    level: Literal[0, 4, 9]


for method in ("json_schema", "function_calling"):
    answer = model.with_structured_output(Lamp, method=method).invoke(question)
    assert isinstance(answer, Lamp), (method, answer)


@tool
def set_lamp(room: Literal["hall", "attic", "küche"], level: Literal[0, 4, 9]) -> str:
    """Sets a lamp."""
    return f"{room} {level}"


armed = model.bind_tools([set_lamp], tool_choice="set_lamp")
call = armed.invoke(question)
assert isinstance(call, AIMessage) and not call.invalid_tool_calls, call
result = set_lamp.invoke(call.tool_calls[0])
assert isinstance(result, ToolMessage) and result.content.split()[0] in ("hall", "attic", "küche")
streamed = None
for part in armed.stream(question):
    streamed = part if streamed is None else streamed + part
assert streamed.tool_calls[0]["args"] == call.tool_calls[0]["args"], (streamed, call)
after = model.bind_tools([set_lamp], tool_choice="none").invoke([*question, call, result])
assert after.content and not after.tool_calls, after

vectors = OpenAIEmbeddings(
    base_url=base, api_key="none", model=encoder, check_embedding_ctx_length=False
).embed_documents(["a lamp", "a hall", "a lamp"])
assert vectors[0] == vectors[2] != vectors[1] and len(vectors[0]) == 384

for wrong, error in [
    ({"temperature": 9}, openai.BadRequestError),
    ({"model": "no-such-model"}, openai.NotFoundError),
]:
    try:
        model.invoke(question, **wrong)
    except error:
        continue
    raise AssertionError(f"{wrong} was accepted")

print("all checks passed")

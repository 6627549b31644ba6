// Talks to a running server with the official openai client for Node; exits non-zero where they disagree.

import assert from "node:assert/strict";
import { createRequire } from "node:module";

// The packages lie in a folder of their own.
const [packages, base, chat, encoder] = process.argv.slice(2);
const require = createRequire(`${packages}/package.json`);
const OpenAI = require("openai").default;

const client = new OpenAI({ baseURL: base, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Set the lamp in the hall to four." }];
const ask = { model: chat, messages, max_tokens: 96, temperature: 0, seed: 1 };

const models = await client.models.list();
assert.ok(models.data.some((model) => model.id === chat));

const plain = await client.chat.completions.create(ask);
const text = plain.choices[0].message.content;
assert.ok(text);
assert.equal(plain.usage.prompt_tokens + plain.usage.completion_tokens, plain.usage.total_tokens);

let joined = "";
let usage = null;
const stream = await client.chat.completions.create({
  ...ask, stream: true, stream_options: { include_usage: true },
});
for await (const chunk of stream) {
  joined += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(joined, text);
assert.equal(usage.completion_tokens, plain.usage.completion_tokens);

const parameters = {
  type: "object",
  properties: {
    room: { type: "string", enum: ["hall", "attic", "küche"] },
    level: { type: "integer", minimum: 0, maximum: 9 },
  },
  required: ["room", "level"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "set_lamp", parameters } }];
const tool_choice = { type: "function", function: { name: "set_lamp" } };
const called = await client.chat.completions.create({ ...ask, tools, tool_choice });
assert.equal(called.choices[0].finish_reason, "tool_calls");
const call = called.choices[0].message.tool_calls[0];
assert.equal(call.function.name, "set_lamp");
assert.deepEqual(Object.keys(JSON.parse(call.function.arguments)).sort(), ["level", "room"]);
const runner = client.chat.completions.stream({ ...ask, tools, tool_choice });
const streamed = (await runner.finalMessage()).tool_calls[0];
assert.equal(streamed.function.arguments, call.function.arguments);

const response_format = {
  type: "json_schema", json_schema: { name: "lamp", strict: true, schema: parameters },
};
const structured = await client.chat.completions.parse({ ...ask, response_format });
assert.ok(["hall", "attic", "küche"].includes(structured.choices[0].message.parsed.room));

// The client asks for base64 by itself.
const vectors = await client.embeddings.create({ model: encoder, input: ["a lamp", "a hall"] });
assert.deepEqual(vectors.data.map((entry) => entry.index), [0, 1]);
assert.equal(vectors.data[0].embedding.length, 384);
const length = vectors.data[0].embedding.reduce((sum, x) => sum + x * x, 0);
assert.ok(Math.abs(length - 1) < 1e-3, String(length));

await assert.rejects(
  client.chat.completions.create({ ...ask, temperature: 9 }),
  (error) => error instanceof OpenAI.BadRequestError && error.param === "temperature",
);
await assert.rejects(
  client.chat.completions.create({ ...ask, model: "no-such-model" }),
  (error) => error instanceof OpenAI.NotFoundError && error.code === "model_not_found",
);

// A stream that is given up ends its request, and the server goes on.
const left = await client.chat.completions.create({ ...ask, stream: true });
for await (const _ of left) break;
assert.ok((await client.completions.create({ model: chat, prompt: "The", max_tokens: 2 })).choices[0].text);

console.log("all checks passed");

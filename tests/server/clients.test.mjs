// The openai and @anthropic-ai/sdk packages for Node against the server.
import assert from "node:assert/strict";
import test from "node:test";

import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const url = process.env.OVERDRAFT_URL;
const apiKey = process.env.OVERDRAFT_KEY;
const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey, maxRetries: 0 });
const messages = [{ role: "user", content: "Add two numbers." }];
const ask = { model: "demo", messages, max_tokens: 16, temperature: 0 };

test("openai: a stream is the whole answer in pieces", async () => {
  const whole = await openai.chat.completions.create(ask);
  let text = "";
  let usage;
  const stream = await openai.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } });
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(usage.completion_tokens, 16);
  assert.equal(whole.choices[0].finish_reason, "length");
});

test("openai: logprobs, several answers, a form", async () => {
  const answer = await openai.chat.completions.create({ ...ask, n: 2, logprobs: true, top_logprobs: 2 });
  assert.equal(answer.choices.length, 2);
  assert.equal(answer.choices[1].logprobs.content[0].top_logprobs.length, 2);
  const schema = { type: "object", properties: { a: { type: "boolean" } }, required: ["a"], additionalProperties: false };
  const formed = await openai.chat.completions.create({
    ...ask,
    max_tokens: 400,
    response_format: { type: "json_schema", json_schema: { name: "x", schema, strict: true } },
  });
  assert.equal(typeof JSON.parse(formed.choices[0].message.content).a, "boolean");
});

test("openai: responses", async () => {
  const request = { model: "demo", input: "Add two numbers.", max_output_tokens: 16, temperature: 0 };
  const whole = await openai.responses.create(request);
  let text = "";
  for await (const event of await openai.responses.create({ ...request, stream: true })) {
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  assert.equal(text, whole.output_text);
});

test("openai: errors are its own", async () => {
  await assert.rejects(openai.chat.completions.create({ ...ask, model: "gpt-5" }), OpenAI.NotFoundError);
  await assert.rejects(openai.chat.completions.create({ ...ask, top_p: 2 }), (error) => error.param === "top_p");
});

test("anthropic: a stream is the whole message in pieces", async () => {
  const { temperature, ...plain } = ask;
  const request = { ...plain, top_k: 1 };
  const whole = await anthropic.messages.create(request);
  const final = await anthropic.messages.stream(request).finalMessage();
  assert.equal(final.content[0].text, whole.content[0].text);
  assert.equal(final.usage.output_tokens, 16);
  const counted = await anthropic.messages.countTokens({ model: "demo", messages });
  assert.equal(counted.input_tokens, whole.usage.input_tokens + whole.usage.cache_read_input_tokens);
});

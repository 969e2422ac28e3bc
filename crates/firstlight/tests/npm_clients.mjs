// OpenAI's client for JavaScript and the AI SDK against the server whose address is given. Run in a folder with their packages.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [, , folder, baseURL] = process.argv;
const require = createRequire(pathToFileURL(`${folder}/package.json`));
const from = async (name) => import(pathToFileURL(require.resolve(name)));
const { default: OpenAI } = await from("openai");
const { generateText, streamText, tool } = await from("ai");
const { createOpenAI } = await from("@ai-sdk/openai");
const { createOpenAICompatible } = await from("@ai-sdk/openai-compatible");
const { z } = await from("zod");

const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Is it raining in Ulm?" }];
const asked = { model: "mini", messages, max_tokens: 8, temperature: 1, seed: 7 };

// Whole and streamed answers are the same.
const whole = await client.chat.completions.create({ ...asked, n: 2, logprobs: true, top_logprobs: 2 });
assert.equal(whole.choices.length, 2);
assert.equal(whole.usage.completion_tokens, 16);
assert.equal(whole.choices[1].logprobs.content.length, 8);
const texts = ["", ""];
let usage;
const stream = await client.chat.completions.create({
  ...asked, n: 2, stream: true, stream_options: { include_usage: true }, stop: ["no such text"],
});
for await (const chunk of stream) {
  for (const { index, delta } of chunk.choices) texts[index] += delta.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.deepEqual(texts, whole.choices.map((choice) => choice.message.content));
assert.equal(usage.total_tokens, whole.usage.total_tokens);

// Tool calls with the client's stream helper.
const place = { type: "object", properties: { place: { enum: ["Ulm", "Bonn"] } }, required: ["place"], additionalProperties: false };
const tools = [{ type: "function", function: { name: "weather", parameters: place } }];
const calling = { ...asked, max_tokens: 200, tools, tool_choice: "required" };
const called = await client.chat.completions.create(calling);
assert.equal(called.choices[0].finish_reason, "tool_calls");
const streamed = await client.chat.completions.stream(calling).finalMessage();
for (const { tool_calls: calls } of [called.choices[0].message, streamed]) {
  assert.equal(calls.length, 1);
  assert.equal(calls[0].function.name, "weather");
  assert.match(JSON.parse(calls[0].function.arguments).place, /^(Ulm|Bonn)$/);
}

// The AI SDK.
const model = createOpenAICompatible({ name: "firstlight", baseURL, apiKey: "none", includeUsage: true })("mini");
const text = await generateText({ model, prompt: "hello", maxOutputTokens: 6, temperature: 0 });
assert.equal(text.finishReason, "length");
assert.equal(text.usage.outputTokens, 6);
const parts = streamText({ model, prompt: "hello", maxOutputTokens: 6, temperature: 0 });
let all = "";
for await (const part of parts.textStream) all += part;
assert.equal(all, text.text);
const execute = async ({ place }) => `none in ${place}`;
const weather = tool({ description: "weather", inputSchema: z.object({ place: z.enum(["Ulm", "Bonn"]) }), execute });
const used = await generateText({ model, prompt: "rain?", maxOutputTokens: 200, toolChoice: "required", tools: { weather } });
assert.match(used.toolResults[0].output, /^none in (Ulm|Bonn)$/);

// The Responses API with the client and with the AI SDK, which uses it by default.
const input = { model: "mini", input: "hello", max_output_tokens: 6, temperature: 0 };
const response = await client.responses.create(input);
assert.equal(response.status, "incomplete");
assert.equal(response.output_text, text.text);
const collected = await client.responses.stream(input).finalResponse();
assert.equal(collected.output_text, response.output_text);
assert.equal((await client.responses.retrieve(collected.id)).output_text, response.output_text);
const responses = createOpenAI({ baseURL, apiKey: "none" }).responses("mini");
const said = await generateText({ model: responses, prompt: "hello", maxOutputTokens: 6, temperature: 0 });
assert.equal(said.text, text.text);
assert.equal(said.usage.outputTokens, 6);
let pieces = "";
for await (const part of streamText({ model: responses, prompt: "hello", maxOutputTokens: 6, temperature: 0 }).textStream) pieces += part;
assert.equal(pieces, text.text);
const tooled = await generateText({ model: responses, prompt: "rain?", maxOutputTokens: 200, toolChoice: "required", tools: { weather } });
assert.match(tooled.toolResults[0].output, /^none in (Ulm|Bonn)$/);
console.log("all of it");

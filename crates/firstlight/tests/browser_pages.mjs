// Requests of pages in Chromium to two servers, the second with the API key `sesame`: a local page, a page of another site, and requests
// without a preflight. Arguments: a folder with the browser, the addresses of the servers, and the answer of their model.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [, , folder, open, locked, answer] = process.argv;
// The folder into which the browser is unpacked.
process.env.TMPDIR = folder;
const require = createRequire(pathToFileURL(`${folder}/package.json`));
const from = async (name) => (await import(pathToFileURL(require.resolve(name)))).default;
const [chromium, puppeteer] = [await from("@sparticuz/chromium"), await from("puppeteer-core")];

const site = createServer((_, response) => response.setHeader("content-type", "text/html").end("<title>page</title>"));
await new Promise((listening) => site.listen(0, "127.0.0.1", listening));
const { port } = site.address();
const browser = await puppeteer.launch({
  // This process also serves `elsewhere.example`. Newer browsers ask the user about local servers, which is disabled. The default
  // arguments of the package are not used, because they turn CORS off.
  args: ["--no-sandbox", "--host-resolver-rules=MAP elsewhere.example 127.0.0.1", "--disable-features=LocalNetworkAccessChecks"],
  executablePath: await chromium.executablePath(),
  headless: "shell",
});

/// The answer that a page of an origin gets for a chat, or the name of the browser's error.
async function ask(origin, server, headers, stream, mode = "cors") {
  const page = await browser.newPage();
  await page.goto(`${origin}:${port}/`);
  const got = await page.evaluate(async (server, headers, stream, mode) => {
    const body = { model: "mini", messages: [{ role: "user", content: "hello" }], max_tokens: 50, temperature: 0, stream };
    try {
      const response = await fetch(`${server}/v1/chat/completions`, { method: "POST", headers, body: JSON.stringify(body), mode });
      if (!stream || response.status !== 200) return { status: response.status, body: await response.text() };
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let all = "";
      for (let part = await reader.read(); !part.done; part = await reader.read()) all += part.value;
      return { status: response.status, body: all };
    } catch (error) {
      return { error: error.name };
    }
  }, server, headers, stream, mode);
  await page.close();
  return got;
}

/// The number of completion requests that a server has answered.
async function answered(server) {
  const text = await (await fetch(`${server}/metrics`, { headers: { authorization: "Bearer sesame" } })).text();
  const lines = text.split("\n").filter((line) => line.startsWith("vllm:request_success_total"));
  return lines.reduce((sum, line) => sum + Number(line.split(" ").pop()), 0);
}

const json = { "content-type": "application/json" };
const key = { ...json, authorization: "Bearer sesame" };
const here = "http://localhost";
const elsewhere = "http://elsewhere.example";

function isAnswer(got, stream) {
  assert.equal(got.status, 200, JSON.stringify(got));
  const events = stream ? got.body.split("\n\n").filter((event) => event.startsWith("data: {")) : [];
  const texts = events.map((event) => JSON.parse(event.slice(6)).choices[0]?.delta.content ?? "");
  assert.equal(stream ? texts.join("") : JSON.parse(got.body).choices[0].message.content, answer);
}

for (const stream of [false, true]) {
  isAnswer(await ask(here, open, json, stream), stream);
  isAnswer(await ask(here, locked, key, stream), stream);
  isAnswer(await ask(elsewhere, locked, key, stream), stream);
}

// Without an API key, the preflight of another site's page is refused, and so are requests that need no preflight.
const before = [await answered(open), await answered(locked)];
assert.deepEqual(before, [2, 4]);
assert.deepEqual(await ask(elsewhere, open, json, false), { error: "TypeError" });
assert.deepEqual(await ask(elsewhere, open, { "content-type": "text/plain" }, false, "no-cors"), { status: 0, body: "" });
assert.deepEqual(await ask(elsewhere, open, {}, false), { error: "TypeError" });
// A page may read the error about its key.
const wrong = await ask(elsewhere, locked, { ...json, authorization: "Bearer other" }, false);
assert.equal(wrong.status, 401);
assert.match(JSON.parse(wrong.body).error.message, /key/);
assert.deepEqual([await answered(open), await answered(locked)], before);

await browser.close();
site.close();
console.log("all of it");

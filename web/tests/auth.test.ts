// @vitest-environment node
// Authentication, reconnects, and no information for another program on the port.

import { createHmac } from "node:crypto";
import { beforeEach, expect, test, vi } from "vitest";

const KEY = "the key of this page";
interface RecordedRequest {
  path: string;
  body: Record<string, string>;
  token: string | null;
}

let requests: RecordedRequest[] = [];
let stored: Map<string, string>;
let answers: ((requests: RecordedRequest) => [number, object] | null)[] = [];

function proof(party: string, theirs: string, ours: string): string {
  return createHmac("sha256", KEY).update(`${party}\n4711\n${theirs}\n${ours}`).digest("hex");
}

async function loaded(hash: string): Promise<typeof import("../src/auth.ts")> {
  vi.resetModules();
  const location = { hash, port: "4711" };
  vi.stubGlobal("location", location);
  vi.stubGlobal("history", { replaceState: (_: unknown, __: string, address: string) => (location.hash = address) });
  return import("../src/auth.ts");
}

beforeEach(() => {
  requests = [];
  answers = [];
  stored = new Map();
  vi.stubGlobal("sessionStorage", {
    getItem: (name: string) => stored.get(name) ?? null,
    setItem: (name: string, value: string) => stored.set(name, value),
  });
  vi.stubGlobal("fetch", async (path: string, options: { body: string; headers: Record<string, string> }) => {
    const one = { path, body: JSON.parse(options.body), token: options.headers["Authorization"] ?? null };
    requests.push(one);
    const answer = answers.shift()?.(one) ?? null;
    if (answer === null) throw new TypeError("no response");
    return new Response(JSON.stringify(answer[1]), { status: answer[0] });
  });
});

const credentials = (token: string): [number, object] => [200, { token, page: "p", key: KEY }];

test("a code is exchanged for a token and removed from the URL before any other request", async () => {
  const entry = await loaded("#code=c&dir=%2Fa+b");
  answers = [() => (expect(location.hash).toBe("#dir=%2Fa+b"), credentials("t1"))];
  expect(await entry.authenticate()).toEqual({ token: "t1", dir: "/a b" });
  expect(requests).toEqual([{ path: "/v1/web/exchange", body: { code: "c" }, token: null }]);
  expect([...stored.values()]).toEqual(["t1"]);
});

test("a code is kept while there is no response", async () => {
  const entry = await loaded("#code=c&dir=%2Fa");
  answers = [() => null, () => credentials("t1")];
  await expect(entry.authenticate()).rejects.toThrow(TypeError);
  expect((await entry.authenticate()).token).toBe("t1");
});

test("a reloaded page uses the token of its tab", async () => {
  stored.set("holdfast-token", "t1");
  const entry = await loaded("#dir=%2Fa");
  answers = [() => credentials("t2")];
  expect((await entry.authenticate()).token).toBe("t2");
  expect(requests[0]).toEqual({ path: "/v1/web/page", body: {}, token: "Bearer t1" });
});

test("without a valid code or token the page shows what to do", async () => {
  await expect((await loaded("")).authenticate()).rejects.toThrow("holdfast web");
  const entry = await loaded("#code=c");
  answers = [() => [400, { message: "Used before. Run holdfast web." }]];
  await expect(entry.authenticate()).rejects.toThrow("Used before. Run holdfast web.");
});

test("both sides prove knowledge of the key, which is never sent", async () => {
  const entry = await loaded("#code=c");
  let nonce = "";
  answers = [
    () => credentials("t1"),
    ({ body }) => ((nonce = body["nonce"] ?? ""), [200, { nonce: "ours", proof: proof("server", nonce, "ours") }]),
    ({ body }) => (expect(body).toEqual({ page: "p", proof: proof("page", nonce, "ours") }), credentials("t2")),
  ];
  await entry.authenticate();
  const both = await Promise.all([entry.renewToken(), entry.renewToken()]);
  expect(both).toEqual(["t2", "t2"]);
  expect(requests.length).toBe(3);
  expect(JSON.stringify(requests)).not.toContain(KEY);
  expect(requests.slice(1).every((one) => one.token === null)).toBe(true);
  expect([...stored.values()]).toEqual(["t2"]);
});

test("another program on the port learns nothing", async () => {
  const entry = await loaded("#code=c");
  answers = [() => credentials("t1"), ({ body }) => [200, { nonce: "n", proof: body["nonce"] ?? "" }]];
  await entry.authenticate();
  await expect(entry.renewToken()).rejects.toThrow(entry.NotAuthenticated);
  expect(requests.length).toBe(2);
  expect(JSON.stringify(requests[1])).not.toContain("t1");
});

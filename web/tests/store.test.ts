// Actions of the user over a real socket: requests, responses and failures.

import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import type { Message, Run, Session } from "../src/wire/types.ts";
import { Backend, SNAPSHOT } from "./server.ts";

const session = (id: string, more: Partial<Session> = {}): Session => ({
  id, parent_session_id: "", title: id, message_count: 0, prompt_tokens: 0, completion_tokens: 0, summary_message_id: "", cost: 0,
  created_at: 1, updated_at: 1, is_busy: false, attached_clients: 0, ...more,
});
const message = (id: string, text: string, of = "s1"): Message => ({
  id, session_id: of, role: "assistant", parts: [{ type: "text", data: { text } }], model: "", provider: "", created_at: 1, updated_at: 1,
});
const run = (id: string, more: Partial<Run> = {}): Run => ({ run_id: id, session_id: "s1", state: "waiting", delivery: "queue", accepted_at: 1, prompt: id, number: 1, ...more });

type Store = typeof import("../src/store.ts");
let backend: Backend;
let store: Store;
let composing: typeof import("../src/store/composer-state.ts");

/** An authenticated, connected page. Each test has its own: modules are loaded again. */
async function openStore(hash = "#code=c1&dir=%2Fw"): Promise<void> {
  history.replaceState(null, "", `/${hash}`);
  vi.resetModules();
  store = await import("../src/store.ts");
  composing = await import("../src/store/composer-state.ts");
  void store.start();
  await vi.waitFor(() => expect(store.connection.value.state).toBe("live"));
}

beforeEach(async () => {
  sessionStorage.clear();
  backend = new Backend();
  const body = { ...SNAPSHOT, sessions: [session("s1"), session("s2")] };
  backend.on("GET /v1/workspaces/w/snapshot", (request) => {
    const name = request.query.get("session_id");
    return { body: { ...body, messages: name ? [message("m1", `in ${name}`, name)] : [] } };
  });
  backend.on("GET /v1/workspaces/w/sessions/s1", () => ({ body: session("s1", { attached_clients: 3 }) }));
  await backend.open();
});
afterEach(async () => {
  store.leave();
  await backend.close();
});

test("the project description file follows the settings", async () => {
  await openStore();
  store.workspace.value = { id: "w", path: "/w" };
  expect(store.guide.value).toBe("AGENTS.md");
  store.workspace.value = { id: "w", path: "/w", config: { options: { initialize_as: "CLAUDE.md" } } };
  expect(store.guide.value).toBe("CLAUDE.md");
});

describe("authentication", () => {
  test("the code is removed from the URL, and the token is sent in a header only", async () => {
    await openStore();
    expect(location.hash).toBe("#dir=%2Fw");
    expect(backend.calls("POST /v1/web/exchange").map((one) => one.body)).toEqual([{ code: "c1" }]);
    const [entered] = backend.calls("POST /v1/workspaces");
    expect(entered?.body.path).toBe("/w");
    expect(entered?.token).toBe("t1");
    expect(backend.requests.every((one) => !`${one.path}?${one.query}`.includes("t1"))).toBe(true);
    expect(backend.calls("GET /v1/workspaces/w/events")[0]?.query.get("since")).toBe("10");
  });

  test("a used code shows what to do", async () => {
    backend.on("POST /v1/web/exchange", () => ({ status: 403, body: { message: "Run holdfast web again." } }));
    history.replaceState(null, "", "/#code=old&dir=%2Fw");
    vi.resetModules();
    store = await import("../src/store.ts");
    await store.start();
    expect(store.connection.value).toMatchObject({ state: "signed-out", trouble: "Run holdfast web again." });
  });

  test("the session of the URL is opened unless it was deleted", async () => {
    await openStore("#code=c1&dir=%2Fw&session=s2");
    expect(store.sessionId.value).toBe("s2");
    expect(store.messageOf("m1").value?.session_id).toBe("s2");
    await store.chooseSession("s1");
    expect(location.hash).toContain("session=s1");
    history.back();
    await vi.waitFor(() => expect(store.sessionId.value).toBe("s2"));
  });
});

describe("following", () => {
  test("tokens update the message with one rendering for many", async () => {
    await openStore();
    await store.chooseSession("s1");
    let drawings = 0;
    const stop = store.messageOf("m1").subscribe(() => (drawings += 1));
    const before = drawings;
    let offset = 5;
    for (const word of ["!", " more", " and", " more"]) {
      backend.send({ type: "message_delta", payload: { session_id: "s1", message_id: "m1", part: 0, offset, text: word } });
      offset += word.length;
    }
    await vi.waitFor(() => expect(store.messageOf("m1").value?.parts[0]).toEqual({ type: "text", data: { text: "in s1! more and more" } }));
    expect(drawings - before).toBeLessThanOrEqual(2);
    stop();
  });

  test("a broken stream is resumed after the last number and reported", async () => {
    await openStore();
    backend.send({ type: "session", payload: { type: "created", payload: session("s3") } }, 11);
    await vi.waitFor(() => expect(store.cursor.value).toBe(11));
    backend.streams[0]?.destroy();
    await vi.waitFor(() => expect(backend.streams).toHaveLength(2));
    await vi.waitFor(() => expect(store.connection.value.state).toBe("live"));
    expect(backend.calls("GET /v1/workspaces/w/events").map((one) => one.query.get("since"))).toEqual(["10", "11"]);
    expect(store.connection.value.resumed).toMatchObject({ from: 11 });
    expect(store.sessions.value.map((one) => one.id).sort()).toEqual(["s1", "s2", "s3"]);
  });

  test("events in one frame are all shown", async () => {
    await openStore();
    const permission = { id: "a", session_id: "s1", tool_call_id: "c", run_id: "r", tool_name: "bash", description: "", action: "execute", params: {}, path: "/w" };
    const notifications = [
      { type: "run", payload: { type: "created", payload: run("r", { state: "active" }) } },
      { type: "permission_request", payload: { type: "created", payload: permission } },
      { type: "message", payload: { type: "created", payload: message("m2", "so") } },
      { type: "session", payload: { type: "updated", payload: session("s1", { title: "named", message_count: 1 }) } },
    ];
    // In every order: no change of one event is lost because of another one.
    for (const [at, events] of [notifications, [...notifications].reverse()].entries()) {
      events.forEach((event, index) => backend.send(event, 11 + 10 * at + index));
      await vi.waitFor(() => expect(store.cursor.value).toBe(14 + 10 * at));
      expect(store.permissions.value.map((one) => one.id)).toEqual(["a"]);
      expect(store.runs.value.map((one) => one.run_id)).toEqual(["r"]);
      expect(store.sessions.value.find((one) => one.id === "s1")?.title).toBe("named");
      backend.send({ type: "permission_notification", payload: { type: "created", payload: { id: "a", tool_call_id: "c", granted: true, denied: false } } }, 15 + 10 * at);
      backend.send({ type: "session", payload: { type: "updated", payload: session("s1") } }, 16 + 10 * at);
      await vi.waitFor(() => expect(store.cursor.value).toBe(16 + 10 * at));
      expect(store.permissions.value).toEqual([]);
    }
  });

  test("a gap is filled by a snapshot", async () => {
    await openStore();
    await store.chooseSession("s1");
    const count = backend.calls("GET /v1/workspaces/w/snapshot").length;
    backend.on("GET /v1/workspaces/w/snapshot", () => ({ body: { ...SNAPSHOT, cursor: 50, sessions: [session("s1")], messages: [message("m9", "new")] } }));
    backend.send({ type: "gap", payload: { cursor: 50, oldest: 40, epoch: 2 } });
    await vi.waitFor(() => expect(store.messageIds.value).toEqual(["m9"]));
    expect(backend.calls("GET /v1/workspaces/w/snapshot")).toHaveLength(count + 1);
    expect(store.cursor.value).toBe(50);
  });

  /** Selects s1, and plays the stream before its snapshot arrives. */
  async function chosenMeanwhile(snapshot: unknown, send: () => void): Promise<void> {
    let release = (): void => undefined;
    const held = new Promise<void>((resolve) => (release = resolve));
    backend.on("GET /v1/workspaces/w/snapshot", async () => {
      await held;
      return { body: snapshot };
    });
    const chosen = store.chooseSession("s1");
    send();
    await vi.waitFor(() => expect(store.cursor.value).toBe(12));
    release();
    await chosen;
  }

  const grown = (offset: number, text: string) => ({ type: "message_delta", payload: { session_id: "s1", message_id: "m2", part: 0, offset, text } });
  const speakMeanwhile = (): void => {
    backend.send({ type: "message", payload: { type: "created", payload: message("m2", "Half ") } }, 11);
    backend.send(grown(5, "of it"));
    backend.send({ type: "session", payload: { type: "created", payload: session("s3") } }, 12);
  };

  test("a snapshot older than the stream loses no event", async () => {
    await openStore();
    await chosenMeanwhile({ ...SNAPSHOT, cursor: 10, sessions: [session("s1")], messages: [message("m1", "in s1")] }, speakMeanwhile);
    expect(store.messageIds.value).toEqual(["m1", "m2"]);
    expect(store.messageOf("m2").value?.parts[0]?.data).toEqual({ text: "Half of it" });
    expect(store.sessions.value.map((one) => one.id).sort()).toEqual(["s1", "s3"]);
    expect(store.cursor.value).toBe(12);
    // Later events continue from there.
    backend.send(grown(10, "!"));
    await vi.waitFor(() => expect(store.messageOf("m2").value?.parts[0]?.data).toEqual({ text: "Half of it!" }));
  });

  test("a snapshot newer than the stream applies no event twice", async () => {
    await openStore();
    const newer = { ...SNAPSHOT, cursor: 13, sessions: [session("s1"), session("s3"), session("s4")], messages: [message("m2", "Half of it, and more")] };
    await chosenMeanwhile(newer, speakMeanwhile);
    backend.send(grown(10, ", and"));
    backend.send({ type: "session", payload: { type: "created", payload: session("s4") } }, 13);
    backend.send(grown(20, "!"));
    await vi.waitFor(() => expect(store.messageOf("m2").value?.parts[0]?.data).toEqual({ text: "Half of it, and more!" }));
    expect(store.messageIds.value).toEqual(["m2"]);
    expect(store.sessions.value.map((one) => one.id).sort()).toEqual(["s1", "s3", "s4"]);
    expect(store.cursor.value).toBe(13);
  });

  test("the last of two selections counts, in any order of responses", async () => {
    await openStore();
    const answer = backend.routes.get("GET /v1/workspaces/w/snapshot");
    let release = (): void => undefined;
    const held = new Promise<void>((resolve) => (release = resolve));
    backend.on("GET /v1/workspaces/w/snapshot", async (request) => {
      if (request.query.get("session_id") === "s1") await held;
      return answer?.(request) ?? {};
    });
    const first = store.chooseSession("s1");
    await store.chooseSession("s2");
    release();
    await first;
    expect(store.sessionId.value).toBe("s2");
    expect(store.messageOf("m1").value?.session_id).toBe("s2");
  });

  test("the messages of a session that is no longer shown are dropped", async () => {
    await openStore();
    await store.chooseSession("s1");
    const before = store.messageOf("m1");
    expect(before.value).toBeDefined();
    backend.on("GET /v1/workspaces/w/snapshot", () => ({ body: { ...SNAPSHOT, sessions: [session("s1"), session("s2")], messages: [message("m2", "in s2", "s2")] } }));
    await store.chooseSession("s2");
    expect(before.value).toBeUndefined();
    expect(store.messageOf("m1").value).toBeUndefined();
    expect(store.messageIds.value).toEqual(["m2"]);
  });

  test("a prompt sent while another session loads belongs to that session", async () => {
    await openStore();
    await store.chooseSession("s1");
    const answer = backend.routes.get("GET /v1/workspaces/w/snapshot");
    let release = (): void => undefined;
    const held = new Promise<void>((resolve) => (release = resolve));
    backend.on("GET /v1/workspaces/w/snapshot", async (request) => {
      await held;
      return answer?.(request) ?? {};
    });
    backend.on("POST /v1/workspaces/w/agent", () => ({ status: 202, body: {} }));
    const chosen = store.chooseSession("s2");
    await store.prompt("for the second");
    expect(backend.calls("POST /v1/workspaces/w/agent")[0]?.body).toMatchObject({ session_id: "s2" });
    release();
    await chosen;
  });

  test("a session that fails to load leaves the shown one", async () => {
    await openStore();
    await store.chooseSession("s1");
    backend.on("GET /v1/workspaces/w/snapshot", () => ({ status: 500, body: { message: "no" } }));
    await expect(store.chooseSession("s2")).rejects.toThrow();
    backend.on("POST /v1/workspaces/w/agent", () => ({ status: 202, body: {} }));
    await store.prompt("for the first");
    expect(backend.calls("POST /v1/workspaces/w/agent")[0]?.body).toMatchObject({ session_id: "s1" });
  });

  test("the outcome of a request is stored by its id", async () => {
    await openStore();
    const permission = { id: "a1", session_id: "s1", tool_call_id: "c1", tool_name: "bash", description: "", action: "execute", params: {}, path: "/" };
    backend.send({ type: "permission_request", payload: { type: "created", payload: permission } }, 11);
    await vi.waitFor(() => expect(store.permissions.value).toEqual([permission]));
    backend.send({ type: "permission_notification", payload: { type: "created", payload: { id: "a1", tool_call_id: "c1", granted: true, denied: false, by: "other-client" } } }, 12);
    await vi.waitFor(() => expect(store.permissions.value).toEqual([]));
    expect(store.answers.value.get("a1")).toMatchObject({ by: "other-client" });
  });

  test("other clients of the same session are counted", async () => {
    await openStore("#code=c1&dir=%2Fw&session=s1");
    await vi.waitFor(() => expect(store.others.value).toBe(2));
    expect(backend.calls("POST /v1/workspaces/w/current-session")[0]?.body).toEqual({ session_id: "s1" });
  });
});

describe("prompts", () => {
  const accepted = { run_id: "r", session_id: "s1", delivery: "steer", position: 0 };

  test("a prompt without a response is resent with the same id", async () => {
    await openStore("#code=c1&dir=%2Fw&session=s1");
    let count = 0;
    backend.on("POST /v1/workspaces/w/agent", () => {
      count += 1;
      return count < 3 ? "hang up" : { status: 202, body: accepted };
    });
    await store.prompt("hello", { delivery: "queue" });
    const sent = backend.calls("POST /v1/workspaces/w/agent").map((one) => one.body);
    expect(sent).toHaveLength(3);
    expect(new Set(sent.map((body) => body.run_id)).size).toBe(1);
    expect(sent[0]?.run_id).toMatch(/^[0-9a-f-]{36}$/);
    expect(sent[0]).toMatchObject({ prompt: "hello", session_id: "s1", delivery: "queue", interactive: true, client_id: store.clientId.value });
  });

  test("a prompt without a response keeps its id when resent by the user; another one does not", async () => {
    await openStore("#code=c1&dir=%2Fw&session=s1");
    backend.on("POST /v1/workspaces/w/agent", () => "hang up");
    await expect(store.prompt("hello")).rejects.toMatchObject({ status: 0 });
    backend.on("POST /v1/workspaces/w/agent", () => ({ status: 202, body: accepted }));
    await store.prompt("hello");
    await store.prompt("hello");
    const ids = backend.calls("POST /v1/workspaces/w/agent").map((one) => one.body.run_id as string);
    expect(new Set(ids.slice(0, 4)).size).toBe(1);
    expect(ids[4]).not.toBe(ids[3]);
  });

  test("a refused prompt is not resent, and the reason is shown", async () => {
    await openStore("#code=c1&dir=%2Fw&session=s1");
    backend.on("POST /v1/workspaces/w/agent", () => ({ status: 409, body: { message: "The session is busy." } }));
    await expect(store.prompt("hello")).rejects.toMatchObject({ status: 409, message: "The session is busy." });
    expect(backend.calls("POST /v1/workspaces/w/agent")).toHaveLength(1);
    expect(await store.reportErrors(store.prompt("hello"))).toBeUndefined();
    expect(store.toasts.value.map((one) => one.text)).toEqual(["The session is busy."]);
  });

  test("the first prompt creates the session and keeps the draft", async () => {
    await openStore();
    backend.on("POST /v1/workspaces/w/sessions", () => ({ body: session("s1") }));
    backend.on("POST /v1/workspaces/w/agent", () => ({ status: 202, body: accepted }));
    await store.prompt("hello");
    expect(store.sessionId.value).toBe("s1");
    expect(backend.calls("POST /v1/workspaces/w/agent")[0]?.body.session_id).toBe("s1");
  });

  test("a cancel restores the queued prompts of this page only", async () => {
    await openStore("#code=c1&dir=%2Fw&session=s1");
    backend.on("POST /v1/workspaces/w/agent/sessions/s1/cancel", () => ({ body: { cancelled: [] } }));
    const mine = { client_id: store.clientId.value };
    [run("head", { state: "active" }), run("one", { ...mine, number: 2 }), run("theirs", { client_id: "x", number: 3 }), run("two", { ...mine, number: 4 })].forEach(
      (one, at) => backend.send({ type: "run", payload: { type: "created", payload: one } }, 11 + at),
    );
    await vi.waitFor(() => expect(store.queue.value.map((one) => one.run_id)).toEqual(["one", "theirs", "two"]));
    expect(store.head.value?.run_id).toBe("head");
    composing.text.value = "draft";
    await store.cancel();
    expect(composing.text.value).toBe("one\n\ntwo\n\ndraft");
  });

  test("a queued prompt is restored with its attachments", async () => {
    await openStore("#code=c1&dir=%2Fw&session=s1");
    backend.on("POST /v1/workspaces/w/agent", (request) => ({ status: 202, body: { ...accepted, run_id: request.body.run_id } }));
    const file = { content: "aGk=", file_path: "a.txt", file_name: "a.txt", mime_type: "text/plain" };
    await store.prompt("with a file", { attachments: [file] });
    const id = backend.calls("POST /v1/workspaces/w/agent")[0]?.body.run_id as string;
    backend.on(`POST /v1/workspaces/w/runs/${id}/cancel`, () => ({ body: run(id) }));
    await store.editQueued(run(id, { prompt: "with a file" }));
    expect(composing.text.value).toBe("with a file");
    expect(composing.pending.value.map((one) => [one.attachment, one.size])).toEqual([[file, 2]]);
  });

  test("the order of the queue is the server's", async () => {
    await openStore("#code=c1&dir=%2Fw&session=s1");
    ["a", "b", "c"].forEach((name, at) => backend.send({ type: "run", payload: { type: "created", payload: run(name, { number: 11 + at }) } }, 11 + at));
    await vi.waitFor(() => expect(store.queue.value).toHaveLength(3));
    backend.on("GET /v1/workspaces/w/agent/sessions/s1/prompts/list", () => ({ body: ["c", "a", "b"] }));
    const { prompt: _gone, ...moved } = run("c", { number: 13 });
    backend.send({ type: "run", payload: { type: "updated", payload: moved } }, 14);
    await vi.waitFor(() => expect(store.queue.value.map((one) => one.run_id)).toEqual(["c", "a", "b"]));
    expect(store.queue.value[0]?.prompt).toBe("c");
  });

  test("drafts belong to their sessions", async () => {
    await openStore("#code=c1&dir=%2Fw&session=s1");
    composing.text.value = "for one";
    await store.chooseSession("s2");
    expect(composing.text.value).toBe("");
    composing.text.value = "for two";
    await store.chooseSession("s1");
    expect(composing.text.value).toBe("for one");
  });
});

describe("requests and errors", () => {
  test("an answer contains its client and is accepted once", async () => {
    await openStore();
    backend.on("POST /v1/workspaces/w/permissions/grant", () => ({ body: { resolved: false } }));
    const permission = { id: "a1", session_id: "s1", tool_call_id: "c1", tool_name: "bash", description: "", action: "execute", params: { command: "ls" }, path: "/" };
    expect(await store.answerPermission(permission, "deny", "no")).toBe(false);
    const [sent] = backend.calls("POST /v1/workspaces/w/permissions/grant");
    expect(sent?.query.get("client_id")).toBe(store.clientId.value);
    expect(sent?.body).toEqual({ permission, action: "deny", reason: "no" });
  });

  test("a missing response is a message, not an exception", async () => {
    await openStore();
    backend.on("GET /v1/workspaces/w/stats", () => "hang up");
    await expect(store.stats()).rejects.toMatchObject({ name: "Problem", status: 0 });
  });
});

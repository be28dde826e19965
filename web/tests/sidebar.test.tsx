// The session list: busy sessions, approvals, other clients; and the search in all sessions.

import { render } from "preact";
import { act } from "preact/test-utils";
import { beforeEach, expect, test } from "vitest";
import { panel } from "../src/shell/ui.ts";
import { Sidebar } from "../src/shell/sidebar.tsx";
import { permissions, runs, sessionId, sessions } from "../src/store.ts";
import type { Run, Session } from "../src/wire/types.ts";

let container: HTMLElement;

const session = (id: string, more: Partial<Session> = {}): Session => ({
  id, parent_session_id: "", title: `title of ${id}`, message_count: 0, prompt_tokens: 0, completion_tokens: 0, summary_message_id: "", cost: 0,
  created_at: 1, updated_at: 1, is_busy: false, attached_clients: 0, ...more,
});
const run = (state: Run["state"], of = "a"): Run => ({ run_id: "r", session_id: of, state, delivery: "queue", accepted_at: 1, number: 1 });
const marks = (): string[] => [...container.querySelectorAll<HTMLElement>("[data-testid=session]")].map((one) => `${one.dataset["id"]}:${one.querySelector(".dot")?.textContent ?? ""}`);

beforeEach(async () => {
  container = document.createElement("div");
  document.body.replaceChildren(container);
  sessions.value = [session("a"), session("b")];
  runs.value = [];
  permissions.value = [];
  sessionId.value = null;
  panel.value = null;
  await act(() => render(<Sidebar />, container));
});

test("a session is busy exactly while one of its runs is open", async () => {
  expect(marks()).toEqual(["a:", "b:"]);
  for (const state of ["waiting", "accepted", "active", "cancelling"] as const) {
    await act(() => void (runs.value = [run(state)]));
    expect(marks()).toEqual(["a:busy", "b:"]);
  }
  for (const state of ["ended", "folded"] as const) {
    await act(() => void (runs.value = [run(state)]));
    expect(marks()).toEqual(["a:", "b:"]);
  }
});

test("the state in a fetched session does not make it busy", async () => {
  await act(() => void (sessions.value = [session("a", { is_busy: true }), session("b")]));
  expect(marks()).toEqual(["a:", "b:"]);
});

test("a session that waits for approval is marked first", async () => {
  await act(() => {
    runs.value = [run("active")];
    permissions.value = [{ id: "p", session_id: "a", tool_call_id: "c", tool_name: "bash", description: "", action: "execute", params: {}, path: "/" }];
  });
  expect(marks()).toEqual(["a:waits for approval", "b:"]);
});

test("other clients of a session are counted, without this page", async () => {
  await act(() => void (sessions.value = [session("a", { attached_clients: 2 }), session("b", { attached_clients: 1 })]));
  expect(marks()).toEqual(["a:2 attached", "b:1 attached"]);
  await act(() => void (sessionId.value = "b"));
  expect(marks()).toEqual(["a:2 attached", "b:"]);
});

test("words without a matching title can be searched in all sessions", async () => {
  const field = container.querySelector<HTMLInputElement>("input[type=search]");
  expect(container.querySelector("[data-testid=search-all]")).toBeNull();
  await act(() => {
    if (field) field.value = "elsewhere";
    field?.dispatchEvent(new Event("input", { bubbles: true }));
  });
  expect(marks()).toEqual([]);
  const further = container.querySelector<HTMLButtonElement>("[data-testid=search-all]");
  expect(further?.textContent).toContain("“elsewhere”");
  await act(() => further?.click());
  expect(panel.value).toBe("search");
});

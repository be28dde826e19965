import { render } from "preact";
import { act } from "preact/test-utils";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { Requests, RequestsBar } from "../src/dialogs/requests.tsx";
import { beginKeyboard } from "../src/dialogs/keyboard.ts";
import { ModelsDialog } from "../src/dialogs/model-picker.tsx";
import { Palette } from "../src/palette/palette.tsx";
import { dialog } from "../src/shell/ui.ts";
import { answers, clientId, permissions, providers, questions, registerCommand, toasts, workspace } from "../src/store.ts";
import type { PermissionRequest, QuestionRequest } from "../src/wire/types.ts";
import { Backend } from "./server.ts";

const permission: PermissionRequest = {
  id: "a",
  session_id: "s",
  tool_call_id: "c",
  tool_name: "bash",
  description: "",
  action: "execute",
  path: "/w",
  params: { command: "make\u001b[2K all" },
  rules: ["bash(make *)"],
};
const batch: QuestionRequest = {
  id: "b",
  session_id: "s",
  tool_call_id: "c",
  questions: [
    { id: "q1", type: "yes_no", question: "Sure?" },
    { id: "q2", type: "free_text", question: "Why?" },
  ],
};

let backend: Backend;
let over: () => void;
let container: HTMLElement;

beforeEach(async () => {
  backend = new Backend();
  backend.on("POST /v1/workspaces/w/permissions/grant", () => ({ body: { resolved: true } }));
  backend.on("POST /v1/workspaces/w/questions/answer", () => ({ body: { resolved: true } }));
  await backend.open();
  workspace.value = { id: "w", path: "/w" };
  clientId.value = "me";
  container = document.createElement("div");
  document.body.append(container);
  over = beginKeyboard();
});

afterEach(async () => {
  doing(() => render(null, container));
  over();
  container.remove();
  permissions.value = [];
  questions.value = [];
  answers.value = new Map();
  toasts.value = [];
  dialog.value = null;
  await backend.close();
});

/** Performs an action and lets the page render its effect. */
const doing = (work: () => unknown): void =>
  void act(() => {
    work();
  });
const draw = (node: preact.JSX.Element): void => doing(() => render(node, container));
const find = (selector: string): HTMLElement => {
  const found = container.querySelector<HTMLElement>(selector);
  if (!found) throw new Error(`there is no ${selector}`);
  return found;
};
const press = (target: HTMLElement, key: string): void => doing(() => target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true })));
const focus = (selector: string): void => doing(() => find(selector).focus());
const write = (field: HTMLInputElement | HTMLTextAreaElement, text: string): void =>
  doing(() => {
    field.value = text;
    field.dispatchEvent(new Event("input", { bubbles: true }));
  });
const granted = async (): Promise<unknown> => {
  await vi.waitFor(() => expect(backend.calls("POST /v1/workspaces/w/permissions/grant")).toHaveLength(1));
  return backend.calls("POST /v1/workspaces/w/permissions/grant")[0]?.body;
};

describe("the approval panel", () => {
  beforeEach(() => {
    permissions.value = [permission];
    draw(
      <>
        <Requests />
        <RequestsBar />
      </>,
    );
  });

  it("shows the whole command with invisible characters escaped", () => {
    expect(find(".approval-command").textContent).toBe("make\\x1b[2K all");
    expect(find(".request").textContent).toContain("bash(make *)");
  });

  it("is answered by key once it has the focus", async () => {
    focus("[data-action=allow]");
    press(find("[data-action=allow]"), "s");
    expect(await granted()).toMatchObject({ action: "allow_session", permission: { id: "a" } });
  });

  it("has no letter for a permanent rule", () => {
    focus("[data-action=allow]");
    for (const letter of "wyepl") press(find("[data-action=allow]"), letter);
    expect(backend.requests).toEqual([]);
  });

  it("is answered by button", async () => {
    focus("[data-action=allow]");
    doing(() => find("[data-action=allow]").click());
    expect(await granted()).toMatchObject({ action: "allow" });
  });

  it("is denied with a reason", async () => {
    focus("[data-action=allow]");
    press(find("[data-action=allow]"), "r");
    const field = find(".approval-reason input") as HTMLInputElement;
    write(field, "use the script");
    // Letters of the reason are not answers.
    press(field, "a");
    doing(() => find(".approval-reason").dispatchEvent(new Event("submit", { bubbles: true, cancelable: true })));
    expect(await granted()).toMatchObject({ action: "deny", reason: "use the script" });
  });

  it("shows where it was answered, also when postponed", () => {
    doing(() => find("[aria-label='Decide later']").click());
    doing(() => {
      answers.value = new Map([["a", { id: "a", tool_call_id: "c", granted: false, denied: true, by: "someone-else" }]]);
      permissions.value = [];
    });
    expect(container.querySelector(".request-later")).toBeNull();
    expect(find("[data-testid=permission-closed]").textContent).toContain("Denied in another client");
  });

  it("can be postponed and reopened", () => {
    doing(() => find("[aria-label='Decide later']").click());
    expect(container.querySelector(".request")).toBeNull();
    expect(find(".requests-bar").textContent).toContain("bash wants to run a command");
    doing(() => find(".request-later").click());
    expect(container.querySelector(".request")).not.toBeNull();
    expect(backend.requests).toEqual([]);
  });

  it("closes when another client has answered, and shows which", () => {
    doing(() => {
      answers.value = new Map([["a", { id: "a", tool_call_id: "c", granted: true, denied: false, by: "someone-else" }]]);
      permissions.value = [];
    });
    expect(container.querySelector(".request")).toBeNull();
    expect(find("[data-testid=permission-closed]").textContent).toContain("Allowed in another client (someone-)");
  });
});

describe("a new request", () => {
  it("does not react to an immediate click or key", () => {
    permissions.value = [permission];
    draw(<Requests />);
    expect(find("[data-action=allow]").getAttribute("aria-disabled")).toBe("true");
    doing(() => find("[data-action=allow]").click());
    for (const key of ["Enter", "ArrowRight", "Enter", "a", "d", "r", "Escape"]) press(document.body, key);
    expect(container.querySelector(".approval-reason")).toBeNull();
    expect(backend.requests).toEqual([]);
  });

  it("is answered once: a pending answer cannot be repeated", () => {
    permissions.value = [permission];
    draw(<Requests />);
    focus("[data-action=allow]");
    doing(() => find("[data-action=deny]").click());
    expect((find("[data-action=allow]") as HTMLButtonElement).disabled).toBe(true);
  });
});

describe("the question panel", () => {
  it("sends all answers together", async () => {
    questions.value = [batch];
    draw(<Requests />);
    focus("input[type=radio]");
    doing(() => (container.querySelectorAll("input[type=radio]")[1] as HTMLInputElement).click());
    write(find("textarea") as HTMLTextAreaElement, " so ");
    doing(() => find("[data-action=send]").click());
    await vi.waitFor(() => expect(backend.calls("POST /v1/workspaces/w/questions/answer")).toHaveLength(1));
    expect(backend.calls("POST /v1/workspaces/w/questions/answer")[0]?.body).toEqual({
      batch_request_id: "b",
      responses: [
        { request_id: "q1", yes: false },
        { request_id: "q2", fill_in_text: "so" },
      ],
    });
  });
});

describe("the model picker", () => {
  it("accepts a missing key and does not keep it", async () => {
    const offered = [{ id: "far", name: "Far", lack: "Far needs a key.", models: [{ id: "m", name: "M" }] }];
    backend.on("GET /v1/workspaces/w/providers", () => ({ body: offered }));
    backend.on("POST /v1/workspaces/w/config/provider-key", () => ({}));
    providers.value = offered;
    draw(<ModelsDialog />);
    doing(() => find("[role=option]").click());
    const field = find("input[type=password]") as HTMLInputElement;
    field.value = "secret-key";
    doing(() => find("form").dispatchEvent(new Event("submit", { bubbles: true, cancelable: true })));
    await vi.waitFor(() => expect(backend.calls("POST /v1/workspaces/w/config/provider-key")).toHaveLength(1));
    expect(backend.calls("POST /v1/workspaces/w/config/provider-key")[0]?.body).toMatchObject({ provider_id: "far", api_key: "secret-key" });
    expect(field.value).toBe("");
    expect(JSON.stringify({ ...localStorage, ...sessionStorage })).not.toContain("secret-key");
    expect(document.body.innerHTML).not.toContain("secret-key");
  });
});

describe("the palette", () => {
  it("finds a command by a few letters and runs it", async () => {
    const run = vi.fn();
    registerCommand({ name: "dance", title: "Dance on the table", keys: "alt+z", run });
    registerCommand({ name: "sleep", title: "Sleep", run: () => undefined, when: () => false });
    dialog.value = "palette";
    draw(<Palette />);
    expect(container.textContent).not.toContain("Sleep");
    write(find("input") as HTMLInputElement, "dott");
    press(find("input"), "Enter");
    await vi.waitFor(() => expect(run).toHaveBeenCalledOnce());
    expect(dialog.value).toBeNull();
  });
});

// Open requests: one panel at a time, and a bar for the postponed ones. All clients show the same requests; the first
// answer counts, and the other clients show where it was given.

import { effect, signal } from "@preact/signals";
import type { JSX } from "preact";
import { Icon } from "../shell/icons.tsx";
import { pluralize } from "../shell/format.ts";
import { answers, clientId, permissions, questions, sessionId } from "../store.ts";
import type { PermissionRequest, QuestionRequest } from "../wire/types.ts";
import { ApprovalPanel } from "./permission.tsx";
import { QuestionPanel } from "./question.tsx";
import { describeOutcome, describeRequest } from "./permission-text.ts";

/** Requests that were postponed on this page. */
const postponed = signal<ReadonlySet<string>>(new Set());
/** The outcome of the request that was open here, if another client has closed it. */
const closed = signal<{ readonly text: string } | null>(null);
const CLOSED_NOTICE_DURATION = 20_000;
let shown = "";
let timer: ReturnType<typeof setTimeout> | undefined;

function showClosed(text: string): void {
  closed.value = { text };
  clearTimeout(timer);
  timer = setTimeout(() => (closed.value = null), CLOSED_NOTICE_DURATION);
}

type Open = { kind: "permission"; request: PermissionRequest } | { kind: "question"; request: QuestionRequest };

function first(): Open | null {
  const isMine = (request: { session_id: string }): boolean => request.session_id === sessionId.value;
  const later = postponed.value;
  const permission = permissions.value.filter((request) => !later.has(request.id)).sort((a, b) => Number(isMine(b)) - Number(isMine(a)))[0];
  if (permission) return { kind: "permission", request: permission };
  const batch = questions.value.find((request) => !later.has(request.id));
  return batch ? { kind: "question", request: batch } : null;
}

effect(() => {
  const open = new Set([...permissions.value, ...questions.value].map((request) => request.id));
  const later = postponed.peek();
  const over = [shown, ...later].filter((id) => id && !open.has(id));
  for (const id of over) {
    const answer = answers.value.get(id);
    if (answer && answer.by !== clientId.value) showClosed(describeOutcome(answer));
  }
  if (over.includes(shown)) shown = "";
  if (over.length) postponed.value = new Set([...later].filter((id) => open.has(id)));
});

export function Requests(): JSX.Element | null {
  const open = first();
  if (!open) return null;
  shown = open.request.id;
  const postpone = (): void => {
    postponed.value = new Set([...postponed.value, open.request.id]);
    shown = "";
  };
  if (open.kind === "permission") {
    const more = permissions.value.length + questions.value.length - 1;
    return <ApprovalPanel key={open.request.id} request={open.request} more={more} onAside={postpone} />;
  }
  return <QuestionPanel key={open.request.id} batch={open.request} onAside={postpone} />;
}

/** Above the composer: postponed requests, and the outcome of a request that another client has closed. */
export function RequestsBar(): JSX.Element | null {
  const waiting = [...permissions.value, ...questions.value].filter((request) => postponed.value.has(request.id));
  const over = closed.value;
  if (!waiting.length && !over) return null;
  const one = waiting[0];
  const what = one && "tool_name" in one ? describeRequest(one) : "The model has questions";
  return (
    <div class="requests-bar" role="status">
      {one && (
        <button type="button" class="request-later" onClick={() => (postponed.value = new Set())}>
          <span class="dot approval" />
          <span class="grow clip">{waiting.length > 1 ? `${pluralize(waiting.length, "request")} open` : what}</span>
          <span class="button small">Decide</span>
        </button>
      )}
      {over && (
        <p class="request-closed" data-testid="permission-closed">
          <Icon name="people" small />
          <span class="grow">{over.text}</span>
          <button type="button" class="square small" aria-label="Got it" onClick={() => (closed.value = null)}>
            <Icon name="close" small />
          </button>
        </p>
      )}
    </div>
  );
}

// What waits for somebody: one panel at a time, and a bar for what was put aside. Every screen shows the same; the
// first answer counts, and the others say who gave it.

import { effect, signal } from "@preact/signals";
import type { JSX } from "preact";
import { Icon } from "../shell/icons.tsx";
import { counted } from "../shell/format.ts";
import { answers, clientId, permissions, questions, sessionId } from "../store.ts";
import type { PermissionRequest, QuestionRequest } from "../wire/types.ts";
import { ApprovalPanel } from "./permission.tsx";
import { QuestionPanel } from "./question.tsx";
import { verdictOf, wishOf } from "./wishes.ts";

/** Asks that somebody here wants to decide later. */
const aside = signal<ReadonlySet<string>>(new Set());
/** What became of the dialog that was open here, if somebody else has closed it. */
const closed = signal<{ readonly text: string } | null>(null);
const CLOSED_FOR = 20_000;
let shown = "";
let timer: ReturnType<typeof setTimeout> | undefined;

function tell(text: string): void {
  closed.value = { text };
  clearTimeout(timer);
  timer = setTimeout(() => (closed.value = null), CLOSED_FOR);
}

type Open = { kind: "permission"; ask: PermissionRequest } | { kind: "question"; ask: QuestionRequest };

function first(): Open | null {
  const isMine = (ask: { session_id: string }): boolean => ask.session_id === sessionId.value;
  const later = aside.value;
  const permission = permissions.value.filter((ask) => !later.has(ask.id)).sort((a, b) => Number(isMine(b)) - Number(isMine(a)))[0];
  if (permission) return { kind: "permission", ask: permission };
  const batch = questions.value.find((ask) => !later.has(ask.id));
  return batch ? { kind: "question", ask: batch } : null;
}

effect(() => {
  const open = new Set([...permissions.value, ...questions.value].map((ask) => ask.id));
  const later = aside.peek();
  const over = [shown, ...later].filter((id) => id && !open.has(id));
  for (const id of over) {
    const answer = answers.value.get(id);
    if (answer && answer.by !== clientId.value) tell(verdictOf(answer));
  }
  if (over.includes(shown)) shown = "";
  if (over.length) aside.value = new Set([...later].filter((id) => open.has(id)));
});

export function Asks(): JSX.Element | null {
  const open = first();
  if (!open) return null;
  shown = open.ask.id;
  const putAside = (): void => {
    aside.value = new Set([...aside.value, open.ask.id]);
    shown = "";
  };
  if (open.kind === "permission") {
    const more = permissions.value.length + questions.value.length - 1;
    return <ApprovalPanel key={open.ask.id} ask={open.ask} more={more} onAside={putAside} />;
  }
  return <QuestionPanel key={open.ask.id} batch={open.ask} onAside={putAside} />;
}

/** Above the composer: what was put aside, and who answered what was open here. */
export function AsksBar(): JSX.Element | null {
  const waiting = [...permissions.value, ...questions.value].filter((ask) => aside.value.has(ask.id));
  const over = closed.value;
  if (!waiting.length && !over) return null;
  const one = waiting[0];
  const what = one && "tool_name" in one ? wishOf(one) : "The model would like to know something";
  return (
    <div class="asks-bar" role="status">
      {one && (
        <button type="button" class="ask-later" onClick={() => (aside.value = new Set())}>
          <span class="dot asks" />
          <span class="grow clip">{waiting.length > 1 ? `${counted(waiting.length, "answer")} are waited for` : what}</span>
          <span class="button small">Decide</span>
        </button>
      )}
      {over && (
        <p class="ask-closed" data-testid="permission-closed">
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

// An approval: shows exactly what the tool would do, and the possible answers with their scope.

import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { columns, Diff, turnColumns } from "../diff/diff-view.tsx";
import { countChanges, hasTwoSides } from "../diff/lines.ts";
import { Icon } from "../shell/icons.tsx";
import { answerPermission, reportErrors, sessionId, sessions, workspace } from "../store.ts";
import { relativePath } from "../cards/tool-data.ts";
import type { GrantAction, PermissionRequest } from "../wire/types.ts";
import { hasInvisible } from "./escape-invisible.ts";
import { Exact } from "./exact-text.tsx";
import { leave, mayClick, panelState, useRequest } from "./keyboard.ts";
import { RequestPanel } from "./request-panel.tsx";
import { subjectOf, describeRequest } from "./permission-text.ts";
import type { RequestSubject } from "./permission-text.ts";

/** Active only with the focus. A permanent rule has no letter: it requires the button. */
const LETTERS: Readonly<Record<string, GrantAction>> = { a: "allow", s: "allow_session", d: "deny" };
const LABELS: Readonly<Record<GrantAction, string>> = { allow: "Allow once", allow_session: "For this session", allow_always: "Always", deny: "Deny" };
const KEYS = {
  active: ["← → choose", "Enter answers", "Tab for shortcuts and a reason", "letters go to the composer"],
  focused: ["Enter or Space presses the button", "A once", "S session", "D no", "R deny with a reason", "F full screen", "Esc back to the composer"],
};

interface Props {
  readonly request: PermissionRequest;
  readonly more: number;
  onAside(): void;
}

export function ApprovalPanel({ request, more, onAside }: Props): JSX.Element {
  const [reason, setReason] = useState<string | null>(null);
  const [isWhole, setWhole] = useState(false);
  const [isSent, setSent] = useState(false);
  const [selected, setSelected] = useState(0);
  const element = useRef<HTMLElement>(null);
  const rules = request.rules ?? [];
  const what = useMemo(() => subjectOf(request), [request]);
  const actions = (["allow", "allow_session", "allow_always", "deny"] as const).filter((one) => one !== "allow_always" || rules.length > 0);
  const button = (action: GrantAction | undefined): HTMLElement | null => element.current?.querySelector(`[data-action=${action ?? "allow"}]`) ?? null;

  const answer = async (action: GrantAction, why = ""): Promise<void> => {
    if (isSent) return;
    leave();
    setSent(true);
    if ((await reportErrors(answerPermission(request, action, why))) === undefined) setSent(false);
  };
  const move = (by: number): number => Math.max(0, Math.min(actions.length - 1, selected + by));
  useRequest(element, {
    id: request.id,
    kind: "approval",
    enter: () => (button(actions[selected]) ?? element.current?.querySelector<HTMLElement>("input"))?.focus(),
    act: (key) => {
      if (key === "enter") void answer(actions[selected] ?? "deny");
      else setSelected(move(key === "left" || key === "up" ? -1 : 1));
    },
  });
  const onKeyDown = (event: KeyboardEvent): void => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || event.target instanceof HTMLInputElement) return;
    const action = LETTERS[event.key];
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (action) void answer(action);
    else if (step) button(actions[move(step)])?.focus();
    else if (event.key === "r") setReason(reason ?? "");
    else if (event.key === "t") turnColumns();
    else if (event.key === "f") setWhole(!isWhole);
    else return;
    event.preventDefault();
  };
  const back = (): void => {
    setReason(null);
    // The field that had the focus is removed; the answers are rendered with the next frame.
    requestAnimationFrame(() => button("deny")?.focus());
  };

  return (
    <RequestPanel
      title={<Title request={request} more={more} />}
      kind={`ask ${isWhole ? "whole" : ""}`}
      testid="permission"
      element={element}
      keys={KEYS}
      onAside={onAside}
      onKeyDown={onKeyDown}
      tools={<Tools what={what} isWhole={isWhole} onWhole={() => setWhole(!isWhole)} />}
      foot={
        reason === null ? (
          <Answers actions={actions} selected={selected} isSent={isSent} onSelect={setSelected} answer={(action) => void answer(action)} onReason={() => setReason("")} />
        ) : (
          <Reason text={reason} onText={setReason} onSend={() => void answer("deny", reason.trim())} onBack={back} />
        )
      }
    >
      <Subject what={what} />
      <Notes request={request} rules={rules} />
    </RequestPanel>
  );
}

function Title({ request, more }: { request: PermissionRequest; more: number }): JSX.Element {
  const other = request.session_id !== sessionId.value ? sessions.value.find((one) => one.id === request.session_id) : undefined;
  return (
    <>
      {describeRequest(request)}
      {more > 0 && <span class="chip">and {more} more</span>}
      {other && <span class="chip accent">in “{other.title}”</span>}
    </>
  );
}

function Tools({ what, isWhole, onWhole }: { what: RequestSubject; isWhole: boolean; onWhole(): void }): JSX.Element {
  const isSplit = columns.value === "split";
  return (
    <>
      {what.kind === "change" && hasTwoSides(what.lines) && (
        <button type="button" class="square" aria-pressed={isSplit} aria-label="Two columns (t)" title="Two columns (t)" onClick={turnColumns}>
          <Icon name="split" />
        </button>
      )}
      <button type="button" class="square" aria-pressed={isWhole} aria-label="Full screen (f)" title="Full screen (f)" onClick={onWhole}>
        <Icon name="wide" />
      </button>
    </>
  );
}

function Subject({ what }: { what: RequestSubject }): JSX.Element {
  switch (what.kind) {
    case "command":
      return (
        <>
          <pre class="approval-command" tabIndex={0} aria-label="The command">
            <Exact text={what.command} />
          </pre>
          {hasInvisible(what.command) && (
            <p class="approval-note warning">
              <Icon name="warning" small /> It contains invisible characters, which are shown as escape sequences.
            </p>
          )}
        </>
      );
    case "change": {
      const { added, removed } = countChanges(what.lines);
      return (
        <>
          <p class="approval-path">
            <Icon name="file" small />
            <span class="mono grow">
              <Exact text={relativePath(what.path, workspace.value?.path ?? "")} />
            </span>
            {what.isNew && <span class="chip success">new</span>}
            <span class="plus">+{added}</span>
            <span class="minus">−{removed}</span>
          </p>
          <Diff lines={what.lines} path={what.path} most={400} />
        </>
      );
    }
    case "facts":
      return (
        <dl class="approval-facts">
          {what.facts.map(([name, value]) => (
            <div key={name}>
              <dt>{name}</dt>
              <dd class="mono">
                <Exact text={value} />
              </dd>
            </div>
          ))}
        </dl>
      );
  }
}

function Notes({ request, rules }: { request: PermissionRequest; rules: readonly string[] }): JSX.Element {
  return (
    <ul class="approval-notes">
      {request.why && <li>{request.why}</li>}
      {request.path && "command" in (request.params ?? {}) && (
        <li>
          in <span class="mono">{request.path}</span>
        </li>
      )}
      {rules.length > 0 && (
        <li>
          “Always” saves the rule{" "}
          <span class="mono">
            <Exact text={rules.join(", ")} />
          </span>
        </li>
      )}
    </ul>
  );
}

interface AnswersProps {
  readonly actions: readonly GrantAction[];
  readonly selected: number;
  readonly isSent: boolean;
  onSelect(selected: number): void;
  answer(action: GrantAction): void;
  onReason(): void;
}

function Answers({ actions, selected, isSent, onSelect, answer, onReason }: AnswersProps): JSX.Element {
  const isActive = panelState.value === "active" || panelState.value === "focused";
  const button = (action: GrantAction, at: number): JSX.Element => (
    <button
      key={action}
      type="button"
      class={`button choose ${action === "deny" ? "danger" : ""} ${isActive && at === selected ? "chosen" : ""}`}
      data-action={action}
      disabled={isSent}
      aria-disabled={!isActive}
      onFocus={() => onSelect(at)}
      onClick={() => mayClick() && answer(action)}
    >
      {LABELS[action]}
    </button>
  );
  return (
    <div class="approval-answers">
      {actions.map((action, at) => button(action, at))}
      <span class="grow" />
      <button type="button" class="button danger" title="Deny with a reason" disabled={isSent} aria-disabled={!isActive} onClick={() => mayClick() && onReason()}>
        Reason …
      </button>
    </div>
  );
}

interface ReasonProps {
  readonly text: string;
  onText(text: string): void;
  onSend(): void;
  onBack(): void;
}

function Reason({ text, onText, onSend, onBack }: ReasonProps): JSX.Element {
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.focus(), []);
  return (
    <form
      class="approval-reason"
      onSubmit={(event) => {
        event.preventDefault();
        onSend();
      }}
    >
      <input
        ref={field}
        class="field"
        value={text}
        aria-label="Reason"
        placeholder="Reason for the model"
        onInput={(event) => onText(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key !== "Escape") return;
          event.preventDefault();
          event.stopPropagation();
          onBack();
        }}
      />
      <button type="submit" class="button danger" data-action="deny">
        No
      </button>
      <button type="button" class="button" onClick={onBack}>
        Back
      </button>
    </form>
  );
}

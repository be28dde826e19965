// A tool asks. One sees exactly what it would do, and says yes, no, or how far the yes goes.

import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { columns, Diff, turnColumns } from "../diff/view.tsx";
import { counted, hasTwoSides } from "../diff/lines.ts";
import { Icon } from "../shell/icons.tsx";
import { typedAt } from "../shell/ui.ts";
import { answerPermission, say, sessionId, sessions, toast, workspace } from "../store.ts";
import { inside } from "../cards/facts.ts";
import type { GrantAction, PermissionRequest } from "../wire/types.ts";
import { Dialog } from "./dialog.tsx";
import { hidesSomething } from "./exact.ts";
import { Exact } from "./exact.tsx";
import { whatOf, wishOf } from "./wishes.ts";
import type { What } from "./wishes.ts";

const STILL_WRITING = 1_500;
const DEAF = 700;
const KEYS: Readonly<Record<string, GrantAction>> = { a: "allow", s: "allow_session", w: "allow_always", d: "deny" };

interface Props {
  readonly ask: PermissionRequest;
  readonly more: number;
  onAside(): void;
}

export function PermissionDialog({ ask, more, onAside }: Props): JSX.Element {
  const [reason, setReason] = useState<string | null>(null);
  const [isWhole, setWhole] = useState(false);
  const [isSent, setSent] = useState(false);
  const hearsFrom = useRef(Date.now() - typedAt.value < STILL_WRITING ? Date.now() + DEAF : 0);
  const rules = ask.rules ?? [];
  const what = useMemo(() => whatOf(ask), [ask]);

  const answer = async (action: GrantAction, why = ""): Promise<void> => {
    if (isSent) return;
    if (action === "allow_always" && !rules.length) {
      toast("info", "No rule could allow this for always: allow it once, or for this session.");
      return;
    }
    setSent(true);
    if ((await say(answerPermission(ask, action, why))) === undefined) setSent(false);
  };
  const onKeyDown = (event: KeyboardEvent): void => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target instanceof HTMLInputElement) return;
    const action = KEYS[event.key];
    if (Date.now() < hearsFrom.current && event.key.length === 1) {
      // Who was writing, and goes on, does not mean this. A click is always meant.
      hearsFrom.current = Date.now() + DEAF;
    } else if (action) void answer(action);
    else if (event.key === "r") setReason(reason ?? "");
    else if (event.key === "t") turnColumns();
    else if (event.key === "f") setWhole(!isWhole);
    else return;
    event.preventDefault();
  };

  return (
    <Dialog
      title={<Title ask={ask} more={more} />}
      kind={`ask ${isWhole ? "whole" : ""} ${what.kind === "change" ? "wide" : ""}`}
      testid="permission"
      closeLabel="Decide later"
      focus=".ask-what"
      onClose={onAside}
      onKeyDown={onKeyDown}
      tools={<Tools what={what} isWhole={isWhole} onWhole={() => setWhole(!isWhole)} />}
      foot={
        reason === null ? (
          <Answers rules={rules} isSent={isSent} answer={(action) => void answer(action)} onReason={() => setReason("")} />
        ) : (
          <Reason text={reason} onText={setReason} onSend={() => void answer("deny", reason.trim())} onBack={() => setReason(null)} />
        )
      }
    >
      <div class="ask-what" tabIndex={-1}>
        <Subject what={what} />
        <Notes ask={ask} rules={rules} />
      </div>
    </Dialog>
  );
}

function Title({ ask, more }: { ask: PermissionRequest; more: number }): JSX.Element {
  const other = ask.session_id !== sessionId.value ? sessions.value.find((one) => one.id === ask.session_id) : undefined;
  return (
    <>
      {wishOf(ask)}
      {more > 0 && <span class="chip">and {more} more</span>}
      {other && <span class="chip accent">in “{other.title}”</span>}
    </>
  );
}

function Tools({ what, isWhole, onWhole }: { what: What; isWhole: boolean; onWhole(): void }): JSX.Element {
  const isSplit = columns.value === "split";
  return (
    <>
      {what.kind === "change" && hasTwoSides(what.lines) && (
        <button type="button" class="square" aria-pressed={isSplit} aria-label="Two columns (t)" title="Two columns (t)" onClick={turnColumns}>
          <Icon name="split" />
        </button>
      )}
      <button type="button" class="square" aria-pressed={isWhole} aria-label="Whole screen (f)" title="Whole screen (f)" onClick={onWhole}>
        <Icon name="wide" />
      </button>
    </>
  );
}

function Subject({ what }: { what: What }): JSX.Element {
  switch (what.kind) {
    case "command":
      return (
        <>
          <pre class="ask-command" tabIndex={0} aria-label="The command">
            <Exact text={what.command} />
          </pre>
          {hidesSomething(what.command) && (
            <p class="ask-note warning">
              <Icon name="warning" small /> It has characters that one would not see. They are spelled out.
            </p>
          )}
        </>
      );
    case "change": {
      const { added, removed } = counted(what.lines);
      return (
        <>
          <p class="ask-path">
            <Icon name="file" small />
            <span class="mono grow">
              <Exact text={inside(what.path, workspace.value?.path ?? "")} />
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
        <dl class="ask-facts">
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

function Notes({ ask, rules }: { ask: PermissionRequest; rules: readonly string[] }): JSX.Element {
  return (
    <ul class="ask-notes">
      {ask.why && <li>{ask.why}</li>}
      {ask.path && "command" in (ask.params ?? {}) && (
        <li>
          in <span class="mono">{ask.path}</span>
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
  readonly rules: readonly string[];
  readonly isSent: boolean;
  answer(action: GrantAction): void;
  onReason(): void;
}

function Answers({ rules, isSent, answer, onReason }: AnswersProps): JSX.Element {
  const button = (action: GrantAction, label: string, key: string, kind = ""): JSX.Element => (
    <button type="button" class={`button ${kind}`} data-action={action} disabled={isSent} onClick={() => answer(action)}>
      {label} <kbd aria-hidden="true">{key}</kbd>
    </button>
  );
  return (
    <div class="ask-answers">
      {button("allow", "Allow once", "a", "primary")}
      {button("allow_session", "For this session", "s")}
      {rules.length > 0 && button("allow_always", "Always", "w")}
      <span class="grow" />
      {button("deny", "No", "d", "danger")}
      <button type="button" class="button danger" disabled={isSent} onClick={onReason}>
        No, because … <kbd aria-hidden="true">r</kbd>
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
      class="ask-reason"
      onSubmit={(event) => {
        event.preventDefault();
        onSend();
      }}
    >
      <input
        ref={field}
        class="field"
        value={text}
        aria-label="Why not?"
        placeholder="Why not? The model reads this and goes on."
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

/** The queued prompts: edit, move, send into the current turn, remove. */

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { pluralize } from "../shell/format.ts";
import { Icon, type IconName } from "../shell/icons.tsx";
import { cancelRun, clearQueue, editQueued, moveQueued, redeliver, reportErrors } from "../store/actions.ts";
import { focusComposer } from "../store/composer-state.ts";
import { clientId, queue } from "../store/state.ts";
import type { Run } from "../wire/types.ts";

type QueueAction = "edit" | "remove" | "up" | "down" | "now" | "later";

const KEYS: Readonly<Record<string, QueueAction>> = {
  Enter: "edit", e: "edit", x: "remove", Delete: "remove", Backspace: "remove", s: "now", q: "later", K: "up", J: "down",
};

function applyAction(action: QueueAction, run: Run, position: number, count: number): void {
  switch (action) {
    case "edit":
      void reportErrors(editQueued(run));
      break;
    case "remove":
      void reportErrors(cancelRun(run.run_id));
      if (count <= 1) focusComposer();
      break;
    case "up":
    case "down": {
      const next = Math.min(count - 1, Math.max(0, position + (action === "up" ? -1 : 1)));
      if (next !== position) void reportErrors(moveQueued(run.run_id, next));
      break;
    }
    case "now":
      void reportErrors(redeliver(run.run_id, "steer"));
      break;
    case "later":
      void reportErrors(redeliver(run.run_id, "queue"));
      break;
  }
}

export function Queue(): JSX.Element | null {
  const waiting = queue.value;
  const dragged = useSignal<string | null>(null);
  const over = useSignal<string | null>(null);
  if (waiting.length === 0) return null;
  const drop = (position: number): void => {
    const moved = dragged.value;
    dragged.value = over.value = null;
    if (moved !== null && waiting[position]?.run_id !== moved) void reportErrors(moveQueued(moved, position));
  };
  return (
    <section class="queue" aria-label="Queued prompts">
      <header>
        <span>{pluralize(waiting.length, "prompt waits", "prompts wait")}</span>
        <span class="faint queue-keys">enter edit · x remove · s send now · q separate turn · shift+↑↓ move</span>
        {waiting.length > 1 ? (
          <button type="button" class="button plain small" onClick={() => void reportErrors(clearQueue())}>
            Remove all
          </button>
        ) : null}
      </header>
      <ol>
        {waiting.map((run, position) => (
          <Waiting
            key={run.run_id}
            run={run}
            position={position}
            count={waiting.length}
            isOver={over.value === run.run_id && dragged.value !== run.run_id}
            onDrag={() => (dragged.value = run.run_id)}
            onOver={() => (over.value = run.run_id)}
            onDrop={() => drop(position)}
          />
        ))}
      </ol>
    </section>
  );
}

interface WaitingProps {
  readonly run: Run;
  readonly position: number;
  readonly count: number;
  readonly isOver: boolean;
  onDrag(): void;
  onOver(): void;
  onDrop(): void;
}

function Waiting({ run, position, count, isOver, onDrag, onOver, onDrop }: WaitingProps): JSX.Element {
  const steers = run.delivery === "steer";
  const promptText = (run.prompt ?? "").split(/\s+/).join(" ").slice(0, 300) || "(no text)";
  const files = run.attachments?.length ?? 0;
  const isForeign = Boolean(run.client_id) && run.client_id !== clientId.value;
  const apply = (what: QueueAction): void => applyAction(what, run, position, count);
  return (
    <li
      class={`waiting${isOver ? " over" : ""}`}
      data-testid="queue-item"
      data-id={run.run_id}
      data-delivery={run.delivery}
      tabIndex={0}
      draggable
      aria-label={`${position + 1} of ${count}: ${promptText}`}
      onKeyDown={(event) => onKey(event, apply)}
      onDragStart={onDrag}
      onDragOver={(event) => {
        event.preventDefault();
        onOver();
      }}
      onDrop={(event) => {
        event.preventDefault();
        event.stopPropagation();
        onDrop();
      }}
    >
      <span class="grip faint" aria-hidden="true">
        ⠿
      </span>
      <span class="delivery" title={steers ? "Read before the model's next step" : "Separate turn"} aria-hidden="true">
        {steers ? "↳" : "⋯"}
      </span>
      <span class="grow clip">{promptText}</span>
      {files > 0 ? <span class="chip">{pluralize(files, "file")}</span> : null}
      {isForeign ? <span class="chip">from elsewhere</span> : null}
      <span class="wishes">
        <Button icon="back" turn label="Earlier" isOff={position === 0} run={() => apply("up")} />
        <Button icon="next" turn label="Later" isOff={position === count - 1} run={() => apply("down")} />
        {steers ? (
          <Button icon="clock" label="Make it a separate turn" run={() => apply("later")} />
        ) : (
          <Button icon="play" label="Send it into the current turn" run={() => apply("now")} />
        )}
        <Button icon="pen" label="Edit it in the composer" run={() => apply("edit")} />
        <Button icon="close" label="Remove" run={() => apply("remove")} />
      </span>
    </li>
  );
}

interface ButtonProps {
  readonly icon: IconName;
  readonly label: string;
  readonly isOff?: boolean;
  readonly turn?: boolean;
  run(): void;
}

function Button({ icon, label, isOff = false, turn = false, run }: ButtonProps): JSX.Element {
  return (
    <button type="button" class={`square small${turn ? " turned" : ""}`} aria-label={label} title={label} disabled={isOff} onClick={run}>
      <Icon name={icon} small />
    </button>
  );
}

function onKey(event: KeyboardEvent & { readonly currentTarget: HTMLLIElement }, apply: (what: QueueAction) => void): void {
  if (event.target !== event.currentTarget || event.ctrlKey || event.metaKey || event.altKey) return;
  const here = event.currentTarget;
  const isArrow = event.key === "ArrowUp" || event.key === "ArrowDown";
  if (isArrow && event.shiftKey) apply(event.key === "ArrowUp" ? "up" : "down");
  else if (isArrow || event.key === "j" || event.key === "k") {
    const next = event.key === "ArrowUp" || event.key === "k" ? here.previousElementSibling : here.nextElementSibling;
    if (next instanceof HTMLElement) next.focus();
  } else if (event.key === "Escape") focusComposer();
  else if (KEYS[event.key] !== undefined) apply(KEYS[event.key] ?? "edit");
  else return;
  event.preventDefault();
  event.stopPropagation();
}

/** The queued prompts: edit, move, send into the current turn, remove. */

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { pluralize } from "../shell/format.ts";
import { Icon, type IconName } from "../shell/icons.tsx";
import { cancelRun, clearQueue, editQueued, moveQueued, redeliver, reportErrors } from "../store/actions.ts";
import { focusComposer } from "../store/composer-state.ts";
import { clientId, queue } from "../store/state.ts";
import type { Run } from "../wire/types.ts";

type Wish = "edit" | "remove" | "up" | "down" | "now" | "later";

const KEYS: Readonly<Record<string, Wish>> = {
  Enter: "edit", e: "edit", x: "remove", Delete: "remove", Backspace: "remove", s: "now", q: "later", K: "up", J: "down",
};

function fulfil(wish: Wish, run: Run, place: number, count: number): void {
  switch (wish) {
    case "edit":
      void reportErrors(editQueued(run));
      break;
    case "remove":
      void reportErrors(cancelRun(run.run_id));
      if (count <= 1) focusComposer();
      break;
    case "up":
    case "down": {
      const next = Math.min(count - 1, Math.max(0, place + (wish === "up" ? -1 : 1)));
      if (next !== place) void reportErrors(moveQueued(run.run_id, next));
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
  const drop = (place: number): void => {
    const moved = dragged.value;
    dragged.value = over.value = null;
    if (moved !== null && waiting[place]?.run_id !== moved) void reportErrors(moveQueued(moved, place));
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
        {waiting.map((run, place) => (
          <Waiting
            key={run.run_id}
            run={run}
            place={place}
            count={waiting.length}
            isOver={over.value === run.run_id && dragged.value !== run.run_id}
            onDrag={() => (dragged.value = run.run_id)}
            onOver={() => (over.value = run.run_id)}
            onDrop={() => drop(place)}
          />
        ))}
      </ol>
    </section>
  );
}

interface WaitingProps {
  readonly run: Run;
  readonly place: number;
  readonly count: number;
  readonly isOver: boolean;
  onDrag(): void;
  onOver(): void;
  onDrop(): void;
}

function Waiting({ run, place, count, isOver, onDrag, onOver, onDrop }: WaitingProps): JSX.Element {
  const steers = run.delivery === "steer";
  const words = (run.prompt ?? "").split(/\s+/).join(" ").slice(0, 300) || "(no text)";
  const files = run.attachments?.length ?? 0;
  const isForeign = Boolean(run.client_id) && run.client_id !== clientId.value;
  const wish = (what: Wish): void => fulfil(what, run, place, count);
  return (
    <li
      class={`waiting${isOver ? " over" : ""}`}
      data-testid="queue-item"
      data-id={run.run_id}
      data-delivery={run.delivery}
      tabIndex={0}
      draggable
      aria-label={`${place + 1} of ${count}: ${words}`}
      onKeyDown={(event) => onKey(event, wish)}
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
      <span class="grow clip">{words}</span>
      {files > 0 ? <span class="chip">{pluralize(files, "file")}</span> : null}
      {isForeign ? <span class="chip">from elsewhere</span> : null}
      <span class="wishes">
        <Button icon="back" turn label="Earlier" isOff={place === 0} run={() => wish("up")} />
        <Button icon="next" turn label="Later" isOff={place === count - 1} run={() => wish("down")} />
        {steers ? (
          <Button icon="clock" label="Make it a separate turn" run={() => wish("later")} />
        ) : (
          <Button icon="play" label="Send it into the current turn" run={() => wish("now")} />
        )}
        <Button icon="pen" label="Edit it in the composer" run={() => wish("edit")} />
        <Button icon="close" label="Remove" run={() => wish("remove")} />
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

function onKey(event: KeyboardEvent & { readonly currentTarget: HTMLLIElement }, wish: (what: Wish) => void): void {
  if (event.target !== event.currentTarget || event.ctrlKey || event.metaKey || event.altKey) return;
  const here = event.currentTarget;
  const isArrow = event.key === "ArrowUp" || event.key === "ArrowDown";
  if (isArrow && event.shiftKey) wish(event.key === "ArrowUp" ? "up" : "down");
  else if (isArrow || event.key === "j" || event.key === "k") {
    const next = event.key === "ArrowUp" || event.key === "k" ? here.previousElementSibling : here.nextElementSibling;
    if (next instanceof HTMLElement) next.focus();
  } else if (event.key === "Escape") focusComposer();
  else if (KEYS[event.key] !== undefined) wish(KEYS[event.key] ?? "edit");
  else return;
  event.preventDefault();
  event.stopPropagation();
}

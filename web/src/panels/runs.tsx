// Prompts and their outcomes; active runs can be cancelled.

import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { ago, pluralize, elapsed } from "../shell/format.ts";
import { Icon } from "../shell/icons.tsx";
import type { IconName } from "../shell/icons.tsx";
import { chosenRun, view } from "../shell/ui.ts";
import { cancelRun, chooseSession, listRuns, runs, reportErrors, sessionId, sessions } from "../store.ts";
import type { Run } from "../wire/types.ts";
import { mergeRuns } from "./merge-runs.ts";
import { useNow } from "./use-now.ts";

const past = signal<readonly Run[]>([]);
const isAll = signal(false);
const ICONS: Readonly<Record<string, IconName>> = { completed: "check", failed: "warning", cancelled: "stop", interrupted: "warning" };

export function Runs(): JSX.Element {
  const session = isAll.value ? "" : (sessionId.value ?? "");
  useEffect(() => {
    void reportErrors(listRuns({ ...(session ? { session_id: session } : {}), limit: 100 })).then((found) => (past.value = found ?? []));
  }, [session]);
  const all = mergeRuns(past.value, runs.value).filter((run) => !run.parent_run_id && (!session || run.session_id === session));
  const now = useNow(all.some((run) => run.state !== "ended"));
  return (
    <>
      <div class="panel-tools">
        <div class="segments" role="group" aria-label="Which runs">
          <button type="button" aria-pressed={!isAll.value} onClick={() => (isAll.value = false)}>
            This session
          </button>
          <button type="button" aria-pressed={isAll.value} onClick={() => (isAll.value = true)}>
            All
          </button>
        </div>
      </div>
      {!all.length && <p class="empty">There are no runs yet.</p>}
      <ul class="lines">
        {all.map((run) => (
          <RunLine key={run.run_id} run={run} now={now} />
        ))}
      </ul>
    </>
  );
}

function RunLine({ run, now }: { run: Run; now: number }): JSX.Element {
  const isOpen = run.state !== "ended" && run.state !== "folded";
  const outcome = run.outcome ?? run.state;
  const duration = run.started_at ? elapsed((run.ended_at || now) - run.started_at) : "";
  const title = sessions.value.find((one) => one.id === run.session_id)?.title ?? "";
  const facts = [outcome, run.ended_at || isOpen ? duration : "", stepsOf(run, isOpen), isOpen ? "" : ago((now - run.accepted_at) / 1000)];
  return (
    <li class="line">
      <span class={`line-mark ${outcome}`} title={outcome}>
        {isOpen ? <span class={`dot ${run.state === "waiting" ? "" : "busy"}`} /> : <Icon name={ICONS[outcome] ?? "check"} small />}
      </span>
      <button type="button" class="line-main" title="Show on the timeline" onClick={() => void show(run)}>
        <span class="clip">{(run.prompt || run.kind || "").replace(/\s+/g, " ") || "…"}</span>
        <small class="faint">
          {facts.filter(Boolean).join(" · ")}
          {isAll.value && title && ` · ${title}`}
        </small>
        {run.error && <small class="error-text">{run.error}</small>}
      </button>
      {isOpen && (
        <button type="button" class="button small danger" onClick={() => void reportErrors(cancelRun(run.run_id))}>
          <Icon name="stop" small /> Cancel
        </button>
      )}
    </li>
  );
}

function stepsOf(run: Run, isOpen: boolean): string {
  if (!run.step) return "";
  return isOpen ? `step ${run.step}` : pluralize(run.step, "step");
}

async function show(run: Run): Promise<void> {
  if (run.session_id !== sessionId.value) await reportErrors(chooseSession(run.session_id));
  chosenRun.value = run.run_id;
  view.value = "timeline";
}

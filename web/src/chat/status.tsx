/** The status line above the composer: current activity, duration, context usage and cost. */

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { elapsed, money, thousands } from "../shell/format.ts";
import { Icon } from "../shell/icons.tsx";
import { cancel, reportErrors } from "../store/actions.ts";
import { waitingCalls, head, isBusy, messageIds, messageOf, notice, openRuns, session, shell } from "../store/state.ts";
import { escaped } from "./escape.ts";
import { activityOf } from "./descriptions.ts";

export function RunStatus(): JSX.Element | null {
  const run = head.value;
  if (run === null && !isBusy.value && shell.value === "") return null;
  const isStopping = run?.state === "cancelling" || run?.cancel_requested === true;
  return (
    <div class={`run-status${notice.value?.error ? " troubled" : ""}`} data-testid="run-status">
      <span class={waitingCalls.value.size > 0 ? "dot approval" : "spinner"} aria-hidden="true" />
      <span class="grow clip activity">
        <Activity />
      </span>
      {run === null ? null : <Elapsed since={run.started_at || run.accepted_at} />}
      <Usage />
      {escaped.value ? <span class="chip warning">Esc again cancels</span> : null}
      {isBusy.value ? (
        <button type="button" class="button small danger" data-testid="stop" disabled={isStopping} onClick={() => void reportErrors(cancel())}>
          <Icon name="stop" small /> Stop
        </button>
      ) : null}
    </div>
  );
}

/** Subscribes to the newest message separately, so that its tokens render only this text. */
function Activity(): JSX.Element {
  if (!isBusy.value && shell.value) return <>Running $ {shell.value}</>;
  const ids = messageIds.value;
  const last = messageOf(ids[ids.length - 1] ?? "").value;
  return <>{activityOf(openRuns.value, last, notice.value, waitingCalls.value.size > 0)}</>;
}

function Elapsed({ since }: { since: number }): JSX.Element {
  const now = useSignal(Date.now());
  useEffect(() => {
    const timer = setInterval(() => {
      now.value = Date.now();
    }, 1_000);
    return () => clearInterval(timer);
  }, []);
  return <span class="faint">{elapsed(now.value - since)}</span>;
}

function Usage(): JSX.Element | null {
  const here = session.value;
  const tokens = (here?.prompt_tokens ?? 0) + (here?.completion_tokens ?? 0);
  if (here === null || tokens === 0) return null;
  return (
    <span class="faint usage">
      {thousands(tokens)} tokens{here.cost > 0 ? ` · ${money(here.cost)}` : ""}
    </span>
  );
}

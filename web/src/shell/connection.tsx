// The state of the connection to the server, and a notice about missed events after a reconnect.

import { effect, signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { connection, cursor, retryNow } from "../store.ts";
import { Icon } from "./icons.tsx";

const NOTICE_DURATION = 6_000;
/** The last reconnect, while its notice is shown. */
const reconnectNotice = signal<{ readonly text: string } | null>(null);
let timer: ReturnType<typeof setTimeout> | undefined;
let shownAt = 0;

effect(() => {
  const { state, resumed } = connection.value;
  if (state !== "live" || !resumed || resumed.at === shownAt) return;
  shownAt = resumed.at;
  reconnectNotice.value = { text: describeReconnect(resumed) };
  clearTimeout(timer);
  timer = setTimeout(() => (reconnectNotice.value = null), NOTICE_DURATION);
});

/** Describes a reconnect. After a crash numbers are skipped, so their difference is not the number of events. */
export function describeReconnect({ from, missed, gap }: { readonly from: number; readonly missed: number; readonly gap: boolean }): string {
  const since = gap ? "everything was reloaded" : missed ? "missed events were received" : "nothing was missed";
  return `Connected again after event ${from}: ${since}.`;
}

const STATES = { live: "live", connecting: "resuming", broken: "lost", "signed-out": "lost", gone: "lost" } as const;
const STATE_LABELS = { live: "live", resuming: "connecting …", lost: "reconnecting …" } as const;

export function ConnectionMark(): JSX.Element {
  const state = STATES[connection.value.state];
  return (
    <span class={`connection ${state}`} data-testid="connection" data-state={state} data-cursor={cursor.value} title={`${STATE_LABELS[state]} event ${cursor.value}`}>
      <span class={state === "live" ? "dot live" : state === "lost" ? "dot lost" : "dot busy"} />
      <span class={state === "live" ? "visually-hidden" : ""}>{STATE_LABELS[state]}</span>
    </span>
  );
}

/** The notice below the header. */
export function ConnectionStrip(): JSX.Element {
  const { state, trouble, since } = connection.value;
  const isLate = useLater(since, 600);
  const isBroken = state === "broken" && isLate;
  return (
    <div class="strip-region" role="status" aria-live="polite">
      {isBroken ? (
        <p class="strip warning">
          <span class="spinner" />
          <span class="grow">{trouble} This page reconnects automatically; if the server stopped, any holdfast command starts it.</span>
          <NextTry />
          <button type="button" class="button small" onClick={retryNow}>
            Try now
          </button>
        </p>
      ) : (
        reconnectNotice.value && (
          <p class="strip success" data-testid="resumed">
            <Icon name="check" small />
            <span class="grow">{reconnectNotice.value.text}</span>
          </p>
        )
      )}
    </div>
  );
}

/** Delays a state change, so that short interruptions are not shown. */
function useLater(since: number, wait: number): boolean {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const late = setTimeout(() => setNow(Date.now()), wait + 10);
    return () => clearTimeout(late);
  }, [since]);
  return Math.max(now, Date.now()) - since >= wait;
}

function NextTry(): JSX.Element | null {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const ticking = setInterval(() => setNow(Date.now()), 500);
    return () => clearInterval(ticking);
  }, []);
  const left = Math.ceil((connection.value.retryAt - now) / 1000);
  return left > 0 ? <span class="next-try">Next try in {left} s</span> : null;
}

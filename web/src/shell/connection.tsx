// The state of the connection to the server, and a notice about missed events after a reconnect.

import { effect, signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { connection, cursor, retryNow } from "../store.ts";
import { Icon } from "./icons.tsx";

const SHOWN_FOR = 6_000;
/** The last reconnect, while its notice is shown. */
const back = signal<{ readonly text: string } | null>(null);
let timer: ReturnType<typeof setTimeout> | undefined;
let told = 0;

effect(() => {
  const { state, resumed } = connection.value;
  if (state !== "live" || !resumed || resumed.at === told) return;
  told = resumed.at;
  back.value = { text: backAgain(resumed) };
  clearTimeout(timer);
  timer = setTimeout(() => (back.value = null), SHOWN_FOR);
});

/** Describes a reconnect. After a crash numbers are skipped, so their difference is not the number of events. */
export function backAgain({ from, missed, gap }: { readonly from: number; readonly missed: number; readonly gap: boolean }): string {
  const since = gap ? "everything was reloaded" : missed ? "missed events were received" : "nothing was missed";
  return `Connected again after event ${from}: ${since}.`;
}

const STATES = { live: "live", connecting: "resuming", broken: "lost", "signed-out": "lost", gone: "lost" } as const;
const WORDS = { live: "live", resuming: "connecting …", lost: "reconnecting …" } as const;

export function ConnectionMark(): JSX.Element {
  const state = STATES[connection.value.state];
  return (
    <span class={`connection ${state}`} data-testid="connection" data-state={state} data-cursor={cursor.value} title={`${WORDS[state]} event ${cursor.value}`}>
      <span class={state === "live" ? "dot live" : state === "lost" ? "dot lost" : "dot busy"} />
      <span class={state === "live" ? "unseen" : ""}>{WORDS[state]}</span>
    </span>
  );
}

/** The notice below the header. */
export function ConnectionStrip(): JSX.Element {
  const { state, trouble, since } = connection.value;
  const isLate = useLater(since, 600);
  const isBroken = state === "broken" && isLate;
  return (
    <div class="strip-place" role="status" aria-live="polite">
      {isBroken ? (
        <p class="strip warning">
          <span class="spinner" />
          <span class="grow">{trouble} This page comes back by itself; if the server stopped, any holdfast command starts it.</span>
          <NextTry />
          <button type="button" class="button small" onClick={retryNow}>
            Try now
          </button>
        </p>
      ) : (
        back.value && (
          <p class="strip success" data-testid="resumed">
            <Icon name="check" small />
            <span class="grow">{back.value.text}</span>
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

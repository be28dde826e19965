// Whether the line to the server holds; what was missed while it did not, and that it is all here now.

import { effect, signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { connection, cursor, retryNow } from "../store.ts";
import { Icon } from "./icons.tsx";

const SHOWN_FOR = 6_000;
/** The last return, for as long as it is shown. */
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

/** How the line was found again. Numbers are passed over when a server was killed: their difference counts no events. */
export function backAgain({ from, missed, gap }: { readonly from: number; readonly missed: number; readonly gap: boolean }): string {
  const since = gap ? "everything was read anew" : missed ? "all that came since is here" : "nothing was missed";
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

/** Below the header: only there while something is to be said. */
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

/** Something is shown only when it has lasted: a blink is not worth a word. */
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

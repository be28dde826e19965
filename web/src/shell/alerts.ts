// A word to those who look elsewhere: that a run has ended, or that somebody is waited for. Only if they asked for it.

import { effect, signal } from "@preact/signals";
import { config, permissions, questions, runs, sessions, toast } from "../store.ts";
import type { Run, Session } from "../wire/types.ts";
import { store, stored } from "./ui.ts";

const ENDS: Readonly<Record<string, string>> = { completed: "It is done", failed: "It failed", interrupted: "It was interrupted" };

const isWanted = signal(stored("alerts") === "on");

/** What to say of runs that have ended: nothing of helpers, folded ones, or what somebody cancelled. Pure. */
export function endsToTell(before: ReadonlySet<string>, now: readonly Run[], known: readonly Session[]): string[] {
  return now
    .filter((run) => before.has(run.run_id) && run.state === "ended" && !run.parent_run_id && !run.folded_into)
    .flatMap((run) => {
      const word = ENDS[run.outcome ?? ""];
      const title = known.find((one) => one.id === run.session_id)?.title ?? (run.prompt ?? "").slice(0, 60);
      return word ? [`${word}: ${title}`] : [];
    });
}

/** Begin or stop to tell. The browser asks the person the first time. */
export async function changeAlerts(): Promise<void> {
  if (typeof Notification === "undefined") {
    toast("info", "This browser cannot show notes on the desktop.");
    return;
  }
  const isOn = !isWanted.value && (await Notification.requestPermission()) === "granted";
  if (!isOn && !isWanted.value) toast("warning", "The browser does not let this page show notes. Its settings for this page can change that.");
  else toast("info", isOn ? "You are told when a run ends or a tool asks while you look elsewhere." : "No more notes on the desktop.");
  isWanted.value = isOn;
  store("alerts", isOn ? "on" : "off");
}

function tell(text: string, tag: string): void {
  const isOff = config.peek().options?.["notifications"] === "disabled";
  if (!isWanted.peek() || isOff || !document.hidden || typeof Notification === "undefined" || Notification.permission !== "granted") return;
  const note = new Notification("Holdfast", { body: text, tag });
  note.onclick = () => {
    window.focus();
    note.close();
  };
}

/** Once, at the start of the page. */
export function beginAlerts(): () => void {
  let open = new Set<string>();
  let asked = new Set<string>();
  const ends = effect(() => {
    for (const text of endsToTell(open, runs.value, sessions.peek())) tell(text, text);
    open = new Set(runs.value.filter((run) => run.state !== "ended").map((run) => run.run_id));
  });
  const asks = effect(() => {
    const now = [...permissions.value, ...questions.value];
    for (const ask of now) {
      if (!asked.has(ask.id)) tell("tool_name" in ask ? `${ask.tool_name} asks for permission` : "The model has a question", ask.id);
    }
    asked = new Set(now.map((ask) => ask.id));
  });
  return () => {
    ends();
    asks();
  };
}

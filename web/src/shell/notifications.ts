// Desktop notifications: a run has ended, or an approval is required. Disabled by default.

import { effect, signal } from "@preact/signals";
import { config, permissions, questions, runs, sessions, toast } from "../store.ts";
import type { Run, Session } from "../wire/types.ts";
import { store, stored } from "./ui.ts";

const ENDS: Readonly<Record<string, string>> = { completed: "Completed", failed: "It failed", interrupted: "Interrupted" };

const isWanted = signal(stored("alerts") === "on");

/** Returns the notifications for ended runs, without sub-agents, folded runs and cancelled runs. Pure. */
export function endNotifications(before: ReadonlySet<string>, now: readonly Run[], known: readonly Session[]): string[] {
  return now
    .filter((run) => before.has(run.run_id) && run.state === "ended" && !run.parent_run_id && !run.folded_into)
    .flatMap((run) => {
      const word = ENDS[run.outcome ?? ""];
      const title = known.find((one) => one.id === run.session_id)?.title ?? (run.prompt ?? "").slice(0, 60);
      return word ? [`${word}: ${title}`] : [];
    });
}

/** Turns notifications on or off. The browser requests permission the first time. */
export async function changeAlerts(): Promise<void> {
  if (typeof Notification === "undefined") {
    toast("info", "This browser does not support notifications.");
    return;
  }
  const isOn = !isWanted.value && (await Notification.requestPermission()) === "granted";
  if (!isOn && !isWanted.value) toast("warning", "The browser blocks notifications of this page. Change its settings for this page.");
  else toast("info", isOn ? "Notifications are on: the end of a run, and requests, while the page is hidden." : "Notifications are off.");
  isWanted.value = isOn;
  store("alerts", isOn ? "on" : "off");
}

function notify(text: string, tag: string): void {
  const isOff = config.peek().options?.["notifications"] === "disabled";
  if (!isWanted.peek() || isOff || !document.hidden || typeof Notification === "undefined" || Notification.permission !== "granted") return;
  const note = new Notification("Holdfast", { body: text, tag });
  note.onclick = () => {
    window.focus();
    note.close();
  };
}

/** Called once, at the start of the page. */
export function beginAlerts(): () => void {
  let open = new Set<string>();
  let notified = new Set<string>();
  const disposeRuns = effect(() => {
    for (const text of endNotifications(open, runs.value, sessions.peek())) notify(text, text);
    open = new Set(runs.value.filter((run) => run.state !== "ended").map((run) => run.run_id));
  });
  const disposeRequests = effect(() => {
    const now = [...permissions.value, ...questions.value];
    for (const request of now) {
      if (!notified.has(request.id)) notify("tool_name" in request ? `${request.tool_name} requests permission` : "The model has a question", request.id);
    }
    notified = new Set(now.map((request) => request.id));
  });
  return () => {
    disposeRuns();
    disposeRequests();
  };
}

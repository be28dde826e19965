// Merges fetched runs with those known from events. Pure.

import type { Run } from "../wire/types.ts";

/** Returns the runs, newest first. Events take precedence, but only the first event of a run contains the prompt. */
export function mergeRuns(past: readonly Run[], live: readonly Run[]): Run[] {
  const all = new Map<string, Run>();
  for (const run of past) all.set(run.run_id, run);
  for (const run of live) {
    const before = all.get(run.run_id);
    const prompt = run.prompt || before?.prompt;
    const ended = run.ended_at || before?.ended_at;
    all.set(run.run_id, { ...before, ...run, ...(prompt ? { prompt } : {}), ...(ended ? { ended_at: ended } : {}) });
  }
  return [...all.values()].sort((a, b) => (b.number ?? 0) - (a.number ?? 0) || b.accepted_at - a.accepted_at);
}

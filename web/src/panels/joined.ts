// Runs that were read once, and those that events told of since. Pure.

import type { Run } from "../wire/types.ts";

/** The newest first; what events say counts, but only the first of them knows the prompt. */
export function merged(past: readonly Run[], live: readonly Run[]): Run[] {
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

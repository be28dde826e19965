// Which cards and thoughts are open. Each has its own state; one key opens or closes all.

import { signal } from "@preact/signals";

/** Incremented by each request that applies to all cards; `open` is the latest one. */
export const foldRequest = signal<{ readonly count: number; readonly open: boolean }>({ count: 0, open: false });

export function foldAll(): void {
  foldRequest.value = { count: foldRequest.value.count + 1, open: !foldRequest.value.open };
}

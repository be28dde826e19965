// Which cards and thoughts are open. Each decides for itself; one key opens or closes them all.

import { signal } from "@preact/signals";

/** Grows with each wish that holds for all; `open` is the last of them. */
export const wish = signal<{ readonly count: number; readonly open: boolean }>({ count: 0, open: false });

export function foldAll(): void {
  wish.value = { count: wish.value.count + 1, open: !wish.value.open };
}

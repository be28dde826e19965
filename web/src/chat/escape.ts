/** Esc warns; a second Esc within two seconds cancels. */

import { signal } from "@preact/signals";
import { cancel, reportErrors } from "../store/actions.ts";
import { isBusy } from "../store/state.ts";

const SECOND_ESCAPE = 2_000;

/** True if the next Esc cancels. */
export const escaped = signal(false);
let timer: ReturnType<typeof setTimeout> | undefined;

/** Returns whether there was a run to cancel. */
export function escape(): boolean {
  if (!isBusy.value) return false;
  clearTimeout(timer);
  if (escaped.value) {
    escaped.value = false;
    void reportErrors(cancel());
    return true;
  }
  escaped.value = true;
  timer = setTimeout(() => {
    escaped.value = false;
  }, SECOND_ESCAPE);
  return true;
}

/** Esc warns, a second Esc within two seconds cancels. */

import { signal } from "@preact/signals";
import { cancel, say } from "../store/actions.ts";
import { isBusy } from "../store/state.ts";

const SECOND_ESCAPE = 2_000;

/** Whether the next Esc cancels. */
export const escaped = signal(false);
let timer: ReturnType<typeof setTimeout> | undefined;

/** Whether there was something to stop. */
export function escape(): boolean {
  if (!isBusy.value) return false;
  clearTimeout(timer);
  if (escaped.value) {
    escaped.value = false;
    void say(cancel());
    return true;
  }
  escaped.value = true;
  timer = setTimeout(() => {
    escaped.value = false;
  }, SECOND_ESCAPE);
  return true;
}

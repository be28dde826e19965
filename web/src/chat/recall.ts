/** What was sent before, walked through with the arrow keys; what was being written is at its end. */

import { sent } from "../store/composing.ts";

export class Recall {
  private at = -1;
  private draft = "";

  /** The text before or after the one that is shown; null if there is none. */
  step(by: -1 | 1, now: string): string | null {
    const texts = sent.value;
    if (this.at < 0) {
      if (by > 0 || texts.length === 0) return null;
      this.draft = now;
      this.at = texts.length;
    }
    const next = this.at + by;
    if (next < 0) return null;
    this.at = next >= texts.length ? -1 : next;
    return this.at < 0 ? this.draft : (texts[this.at] ?? "");
  }

  /** Somebody wrote: the walk is over. */
  reset(): void {
    this.at = -1;
  }

  get isWalking(): boolean {
    return this.at >= 0;
  }
}

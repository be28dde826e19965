/** History of sent prompts, browsed with the arrow keys; the current draft is its last entry. */

import { sent } from "../store/composer-state.ts";

export class Recall {
  private at = -1;
  private draft = "";

  /** Returns the text before or after the shown one; null if there is none. */
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

  /** Called when the text is edited: leaves the history. */
  reset(): void {
    this.at = -1;
  }

  get isWalking(): boolean {
    return this.at >= 0;
  }
}

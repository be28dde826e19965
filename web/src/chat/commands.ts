/** Commands of the conversation. */

import { focusComposer, text } from "../store/composer-state.ts";
import { messageIds } from "../store/state.ts";
import { type Command, registerCommand } from "../store/commands.ts";
import { isWriting } from "../palette/keys.ts";
import { completeSentPrompt } from "./completion.ts";
import { escape } from "./escape.ts";
import { jump, toEnd } from "./scrolling.ts";

const hasMessages = (): boolean => messageIds.value.length > 0;

const COMMANDS: readonly Command[] = [
  { name: "earlier", title: "Go to the previous prompt", keys: "alt+arrowup", when: hasMessages, run: () => jump(-1) },
  { name: "later", title: "Go to the next prompt", keys: "alt+arrowdown", when: hasMessages, run: () => jump(1) },
  { name: "end", title: "Go to the end", keys: "alt+end", when: hasMessages, run: toEnd },
  { name: "recall", title: "Find an earlier prompt", keys: "alt+h", run: recall },
];

function recall(): void {
  focusComposer();
  requestAnimationFrame(() => void completeSentPrompt(text.value));
}

for (const command of COMMANDS) registerCommand(command);

// Esc cancels from anywhere except where it closes something.
addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.defaultPrevented || isWriting(event.target)) return;
  if (document.querySelector("dialog[open]") === null && escape()) event.preventDefault();
});

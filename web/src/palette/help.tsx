// The page of keyboard shortcuts.

import type { JSX } from "preact";
import { Dialog } from "../dialogs/dialog.tsx";
import { dialog } from "../shell/ui.ts";
import { commands } from "../store.ts";
import { isMac, Keys } from "./keycap.tsx";

const KEYS: readonly (readonly [string, readonly (readonly [readonly string[], string])[]])[] = [
  [
    "Writing",
    [
      [["enter"], "send; during a run: steer it"],
      [["alt+enter"], "queue as a separate turn"],
      [["shift+enter"], "a new line"],
      [["↑", "↓"], "earlier prompts; Ctrl R searches them"],
      [["@"], "mention a file: it is attached"],
      [["/"], "commands, at the start of the line"],
      [["!"], "run a shell command, at the start of the line"],
      [["escape", "escape"], "cancel; queued prompts return to the composer"],
    ],
  ],
  [
    "Approvals and questions",
    [
      [["←", "→", "enter"], "answer: with an empty composer, half a second after the last key"],
      [["1", "…", "9"], "select a choice of a question, likewise"],
      [["tab"], "focus the request; required for the letters below"],
      [["a"], "allow it once"],
      [["s"], "for this session"],
      [["d"], "no"],
      [["r"], "deny, with a reason for the model"],
      [["t"], "one column or two"],
      [["f"], "whole screen"],
      [["escape"], "back to the composer"],
    ],
  ],
  [
    "Timeline",
    [
      [["←", "→"], "previous event, next event"],
      [["home", "end"], "start, end of the run"],
      [["space"], "play, pause"],
      [["+", "-"], "zoom in, zoom out"],
      [["0"], "show everything"],
    ],
  ],
];

export function Help(): JSX.Element {
  const actions = commands.value.filter((command) => command.keys);
  return (
    <Dialog title="Keys" kind="help" focus="[aria-label=Close]" onClose={() => (dialog.value = null)}>
      <div class="help-columns">
        <section>
          <h3>{isMac ? "Everywhere; keys with ⌥ outside text fields" : "Everywhere"}</h3>
          <dl>
            {actions.map((command) => (
              <div key={command.name}>
                <dt>
                  <Keys keys={command.keys ?? ""} />
                </dt>
                <dd>{command.title}</dd>
              </div>
            ))}
          </dl>
        </section>
        {KEYS.map(([heading, keys]) => (
          <section key={heading}>
            <h3>{heading}</h3>
            <dl>
              {keys.map(([names, what]) => (
                <div key={what}>
                  <dt>
                    {names.map((name, at) => (
                      <Keys key={at} keys={name} />
                    ))}
                  </dt>
                  <dd>{what}</dd>
                </div>
              ))}
            </dl>
          </section>
        ))}
      </div>
    </Dialog>
  );
}

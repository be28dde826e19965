// The keys, on one page.

import type { JSX } from "preact";
import { Dialog } from "../dialogs/dialog.tsx";
import { dialog } from "../shell/ui.ts";
import { commands } from "../store.ts";
import { isMac, Keys } from "./keycap.tsx";

const KEYS: readonly (readonly [string, readonly (readonly [readonly string[], string])[]])[] = [
  [
    "Writing",
    [
      [["enter"], "send; while a run is going: steer it"],
      [["alt+enter"], "send as a turn of its own: it waits its turn"],
      [["shift+enter"], "a new line"],
      [["↑", "↓"], "what you sent before; Ctrl R finds it"],
      [["@"], "name a file: it goes along"],
      [["/"], "commands, at the beginning"],
      [["!"], "run a shell command, at the beginning"],
      [["escape", "escape"], "cancel; what waited comes back"],
    ],
  ],
  [
    "When a tool asks",
    [
      [["←", "→", "enter"], "answer: the composer is empty, and no key for half a second"],
      [["1", "…", "9"], "mark a choice of a question, likewise"],
      [["tab"], "go to the request; the letters below need that"],
      [["a"], "allow it once"],
      [["s"], "for this session"],
      [["d"], "no"],
      [["r"], "no, with a reason that the model reads"],
      [["t"], "one column or two"],
      [["f"], "whole screen"],
      [["escape"], "back to the composer"],
    ],
  ],
  [
    "Timeline",
    [
      [["←", "→"], "one event back, one on"],
      [["home", "end"], "the beginning, the end of the run"],
      [["space"], "play, pause"],
      [["+", "-"], "closer, farther"],
      [["0"], "all of it"],
    ],
  ],
];

export function Help(): JSX.Element {
  const actions = commands.value.filter((command) => command.keys);
  return (
    <Dialog title="Keys" kind="help" focus="[aria-label=Close]" onClose={() => (dialog.value = null)}>
      <div class="help-columns">
        <section>
          <h3>{isMac ? "Everywhere; those with ⌥ outside of text" : "Everywhere"}</h3>
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

// The command palette: all commands and sessions, found by a few letters.

import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { Dialog } from "../dialogs/dialog.tsx";
import { ago, inSeconds } from "../shell/format.ts";
import { Icon } from "../shell/icons.tsx";
import type { IconName } from "../shell/icons.tsx";
import { dialog, drawer } from "../shell/ui.ts";
import { chooseSession, commands, reportErrors, sessions } from "../store.ts";
import { Keys } from "./keycap.tsx";
import { useList } from "./list-navigation.ts";
import { Marked } from "./highlighted.tsx";
import { rank } from "./fuzzy-match.ts";

interface Line {
  readonly id: string;
  readonly title: string;
  readonly detail: string;
  readonly icon: IconName;
  readonly keys: string;
  run(): void;
}

export function Palette(): JSX.Element {
  const isSessions = dialog.value === "sessions";
  const [query, setQuery] = useState("");
  const lines = useMemo(() => [...(isSessions ? [] : commandLines()), ...sessionLines()], [isSessions, commands.value, sessions.value]);
  const found = useMemo(() => rank(lines, query, (line) => line.title, (line) => line.detail).slice(0, 100), [lines, query]);
  const choose = (line: Line | undefined): void => {
    if (!line) return;
    dialog.value = null;
    // The dialog restores the focus first; the command runs afterwards and may move it.
    setTimeout(() => line.run());
  };
  const list = useList(found.length, (at) => choose(found[at]?.item));
  const label = isSessions ? "Find a session" : "Find a command or a session";
  return (
    <Dialog title={isSessions ? "Sessions" : "Commands"} kind="palette picker" testid="palette" hideHead focus="input" onClose={() => (dialog.value = null)} onKeyDown={list.onKeyDown}>
      <label class="palette-field">
        <Icon name="search" />
        <input
          type="text"
          role="combobox"
          autocomplete="off"
          spellcheck={false}
          aria-expanded="true"
          aria-controls="palette-list"
          aria-activedescendant={found.length ? `palette-${list.at}` : undefined}
          aria-label={label}
          placeholder={label}
          value={query}
          onInput={(event) => {
            setQuery(event.currentTarget.value);
            list.move(0);
          }}
        />
        <kbd>esc</kbd>
      </label>
      <ul id="palette-list" role="listbox" aria-label={label} class="picker-list" ref={list.ref}>
        {found.map(({ item, at }, index) => (
          <li
            key={item.id}
            id={`palette-${index}`}
            role="option"
            aria-selected={index === list.at}
            onClick={() => choose(item)}
            onPointerMove={() => list.move(index)}
          >
            <Icon name={item.icon} />
            <span class="grow clip">
              <Marked text={item.title} at={at} />
            </span>
            <small class="muted">{item.detail}</small>
            {item.keys && <Keys keys={item.keys} />}
          </li>
        ))}
      </ul>
      {!found.length && <p class="empty">No match.</p>}
    </Dialog>
  );
}

function commandLines(): Line[] {
  return commands.value
    .filter((command) => command.name !== "commands" && (command.when?.() ?? true))
    .map((command) => ({
      id: `command ${command.name}`,
      title: command.title,
      detail: `/${command.name}`,
      icon: "command",
      keys: command.keys ?? "",
      run: () => command.run(),
    }));
}

function sessionLines(): Line[] {
  const now = Date.now() / 1000;
  return sessions.value
    .filter((one) => !one.parent_session_id)
    .map((one) => ({
      id: one.id,
      title: one.title,
      detail: ago(now - inSeconds(one.updated_at)),
      icon: "chat",
      keys: "",
      run: () => {
        drawer.value = false;
        void reportErrors(chooseSession(one.id));
      },
    }));
}

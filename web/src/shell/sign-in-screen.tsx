// The full-page message when the page cannot connect: the reason and the remedy.

import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { connection, listWorkspaces, openDirectory, reportErrors } from "../store.ts";
import type { Workspace } from "../wire/types.ts";
import { baseName } from "./format.ts";
import { Icon } from "./icons.tsx";

const open = signal<readonly Workspace[] | null>(null);

export function EntryScreen(): JSX.Element {
  const { state, trouble } = connection.value;
  const isOut = state === "signed-out";
  useEffect(() => {
    if (state === "gone") void reportErrors(listWorkspaces()).then((found) => (open.value = found ?? []));
  }, [state]);
  return (
    <main class="sign-in" data-testid="entry">
      <div class="welcome-box">
        <span class="welcome-mark">
          <Icon name="anchor" />
        </span>
        <h1>Holdfast</h1>
        {state === "connecting" || state === "broken" ? (
          <p class="muted" role="status">
            <span class="spinner" /> {state === "broken" ? trouble || "The server does not respond." : "Opening the workspace …"}
          </p>
        ) : (
          <p role="alert">{trouble}</p>
        )}
        {isOut && (
          <pre class="sign-in-command">
            <code>holdfast web</code>
          </pre>
        )}
        {state === "gone" && <Workspaces />}
      </div>
    </main>
  );
}

function Workspaces(): JSX.Element | null {
  if (!open.value?.length) return open.value ? <p class="muted">No workspace is open. Run holdfast web in the directory you want to work in.</p> : null;
  return (
    <ul class="suggestions">
      {open.value.map((one) => (
        <li key={one.id}>
          <button type="button" class="suggestion" onClick={() => void reportErrors(openDirectory(one.path))}>
            <Icon name="folder" />
            <span class="grow">
              <b>{baseName(one.path)}</b>
              <small class="muted">{one.path}</small>
            </span>
            <Icon name="next" small />
          </button>
        </li>
      ))}
    </ul>
  );
}

// Errors in the settings, with file and line.

import type { JSX } from "preact";
import { workspace } from "../store.ts";
import { Icon } from "./icons.tsx";

export function SettingsStrip(): JSX.Element | null {
  const problems = workspace.value?.problems ?? [];
  if (!problems.length) return null;
  return (
    <div class="strip-region" role="alert" data-testid="settings-errors">
      {problems.map((problem) => (
        <p class="strip warning" key={problem}>
          <Icon name="warning" small />
          <span class="grow">Error in the settings: {problem}</span>
        </p>
      ))}
    </div>
  );
}

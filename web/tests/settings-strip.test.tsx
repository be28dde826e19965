// Errors in the settings are shown as text until they are corrected.

import { render } from "preact";
import { act } from "preact/test-utils";
import { expect, test } from "vitest";
import { SettingsStrip } from "../src/shell/settings-strip.tsx";
import { workspace } from "../src/store.ts";

test("errors in the settings are shown until they are corrected", async () => {
  const container = document.createElement("div");
  await act(() => render(<SettingsStrip />, container));
  expect(container.textContent).toBe("");
  const problem = "/w/holdfast.toml:2: permissions.deny[0]: The rule '<b>bahs</b>' has no effect";
  await act(() => void (workspace.value = { id: "w", path: "/w", problems: [problem] }));
  expect(container.querySelector("[role=alert]")?.textContent).toContain(problem);
  await act(() => void (workspace.value = { id: "w", path: "/w" }));
  expect(container.textContent).toBe("");
});

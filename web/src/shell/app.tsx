// The root component.

import { effect } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { Composer } from "../chat/composer.tsx";
import { Queue } from "../chat/queue.tsx";
import { RunStatus } from "../chat/status.tsx";
import { Transcript } from "../chat/transcript.tsx";
import { Requests, RequestsBar } from "../dialogs/requests.tsx";
import { Confirm } from "../dialogs/confirm.tsx";
import { beginKeyboard } from "../dialogs/keyboard.ts";
import { ModelsDialog } from "../dialogs/model-picker.tsx";
import { Help } from "../palette/help.tsx";
import { Palette } from "../palette/palette.tsx";
import { SidePanel } from "../panels/panel.tsx";
import { connection, isBusy, permissions, questions, session, sessionId, workspace } from "../store.ts";
import { Timeline } from "../timeline/timeline.tsx";
import { beginAlerts } from "./notifications.ts";
import { beginCommands } from "./commands.ts";
import { ConnectionStrip } from "./connection.tsx";
import { EntryScreen } from "./sign-in-screen.tsx";
import { baseName } from "./format.ts";
import { Header } from "./header.tsx";
import { SettingsStrip } from "./settings-strip.tsx";
import { Sidebar } from "./sidebar.tsx";
import { Toasts } from "./toasts.tsx";
import { dialog, drawer, isNarrow, panel, shownTheme, sidebar, view } from "./ui.ts";
import { Welcome } from "./welcome.tsx";

effect(() => {
  const root = document.documentElement;
  root.dataset["theme"] = shownTheme.value;
  // Phones colour the area around the page.
  let frame = document.querySelector<HTMLMetaElement>("meta[name=theme-color]");
  if (!frame) {
    frame = document.createElement("meta");
    frame.name = "theme-color";
    document.head.append(frame);
  }
  frame.content = getComputedStyle(root).backgroundColor;
});
effect(() => {
  const directory = baseName(workspace.value?.path ?? "");
  // Visible in another tab: an approval is required, or a run is active.
  const mark = permissions.value.length + questions.value.length ? "(!) " : isBusy.value ? "● " : "";
  document.title = mark + [session.value?.title, directory, "Holdfast"].filter(Boolean).join(" · ");
});

export function App(): JSX.Element {
  useEffect(beginCommands, []);
  useEffect(beginKeyboard, []);
  useEffect(beginAlerts, []);
  const { state } = connection.value;
  if (state === "signed-out" || state === "gone" || !workspace.value) {
    return (
      <>
        <EntryScreen />
        <Toasts />
      </>
    );
  }
  const hasSide = isNarrow.value ? drawer.value : sidebar.value;
  return (
    <div class={`app ${hasSide ? "with-side" : ""} ${panel.value ? "with-panel" : ""}`}>
      <a class="skip" href="#main-view" onClick={skipToContent}>
        Skip to the conversation
      </a>
      {hasSide && <Sidebar />}
      {isNarrow.value && drawer.value && <div class="veil" onClick={() => (drawer.value = false)} />}
      <div class="main" inert={isNarrow.value && drawer.value}>
        <Header />
        <ConnectionStrip />
        <SettingsStrip />
        <main class="main-view" id="main-view" tabIndex={-1}>
          {view.value === "timeline" && sessionId.value ? <TimelineView /> : <Conversation />}
        </main>
      </div>
      {panel.value && <SidePanel name={panel.value} />}
      {(dialog.value === "palette" || dialog.value === "sessions") && <Palette key={dialog.value} />}
      {dialog.value === "help" && <Help />}
      {dialog.value === "models" && <ModelsDialog />}
      <Confirm />
      <Toasts />
    </div>
  );
}

function Conversation(): JSX.Element {
  return (
    <>
      {sessionId.value ? <Transcript /> : <Welcome />}
      <div class="dock">
        <div class="dock-box">
          <RequestsBar />
          <Requests />
          <RunStatus />
          <Queue />
          <Composer />
        </div>
      </div>
    </>
  );
}

function TimelineView(): JSX.Element {
  return (
    <>
      <Timeline key={sessionId.value} />
      <div class="dock">
        <div class="dock-box">
          <RequestsBar />
          <Requests />
        </div>
      </div>
    </>
  );
}

/** Moves the focus without changing the URL, which contains the location of the page. */
function skipToContent(event: Event): void {
  event.preventDefault();
  document.querySelector<HTMLElement>("[data-testid=composer], #main-view")?.focus();
}

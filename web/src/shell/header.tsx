// The header: session, model, context usage, cost, and the state of the connection.

import type { JSX } from "preact";
import { progressOf } from "../cards/tool-data.ts";
import { agent, chooseSession, config, others, reportErrors, session, sessionId, sessions, skip, workspace } from "../store.ts";
import { ConnectionMark } from "./connection.tsx";
import { baseName, money, thousands } from "./format.ts";
import { Icon } from "./icons.tsx";
import { meterOf, windowOf } from "./context-usage.ts";
import { dialog, drawer, isNarrow, panel, sidebar, togglePanel, toggleSidebar, view } from "./ui.ts";
import type { ViewName } from "./ui.ts";

export function Header(): JSX.Element {
  const isOpen = isNarrow.value ? drawer.value : sidebar.value;
  const name = baseName(workspace.value?.path ?? "");
  return (
    <header class="bar">
      <button type="button" class="square" aria-label="Sessions" title="Sessions (Alt B)" aria-expanded={isOpen} aria-controls="sidebar" onClick={toggleSidebar}>
        <Icon name="menu" />
      </button>
      <div class="bar-title">
        {!isOpen && <span class="bar-workspace">{name}</span>}
        <Parent />
        <h1 class="clip">{session.value?.title ?? (sessionId.value ? "…" : "New session")}</h1>
      </div>
      {sessionId.value && <Views />}
      <div class="bar-facts">
        {skip.value && (
          <span class="chip warning" data-testid="auto-approve" title="Auto-approve is on: tools act without approval. Alt Y turns it off.">
            <Icon name="warning" small />
            {isNarrow.value ? "auto" : "auto-approve"}
          </span>
        )}
        {others.value > 0 && (
          <span class="chip clients-mark" title={`${others.value + 1} clients show this session`}>
            <Icon name="people" small />
            {others.value + 1}
            <span class="wide-only">here</span>
          </span>
        )}
        <PlanMark />
        <MeterMark />
        <ModelMark />
        <ConnectionMark />
      </div>
      <button type="button" class="square" aria-label="Commands" title="Commands (Ctrl K)" onClick={() => (dialog.value = "palette")}>
        <Icon name="command" />
      </button>
      <button
        type="button"
        class="square"
        aria-label="Side panel"
        title="Changes, runs, jobs, plan, find"
        aria-expanded={panel.value !== null}
        onClick={() => (panel.value = panel.value ? null : "changes")}
      >
        <Icon name="panel" />
      </button>
    </header>
  );
}

/** Link from a sub-agent session to its parent. */
function Parent(): JSX.Element | null {
  const id = session.value?.parent_session_id;
  const parent = id ? sessions.value.find((one) => one.id === id) : undefined;
  if (!parent) return null;
  return (
    <button type="button" class="button small plain bar-parent" title="Back to the parent session" onClick={() => void reportErrors(chooseSession(parent.id))}>
      <Icon name="back" small />
      <span class="clip">{parent.title}</span>
    </button>
  );
}

function Views(): JSX.Element {
  const one = (name: ViewName, label: string, icon: "chat" | "bars"): JSX.Element => (
    <button type="button" aria-pressed={view.value === name} title={label} onClick={() => (view.value = name)}>
      <Icon name={icon} small />
      <span class="wide-only">{label}</span>
      <span class="visually-hidden narrow-label">{label}</span>
    </button>
  );
  return (
    <div class="segments views" role="group" aria-label="View">
      {one("chat", "Conversation", "chat")}
      {one("timeline", "Timeline", "bars")}
    </div>
  );
}

function PlanMark(): JSX.Element | null {
  const todos = session.value?.todos ?? [];
  if (!todos.length) return null;
  const now = todos.find((todo) => todo.status === "in_progress");
  const done = todos.filter((todo) => todo.status === "completed").length;
  return (
    <button type="button" class="chip as-button wide-only" title={now ? now.active_form || now.content : progressOf(todos)} onClick={() => togglePanel("todos")}>
      <Icon name="todo" small />
      {done}/{todos.length}
      <span class="visually-hidden">steps of the plan done</span>
    </button>
  );
}

const CIRCUMFERENCE = 2 * Math.PI * 7;

function MeterMark(): JSX.Element | null {
  const meter = meterOf(session.value, windowOf(config.value, agent.value));
  if (!session.value || (!meter.tokens && !meter.cost)) return null;
  const percent = meter.share === null ? null : Math.min(999, Math.floor(meter.share * 100));
  const details = [
    `${thousands(meter.tokens)} tokens`,
    percent === null ? "" : `${percent} % of ${thousands(meter.window)}`,
    meter.cost ? money(meter.cost) : "",
    meter.isEstimate ? "estimated" : "",
  ].filter(Boolean);
  return (
    <span class={`meter ${meter.level}`} title={details.join(" · ")} role="img" aria-label={`Context: ${details.join(", ")}`}>
      {meter.share !== null && (
        <svg viewBox="0 0 18 18" aria-hidden="true">
          <circle cx="9" cy="9" r="7" class="meter-track" />
          <circle cx="9" cy="9" r="7" class="meter-fill" stroke-dasharray={`${Math.min(1, meter.share) * CIRCUMFERENCE} ${CIRCUMFERENCE}`} />
        </svg>
      )}
      <span>{percent === null ? `${thousands(meter.tokens)}` : `${percent} %`}</span>
      {meter.cost > 0 && <span class="wide-only faint">{money(meter.cost)}</span>}
    </span>
  );
}

function ModelMark(): JSX.Element {
  const large = config.value.models?.large;
  const isScripted = large?.provider === "demo";
  const known = agent.value?.model;
  const name = known && known.id === large?.model && known.name ? known.name : (large?.model ?? "no model");
  return (
    <button type="button" class="model-mark" title={`${large?.provider ?? ""} / ${large?.model ?? "none"}: choose a model (Alt M)`} onClick={() => (dialog.value = "models")}>
      <Icon name="spark" small />
      <span class="clip">{isScripted ? "scripted tour" : name}</span>
      {large?.reasoning_effort && <span class="faint">{large.reasoning_effort}</span>}
    </button>
  );
}

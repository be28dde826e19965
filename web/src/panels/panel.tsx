// The side panel: changes, runs, jobs, plan and search.

import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { Icon } from "../shell/icons.tsx";
import type { IconName } from "../shell/icons.tsx";
import { panel } from "../shell/ui.ts";
import type { PanelName } from "../shell/ui.ts";
import { jobs, session } from "../store.ts";
import { Changes } from "./changes.tsx";
import { Jobs } from "./jobs.tsx";
import { Runs } from "./runs.tsx";
import { Search } from "./search.tsx";
import { Plan } from "./plan.tsx";

const TABS: readonly (readonly [PanelName, string, IconName])[] = [
  ["changes", "Changes", "file"],
  ["runs", "Runs", "bars"],
  ["jobs", "Jobs", "terminal"],
  ["todos", "Plan", "todo"],
  ["search", "Find", "search"],
];

export function SidePanel({ name }: { name: PanelName }): JSX.Element {
  const self = useRef<HTMLElement>(null);
  useEffect(() => {
    // On a small screen the panel covers the page, so it takes the focus.
    if (matchMedia("(max-width: 1179px)").matches && name !== "search") self.current?.focus();
  }, []);
  const counts: Partial<Record<PanelName, number>> = {
    jobs: jobs.value.filter((job) => (job.state ?? "running") === "running").length,
    todos: (session.value?.todos ?? []).filter((todo) => todo.status !== "completed").length,
  };
  return (
    <>
      <div class="veil panel-veil" onClick={() => (panel.value = null)} />
      <aside
        ref={self}
        class="panel"
        aria-label="Side panel"
        tabIndex={-1}
        onKeyDown={(event) => {
          if (event.key === "Escape" && !event.defaultPrevented) panel.value = null;
        }}
      >
        <div class="panel-head">
          <div class="tabs" role="tablist" aria-label="Side panel">
            {TABS.map(([tab, label, icon], at) => (
              <button
                key={tab}
                type="button"
                role="tab"
                id={`tab-${tab}`}
                aria-selected={tab === name}
                aria-controls="panel-body"
                tabIndex={tab === name ? 0 : -1}
                title={label}
                onClick={() => (panel.value = tab)}
                onKeyDown={(event) => step(event, at)}
              >
                <Icon name={icon} small />
                <span>{label}</span>
                {counts[tab] ? <span class="count">{counts[tab]}</span> : null}
              </button>
            ))}
          </div>
          <button type="button" class="square" aria-label="Close the panel" onClick={() => (panel.value = null)}>
            <Icon name="close" />
          </button>
        </div>
        <div class="panel-body" id="panel-body" role="tabpanel" aria-labelledby={`tab-${name}`} tabIndex={-1}>
          {name === "changes" && <Changes />}
          {name === "runs" && <Runs />}
          {name === "jobs" && <Jobs />}
          {name === "todos" && <Plan />}
          {name === "search" && <Search />}
        </div>
      </aside>
    </>
  );
}

function step(event: KeyboardEvent, at: number): void {
  const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
  if (!by) return;
  event.preventDefault();
  const next = TABS[(at + by + TABS.length) % TABS.length];
  if (!next) return;
  panel.value = next[0];
  requestAnimationFrame(() => document.getElementById(`tab-${next[0]}`)?.focus());
}

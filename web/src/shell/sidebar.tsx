// The sessions of the workspace: find, create, rename, delete. Sub-agent sessions are listed below their parent.

import { computed, effect, signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { useNow } from "../panels/use-now.ts";
import { openSearch } from "../panels/search.tsx";
import { attachedTo, chooseSession, deleteSession, permissions, questions, renameSession, runs, reportErrors, sessionId, sessions, workspace } from "../store.ts";
import type { Session } from "../wire/types.ts";
import { ago, baseName, pluralize, inSeconds, money } from "./format.ts";
import { Icon } from "./icons.tsx";
import { groupByDay, buildTree } from "./session-tree.ts";
import { confirmAction, dialog, drawer, isNarrow, nextTheme, renaming, theme, view } from "./ui.ts";
import { startSession } from "./commands.ts";

const query = signal("");
const MAX_SESSIONS = 200;
const busy = computed(() => new Set(runs.value.filter((run) => run.state !== "ended" && run.state !== "folded").map((run) => run.session_id)));
const awaitingApproval = computed(() => new Set([...permissions.value, ...questions.value].map((item) => item.session_id)));

/** The previous session of this page: the list may still count the page there. */
let here: string | null = null;
let before: string | null = null;
effect(() => {
  if (sessionId.value === here) return;
  before = here;
  here = sessionId.value;
});

export function Sidebar(): JSX.Element {
  const path = workspace.value?.path ?? "";
  const self = useRef<HTMLElement>(null);
  useEffect(() => {
    if (drawer.value && !renaming.value) self.current?.focus();
  }, []);
  return (
    <nav
      ref={self}
      id="sidebar"
      class="sidebar"
      aria-label="Sessions"
      tabIndex={-1}
      onKeyDown={(event) => {
        if (event.key === "Escape" && drawer.value) drawer.value = false;
      }}
    >
      <div class="side-head">
        <span class="brand">
          <Icon name="anchor" />
        </span>
        <span class="grow">
          <b class="clip">{baseName(path)}</b>
          <small class="clip faint" title={path}>
            {path}
          </small>
        </span>
        {isNarrow.value && (
          <button type="button" class="square" aria-label="Close the list" onClick={() => (drawer.value = false)}>
            <Icon name="close" />
          </button>
        )}
      </div>
      <div class="side-tools">
        <button type="button" class="button primary grow" data-testid="new-session" title="New session (Alt N)" onClick={startSession}>
          <Icon name="plus" small /> New session
        </button>
      </div>
      <div class="side-filter">
        <Icon name="search" small />
        <input type="search" class="field" aria-label="Filter sessions" placeholder="Filter" value={query.value} onInput={(event) => (query.value = event.currentTarget.value)} onKeyDown={(event) => event.key === "Enter" && query.value.trim() && searchAll()} />
      </div>
      <List />
      <Foot />
    </nav>
  );
}

function List(): JSX.Element {
  const now = useNow(true, 30_000) / 1000;
  const trees = buildTree(sessions.value, query.value).slice(0, MAX_SESSIONS);
  return (
    <div class="side-list" data-testid="sessions">
      {groupByDay(trees, now).map(([day, items]) => (
        <section key={day}>
          <h2>{day}</h2>
          <ul>
            {items.map((tree) => (
              <li key={tree.session.id}>
                <Item session={tree.session} now={now} />
                {isOpen(tree.session, tree.subagents) && tree.subagents.length > 0 && (
                  <ul class="subagents">
                    {tree.subagents.map((subagent) => (
                      <li key={subagent.id}>
                        <Item session={subagent} now={now} />
                      </li>
                    ))}
                  </ul>
                )}
              </li>
            ))}
          </ul>
        </section>
      ))}
      {!trees.length && <p class="empty">{query.value ? "No title matches." : "There are no sessions yet. Write a prompt."}</p>}
      {query.value.trim() && (
        <button type="button" class="button plain side-further" data-testid="search-all" onClick={searchAll}>
          <Icon name="search" small /> <span class="clip">Find “{query.value.trim()}” in all conversations</span>
        </button>
      )}
    </div>
  );
}

function searchAll(): void {
  drawer.value = false;
  openSearch(true, query.value.trim());
}

const isOpen = (session: Session, subagents: readonly Session[]): boolean =>
  session.id === sessionId.value || query.value !== "" || subagents.some((subagent) => subagent.id === sessionId.value || busy.value.has(subagent.id));

function Item({ session, now }: { session: Session; now: number }): JSX.Element {
  const isChosen = session.id === sessionId.value;
  // The runs decide. The state in the session dates from its last read, and its run may have ended since.
  const isBusy = busy.value.has(session.id);
  const attached = attachedTo.value.get(session.id);
  const others = attached === undefined ? session.attached_clients - Number(isChosen || session.id === before) : attached - Number(isChosen);
  if (renaming.value === session.id) return <Rename session={session} />;
  const facts = [ago(now - inSeconds(session.updated_at)), pluralize(session.message_count, "message"), session.cost ? money(session.cost) : ""];
  return (
    <div class={`session ${isChosen ? "chosen" : ""}`} data-testid="session" data-id={session.id}>
      <button type="button" class="session-name" aria-current={isChosen ? "true" : undefined} onClick={() => open(session)}>
        <Mark isBusy={isBusy} isAwaitingApproval={awaitingApproval.value.has(session.id)} others={others} />
        <span class="grow">
          <span class="clip">{session.title || "New session"}</span>
          <small class="clip faint">{facts.filter(Boolean).join(" · ")}</small>
        </span>
      </button>
      <span class="session-tools">
        <button type="button" class="square small" aria-label={`Rename ${session.title}`} title="Rename" onClick={() => (renaming.value = session.id)}>
          <Icon name="pen" small />
        </button>
        <button type="button" class="square small danger" aria-label={`Delete ${session.title}`} title="Delete" onClick={() => void remove(session, isBusy)}>
          <Icon name="bin" small />
        </button>
      </span>
    </div>
  );
}

function Mark({ isBusy, isAwaitingApproval, others }: { isBusy: boolean; isAwaitingApproval: boolean; others: number }): JSX.Element {
  if (isAwaitingApproval) return <StatusDot kind="approval" label="waits for approval" />;
  if (isBusy) return <StatusDot kind="busy" label="busy" />;
  // An empty element keeps the titles aligned.
  return others > 0 ? <StatusDot kind="others" label={`${others} attached`} /> : <span class="dot none" />;
}

function StatusDot({ kind, label }: { kind: string; label: string }): JSX.Element {
  return (
    <span class={`dot ${kind}`} title={label}>
      <span class="visually-hidden">{label}</span>
    </span>
  );
}

function open(session: Session): void {
  drawer.value = false;
  if (session.id !== sessionId.value) view.value = "chat";
  void reportErrors(chooseSession(session.id));
}

function Rename({ session }: { session: Session }): JSX.Element {
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.select(), []);
  const end = (): void => {
    const title = field.current?.value.trim() ?? "";
    if (renaming.value !== session.id) return;
    renaming.value = null;
    if (title && title !== session.title) void reportErrors(renameSession(session.id, title));
  };
  return (
    <input
      ref={field}
      class="field rename"
      aria-label="Rename the session"
      value={session.title}
      onBlur={end}
      onKeyDown={(event) => {
        if (event.key === "Enter") end();
        if (event.key === "Escape") {
          event.stopPropagation();
          renaming.value = null;
        }
      }}
    />
  );
}

async function remove(session: Session, isBusy: boolean): Promise<void> {
  const text = `Its messages and its file history are deleted, too.${isBusy ? " Its active runs are cancelled." : ""}`;
  if (await confirmAction(`Delete “${session.title}”?`, text, "Delete it")) await reportErrors(deleteSession(session.id));
}

const THEMES = { auto: ["auto", "Theme: system"], light: ["sun", "Theme: light"], dark: ["moon", "Theme: dark"] } as const;

function Foot(): JSX.Element {
  const [icon, label] = THEMES[theme.value];
  return (
    <div class="side-foot">
      <button type="button" class="square" data-testid="theme" aria-label={label} title={`${label} (Alt L)`} onClick={nextTheme}>
        <Icon name={icon} />
      </button>
      <button type="button" class="square" aria-label="Keys" title="Keys (?)" onClick={() => (dialog.value = "help")}>
        <Icon name="question" />
      </button>
      <span class="grow" />
      <small class="faint">{workspace.value?.version && `Holdfast ${workspace.value.version}`}</small>
    </div>
  );
}

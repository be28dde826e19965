// Search in the conversation or in all sessions: Enter and Down go to the next match, Up to the previous one.

import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { scrollToMessage } from "../chat/scrolling.ts";
import { useList } from "../palette/list-navigation.ts";
import { ago, pluralize, inSeconds } from "../shell/format.ts";
import { drawer, isNarrow, panel, view } from "../shell/ui.ts";
import { api, at, chooseSession, messageIds, messageOf, reportErrors, session, sessionId, sessions } from "../store.ts";
import type { Message } from "../wire/types.ts";
import { type Finding, type Hit, findMatches, findInSessions } from "./search-matches.ts";
import { clear, fetchSessions, sessionCache, unfetched } from "./session-cache.ts";

const query = signal("");
const isAll = signal(false);
/** Incremented to focus the search field. */
const openCount = signal(0);

export function openSearch(all: boolean, wanted = query.value): void {
  isAll.value = all;
  query.value = wanted;
  panel.value = "search";
  openCount.value += 1;
}

const readMessages = (id: string): Promise<readonly Message[]> => api.get(at(`/sessions/${encodeURIComponent(id)}/messages`));

function useFindings(all: boolean): readonly Finding[] {
  const ids = messageIds.value;
  const list = sessions.value;
  const read = sessionCache.value;
  const here = session.value;
  // Messages that arrive meanwhile are included when the search text changes.
  useEffect(() => {
    if (all && query.value.trim()) void fetchSessions(list.filter((one) => !one.parent_session_id), readMessages);
  }, [all, query.value]);
  useEffect(() => clear, []);
  return useMemo(() => {
    if (all) return findInSessions(list.filter((one) => !one.parent_session_id), (id) => read.get(id)?.messages ?? [], query.value);
    if (here === null) return [];
    const hits = findMatches(ids.map((id) => messageOf(id).peek()).filter((one) => one !== undefined), query.value);
    return hits.length > 0 ? [{ session: here, hits }] : [];
  }, [all, here, ids, list, read, query.value]);
}

async function show(id: string, hit: Hit): Promise<void> {
  view.value = "chat";
  drawer.value = false;
  if (isNarrow.value) panel.value = null;
  if (id !== sessionId.value) await reportErrors(chooseSession(id));
  // The conversation may have to be rendered first.
  requestAnimationFrame(() => {
    if (hit.messageId) scrollToMessage(hit.messageId, isNarrow.value);
  });
}

export function Search(): JSX.Element {
  const field = useRef<HTMLInputElement>(null);
  useLayoutEffect(() => field.current?.select(), [openCount.value]);
  const all = isAll.value || sessionId.value === null;
  const findings = useFindings(all);
  const flat = findings.flatMap((finding) => finding.hits.map((hit) => ({ id: finding.session.id, hit })));
  const list = useList(flat.length, (index) => {
    const one = flat[index];
    if (one) void show(one.id, one.hit);
  });
  const label = all ? "Find in all sessions" : "Find in the conversation";
  return (
    <div class={all ? "find" : "find here"} onKeyDown={list.onKeyDown}>
      {sessionId.value !== null && <Scope />}
      <input
        ref={field}
        type="text"
        autocomplete="off"
        class="field"
        role="combobox"
        aria-expanded="true"
        aria-controls="find-list"
        aria-activedescendant={flat.length ? `hit-${list.at}` : undefined}
        aria-label={label}
        placeholder={label}
        value={query.value}
        onInput={(event) => {
          query.value = event.currentTarget.value;
          list.move(0);
        }}
      />
      <p class="muted find-count" role="status">
        {query.value.trim() && summary(flat.length, findings.length, all)}
      </p>
      <Findings findings={findings} all={all} chosen={list.at} list={list.ref} onChoose={(index) => list.move(index)} />
    </div>
  );
}

function Scope(): JSX.Element {
  return (
    <div class="segments" role="group" aria-label="Where to search">
      <button type="button" aria-pressed={!isAll.value} onClick={() => (isAll.value = false)}>
        This session
      </button>
      <button type="button" aria-pressed={isAll.value} onClick={() => (isAll.value = true)}>
        All
      </button>
    </div>
  );
}

function summary(matchCount: number, found: number, all: boolean): string {
  const rest = all && unfetched.value > 0 ? `; ${pluralize(unfetched.value, "session")} not searched yet` : "";
  if (matchCount === 0) return rest ? `No match so far${rest}` : "No match.";
  return `${pluralize(matchCount, "place")}${all ? ` in ${pluralize(found, "session")}` : ""}${rest}`;
}

interface FindingsProps {
  readonly findings: readonly Finding[];
  readonly all: boolean;
  readonly chosen: number;
  readonly list: ReturnType<typeof useList>["ref"];
  onChoose(index: number): void;
}

function Findings({ findings, all, chosen, list, onChoose }: FindingsProps): JSX.Element {
  const now = Date.now() / 1_000;
  let lastIndex = -1;
  return (
    <ul id="find-list" role="listbox" aria-label="Places" class="hits" ref={list}>
      {findings.map((finding) => [
        all && (
          <li key={finding.session.id} role="presentation" class="hit-session">
            <span class="clip">{finding.session.title || "New session"}</span>
            <small class="faint">{ago(now - inSeconds(finding.session.updated_at))}</small>
          </li>
        ),
        finding.hits.map((hit, index) => {
          lastIndex += 1;
          const here = lastIndex;
          return (
            <li
              key={`${finding.session.id}/${index}`}
              id={`hit-${here}`}
              role="option"
              aria-selected={here === chosen}
              onClick={() => {
                onChoose(here);
                void show(finding.session.id, hit);
              }}
            >
              <span class="chip">{hit.kind}</span>
              <span class="hit-text">
                {hit.before}
                <mark>{hit.found}</mark>
                {hit.after}
              </span>
            </li>
          );
        }),
      ])}
    </ul>
  );
}

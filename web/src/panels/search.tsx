// Find in the conversation: enter and down go on, up goes back.

import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { scrollToMessage } from "../chat/scrolling.ts";
import { useList } from "../palette/list.ts";
import { counted } from "../shell/format.ts";
import { drawer, isNarrow, panel, view } from "../shell/ui.ts";
import { messageIds, messageOf } from "../store.ts";
import { sought } from "./seek.ts";
import type { Hit } from "./seek.ts";

const words = signal("");
const NAMES = { you: "you", answer: "answer", thought: "thought", tool: "tool", result: "result" } as const;

export function Search(): JSX.Element {
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.select(), []);
  const ids = messageIds.value;
  const hits = useMemo(() => {
    const messages = ids.map((id) => messageOf(id).peek()).filter((one) => one !== undefined);
    return sought(messages, words.value);
  }, [ids, words.value]);
  const show = (hit: Hit | undefined): void => {
    if (!hit) return;
    view.value = "chat";
    drawer.value = false;
    if (isNarrow.value) panel.value = null;
    // The conversation may have to be drawn first.
    requestAnimationFrame(() => {
      scrollToMessage(hit.messageId);
      if (!isNarrow.value) field.current?.focus();
    });
  };
  const list = useList(hits.length, (at) => show(hits[at]));
  return (
    <div class="find" onKeyDown={list.onKeyDown}>
      <input
        ref={field}
        type="text"
        autocomplete="off"
        class="field"
        role="combobox"
        aria-expanded="true"
        aria-controls="find-list"
        aria-activedescendant={hits.length ? `hit-${list.at}` : undefined}
        aria-label="Find in the conversation"
        placeholder="Find in the conversation"
        value={words.value}
        onInput={(event) => {
          words.value = event.currentTarget.value;
          list.move(0);
        }}
      />
      <p class="muted find-count" role="status">
        {words.value && (hits.length ? counted(hits.length, "place") : "Not found.")}
      </p>
      <ul id="find-list" role="listbox" aria-label="Places" class="hits" ref={list.ref}>
        {hits.map((hit, at) => (
          <li
            key={at}
            id={`hit-${at}`}
            role="option"
            aria-selected={at === list.at}
            onClick={() => {
              list.move(at);
              show(hit);
            }}
          >
            <span class="chip">{NAMES[hit.kind]}</span>
            <span class="hit-text">
              {hit.before}
              <mark>{hit.found}</mark>
              {hit.after}
            </span>
          </li>
        ))}
      </ul>
    </div>
  );
}

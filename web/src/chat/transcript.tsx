/** The conversation. The newest line is followed until the user scrolls up; of a long one only the end is rendered. */

import { useComputed } from "@preact/signals";
import type { JSX } from "preact";
import { memo } from "preact/compat";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { pluralize } from "../shell/format.ts";
import { Icon } from "../shell/icons.tsx";
import { isBusy, loading, messageIds, messageOf, runs, sessionId, shell } from "../store/state.ts";
import type { Message } from "../wire/types.ts";
import { textOf } from "./descriptions.ts";
import { MessageView } from "./message.tsx";
import { finishJump, drawn, jumpTarget, keepPosition, isAtEnd, isFollowing, marked, setScroller, stay, STEP, toEnd } from "./scrolling.ts";
import { fixed, SourcesContext } from "./conversation-source.ts";

/** Scrolling counts as the user's for this long after an input, in milliseconds. */
const USER_SCROLL = 700;
const USER_EVENTS = ["wheel", "touchmove", "pointerdown", "pointermove"] as const;

export function Transcript(): JSX.Element {
  const scroller = useRef<HTMLDivElement>(null);
  const content = useRef<HTMLDivElement>(null);
  useScrolling(scroller, content);
  const ids = messageIds.value;
  const first = Math.max(0, ids.length - drawn.value);
  useLayoutEffect(stay, [first]);
  useLayoutEffect(finishJump, [first, jumpTarget.value]);
  const isEmpty = ids.length === 0 && !isBusy.value && shell.value === "";
  return (
    <section class="transcript" aria-label="Conversation" aria-busy={isBusy.value}>
      <div class={isFollowing.value ? "scroller follows" : "scroller"} ref={scroller} tabIndex={0} role="region" aria-label="Messages">
        <div class="content" ref={content}>
          {isEmpty ? <p class="empty">{loading.value ? "Loading the conversation …" : "There are no prompts yet."}</p> : null}
          {first > 0 ? <Earlier count={first} /> : null}
          {ids.slice(first).map((id) => (
            <Live key={id} id={id} />
          ))}
          {shell.value ? <p class="shell-line mono">$ {shell.value}</p> : null}
        </div>
      </div>
      {isFollowing.value ? null : (
        <button type="button" class="button to-end" onClick={toEnd} data-testid="to-end">
          <Icon name="down" small /> {isBusy.value ? "Follow" : "Go to the end"}
        </button>
      )}
      <Announcer />
    </section>
  );
}

/** Each message subscribes to its own signal: a token renders one message, not the list. */
const Live = memo(function Live({ id }: { id: string }): JSX.Element | null {
  const message = messageOf(id).value;
  const isMarked = useComputed(() => marked.value === id);
  if (message === undefined) return null;
  return <MessageView message={message} promptedAt={promptTime(message)} isMarked={isMarked.value} />;
});

/** Returns the time of the run's prompt. Searched only when an answer is complete. */
function promptTime(message: Message): number {
  if (message.role !== "assistant" || !message.run_id || !message.parts.some((part) => part.type === "finish")) return 0;
  const known = runs.peek().find((run) => run.run_id === message.run_id);
  if (known?.started_at) return Math.floor(known.started_at / 1_000);
  const ids = messageIds.peek();
  for (let at = ids.indexOf(message.id); at >= 0; at -= 1) {
    const one = messageOf(ids[at] ?? "").peek();
    if (one?.role === "user" && one.run_id === message.run_id) return one.created_at;
  }
  return 0;
}

function Earlier({ count }: { count: number }): JSX.Element {
  const element = useRef<HTMLButtonElement>(null);
  const more = (): void => {
    keepPosition();
    drawn.value += STEP;
  };
  useEffect(() => {
    const button = element.current;
    if (!button || typeof IntersectionObserver !== "function") return undefined;
    const seen = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && more(), {
      root: button.closest(".scroller"),
      rootMargin: "800px 0px 0px 0px",
    });
    seen.observe(button);
    return () => seen.disconnect();
  }, [count]);
  return (
    <button type="button" class="button plain small earlier" ref={element} onClick={more}>
      {pluralize(count, "earlier message")}
    </button>
  );
}

type DivRef = { readonly current: HTMLDivElement | null };

function useScrolling(scroller: DivRef, content: DivRef): void {
  useLayoutEffect(() => {
    const outer = scroller.current;
    const inner = content.current;
    if (!outer || !inner) return undefined;
    setScroller(outer);
    const follow = (): void => {
      if (isFollowing.peek()) outer.scrollTop = outer.scrollHeight;
    };
    let touchedAt = -USER_SCROLL;
    const onScroll = (): void => {
      if (isAtEnd()) isFollowing.value = true;
      // Growing content does not scroll; only the user does.
      else if (performance.now() - touchedAt < USER_SCROLL) isFollowing.value = false;
    };
    const onUserInput = (event: Event): void => {
      const isWheel = event instanceof WheelEvent;
      // A click in the conversation does not leave its end; one on the scroll bar may.
      if (event instanceof PointerEvent && (event.target !== outer || event.buttons === 0)) return;
      touchedAt = performance.now();
      if (isWheel && event.deltaY < 0 && outer.scrollHeight > outer.clientHeight) isFollowing.value = false;
    };
    const onKey = (event: KeyboardEvent): void => {
      if (["PageUp", "Home", "ArrowUp"].includes(event.key)) isFollowing.value = false;
      if (event.key === "End") toEnd();
    };
    outer.addEventListener("scroll", onScroll, { passive: true });
    for (const name of USER_EVENTS) outer.addEventListener(name, onUserInput, { passive: true });
    outer.addEventListener("keydown", onKey);
    // The content grows or the window shrinks: both before the next rendering.
    const sizes = typeof ResizeObserver === "function" ? new ResizeObserver(follow) : null;
    sizes?.observe(inner);
    sizes?.observe(outer);
    follow();
    return () => {
      setScroller(null);
      sizes?.disconnect();
      outer.removeEventListener("scroll", onScroll);
      for (const name of USER_EVENTS) outer.removeEventListener(name, onUserInput);
      outer.removeEventListener("keydown", onKey);
    };
  }, []);
  // Another session is shown at its end, unless a jump target is set.
  const session = sessionId.value;
  useLayoutEffect(() => {
    if (jumpTarget.peek() === null) toEnd();
  }, [session]);
}

/** Announces to screen readers that an answer is complete, instead of each word. */
function Announcer(): JSX.Element {
  const element = useRef<HTMLParagraphElement>(null);
  const wasBusy = useRef(false);
  const busy = isBusy.value;
  useEffect(() => {
    if (wasBusy.current && !busy && element.current) element.current.textContent = announced();
    else if (busy && element.current) element.current.textContent = "";
    wasBusy.current = busy;
  }, [busy]);
  return <p class="visually-hidden" aria-live="polite" ref={element} />;
}

function announced(): string {
  const ids = messageIds.peek();
  const last = messageOf(ids[ids.length - 1] ?? "").peek();
  if (last?.role !== "assistant") return "The run has ended.";
  return `The answer is complete. ${textOf(last).replace(/[*#`>|]/g, "").slice(0, 600)}`;
}

interface ConversationProps {
  readonly messages: readonly Message[];
  readonly outputs?: ReadonlyMap<string, string>;
  readonly directory?: string;
}

/** Messages without the store, for replays. */
export function Conversation({ messages, outputs, directory = "" }: ConversationProps): JSX.Element {
  const sources = useMemo(() => fixed(messages, outputs ?? new Map(), directory), [messages, outputs, directory]);
  return (
    <SourcesContext.Provider value={sources}>
      <div class="content">
        {messages.map((message) => (
          <MessageView key={message.id} message={message} promptedAt={0} />
        ))}
      </div>
    </SourcesContext.Provider>
  );
}

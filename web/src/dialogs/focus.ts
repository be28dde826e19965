// Decides whether a key press belongs to the composer or to an open approval or question. Pure.
//
// Counterpart of src/holdfast/client/answer_focus.py, which explains it; both pass tests/client/answer_focus.json. The
// browser reports the repetition of a held key, so no key press is delayed here.

export const SETTLE_DELAY = 500;

export type Kind = "approval" | "question";
export type Target = "composer" | "request" | "focus" | "blur";

export interface Route {
  readonly target: Target;
  /** Digits taken as choices that turned out to be text; the composer inserts them before the key. */
  readonly restore: string;
}

export interface Focus {
  /** The id of the shown request, or empty. */
  readonly request: string;
  readonly kind: Kind;
  /** True if the composer has the focus and holds neither text nor attachments. */
  readonly isEmpty: boolean;
  readonly isFocused: boolean;
  readonly isSettled: boolean;
  readonly settledAt: number;
  readonly appearedAt: number;
  /** Later of the appearance and the last key press. */
  readonly quietSince: number;
  readonly lastKeyAt: number;
  readonly digits: string;
}

export const START: Focus = {
  request: "",
  kind: "approval",
  isEmpty: true,
  isFocused: false,
  isSettled: false,
  settledAt: 0,
  appearedAt: 0,
  quietSince: 0,
  lastKeyAt: -1_000_000,
  digits: "",
};

const ARROWS: ReadonlySet<string> = new Set(["up", "down", "left", "right"]);
const isDigit = (key: string): boolean => /^[1-9]$/.test(key);
const to = (target: Target, restore = ""): Route => ({ target, restore });

/** True if the choices are drawn as available. */
export const isActive = (state: Focus): boolean => state.isFocused || state.isSettled;

/** Shows a request. Neither focus nor settled time of an earlier request carries over. */
export function appear(state: Focus, request: string, kind: Kind, at: number): Focus {
  if (request === state.request) return state;
  return { ...disappear(state), request, kind, appearedAt: at, quietSince: Math.max(at, state.lastKeyAt, state.quietSince) };
}

export function disappear(state: Focus): Focus {
  return { ...state, request: "", isFocused: false, isSettled: false, digits: "" };
}

/** Report whether the composer is empty and has the focus; called after every change. */
export function edit(state: Focus, isEmpty: boolean, at: number): Focus {
  if (isEmpty === state.isEmpty) return state;
  if (isEmpty) return { ...state, isEmpty, quietSince: Math.max(state.quietSince, at) };
  return { ...state, isEmpty, isSettled: false, digits: "" };
}

export function focus(state: Focus): Focus {
  return { ...state, isFocused: state.request !== "", isSettled: false, digits: "" };
}

export function blur(state: Focus, at: number): Focus {
  if (!state.isFocused) return state;
  return { ...state, isFocused: false, isSettled: false, quietSince: Math.max(state.quietSince, at) };
}

/** Route a key: an arrow, `enter`, `tab`, `escape`, a digit, `text` for other characters and pastes, or `other`. */
export function press(state: Focus, key: string, at: number, isRepeat = false): [Focus, Route] {
  const after = { ...state, lastKeyAt: Math.max(at, state.lastKeyAt) };
  if (state.request === "") return [after, to("composer")];
  if (state.isFocused) {
    if (key === "tab" || key === "escape") return [blur(after, at), to("blur")];
    return [after, to("request")];
  }
  if (key === "tab") return [focus(after), to("focus")];
  const isChoice = key === "enter" || ARROWS.has(key) || (state.kind === "question" && isDigit(key));
  if (isChoice && state.isSettled && at >= state.settledAt && !isRepeat) {
    return [{ ...after, digits: isDigit(key) ? state.digits + key : "" }, to("request")];
  }
  const isEmpty = state.isEmpty && key !== "text" && !isDigit(key);
  const restarted = { ...after, isEmpty, isSettled: false, quietSince: Math.max(state.quietSince, at), digits: "" };
  return [restarted, to("composer", key === "text" ? state.digits : "")];
}

/** A click on inactive choices only moves the focus, and not right after they appeared under the pointer. */
export function click(state: Focus, at: number): [Focus, Route] {
  if (isActive(state)) return [state, to("request")];
  if (state.request !== "" && at - state.appearedAt >= SETTLE_DELAY) return [focus(state), to("focus")];
  return [state, to("composer")];
}

/** Settles the request if its delay has elapsed. The caller reports the composer's state first, and draws after. */
export function tick(state: Focus, at: number): Focus {
  if (remaining(state, at) !== 0) return state;
  return { ...state, isSettled: true, settledAt: at, digits: "" };
}

/** Milliseconds until `tick` would settle the request; null if time alone does not. */
export function remaining(state: Focus, at: number): number | null {
  if (state.request === "" || isActive(state) || !state.isEmpty) return null;
  return Math.max(0, state.quietSince + SETTLE_DELAY - at);
}

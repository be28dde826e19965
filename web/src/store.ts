/** The store: signals to read, and what a person can ask for. */

export * from "./store/state.ts";
export * from "./store/actions.ts";
export * from "./store/commands.ts";
export { leave, start } from "./store/link.ts";
export { at } from "./store/paths.ts";
export { focusComposer, insertIntoComposer } from "./store/composing.ts";
export { api, Problem } from "./wire/http.ts";

/** The store: signals to read, and the actions of the user. */

export * from "./store/state.ts";
export * from "./store/actions.ts";
export * from "./store/commands.ts";
export { leave, start } from "./store/connection.ts";
export { at } from "./store/paths.ts";
export { focusComposer, insertIntoComposer } from "./store/composer-state.ts";
export { api, Problem } from "./wire/http.ts";

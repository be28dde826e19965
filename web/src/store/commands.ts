/** All commands by name, for the palette and for `/` in the composer. */

import { signal } from "@preact/signals";

export interface Command {
  /** The name after the slash. */
  readonly name: string;
  readonly title: string;
  /** The key as displayed, if there is one. */
  readonly keys?: string;
  /** Runs the command; `argument` is the text after its name in the composer. */
  run(argument?: string): void;
  /** True if it is available now. */
  when?(): boolean;
}

export const commands = signal<readonly Command[]>([]);

/** Registers a command; one with the same name is replaced. */
export function registerCommand(command: Command): void {
  commands.value = [...commands.value.filter((one) => one.name !== command.name), command];
}

export function runCommand(name: string, argument = ""): boolean {
  const found = commands.value.find((one) => one.name === name && (one.when?.() ?? true));
  found?.run(argument);
  return found !== undefined;
}

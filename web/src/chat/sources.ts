/** Where a conversation finds what belongs to it: the store for the one that is live, a list for one that is replayed. */

import { createContext } from "preact";
import { Callers } from "../store/flush.ts";
import { askedCalls, helperOf, isBusy, outputOf, resultOf, workspace } from "../store/state.ts";
import type { Message, ToolResult } from "../wire/types.ts";

export interface Sources {
  result(message: string, call: string): ToolResult | undefined;
  output(message: string, call: string): string;
  helper(message: string, call: string): readonly Message[];
  directory(): string;
  /** Whether nothing runs any more: a call without a result will never get one. */
  isOver(): boolean;
  /** Whether the call waits for somebody's answer. */
  isAsked(call: string): boolean;
}

/** Reading these in a component makes it follow the signals. */
export const live: Sources = {
  result: (message, call) => resultOf(message, call).value,
  output: (message, call) => outputOf(message, call).value,
  helper: (message, call) => helperOf(message, call).value,
  directory: () => workspace.value?.path ?? "",
  isOver: () => !isBusy.value,
  isAsked: (call) => askedCalls.value.has(call),
};

export function fixed(messages: readonly Message[], outputs: ReadonlyMap<string, string>, directory: string): Sources {
  const results = new Map<string, ToolResult>();
  const callers = new Callers();
  for (const message of messages) {
    callers.note(message);
    for (const part of message.parts) {
      if (part.type !== "tool_result") continue;
      const call = part.data.tool_call_id;
      results.set(`${callers.of(message.id, call)}/${call}`, part.data);
    }
  }
  return {
    result: (message, call) => results.get(`${message}/${call}`),
    output: (_message, call) => outputs.get(call) ?? "",
    helper: () => [],
    directory: () => directory,
    isOver: () => false,
    isAsked: () => false,
  };
}

export const SourcesContext = createContext<Sources>(live);

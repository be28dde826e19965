/** Data sources of a conversation: the store for the live one, a list for a replay. */

import { createContext } from "preact";
import { Callers } from "../store/flush.ts";
import { waitingCalls, subagentOf, isBusy, outputOf, resultOf, workspace } from "../store/state.ts";
import type { Message, ToolResult } from "../wire/types.ts";

export interface Sources {
  result(message: string, call: string): ToolResult | undefined;
  output(message: string, call: string): string;
  subagent(message: string, call: string): readonly Message[];
  directory(): string;
  /** True if no run is active: a call without a result will never get one. */
  isOver(): boolean;
  /** True if the call waits for an approval. */
  isAwaitingApproval(call: string): boolean;
}

/** Reading these in a component subscribes it to the signals. */
export const live: Sources = {
  result: (message, call) => resultOf(message, call).value,
  output: (message, call) => outputOf(message, call).value,
  subagent: (message, call) => subagentOf(message, call).value,
  directory: () => workspace.value?.path ?? "",
  isOver: () => !isBusy.value,
  isAwaitingApproval: (call) => waitingCalls.value.has(call),
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
    subagent: () => [],
    directory: () => directory,
    isOver: () => false,
    isAwaitingApproval: () => false,
  };
}

export const SourcesContext = createContext<Sources>(live);
